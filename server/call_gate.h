// Which calls may come in, and how many are inside: the switch between loading, serving and
// draining.
#ifndef LSSAR_SERVER_CALL_GATE_H_
#define LSSAR_SERVER_CALL_GATE_H_

#include <condition_variable>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lssar {

class ServedModel;

// Threads  any
class CallGate {
 public:
  // One call's stay: the model lives and WaitUntilEmpty waits as long as it is held.
  class Pass {
   public:
    Pass(Pass&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)), model_(other.model_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->Leave();
    }
    ServedModel& Model() const { return *model_; }

   private:
    friend class CallGate;
    Pass(CallGate* gate, ServedModel* model) : gate_(gate), model_(model) {}
    CallGate* gate_;
    ServedModel* model_;
  };

  // Errors  UNAVAILABLE: loading, or draining
  absl::StatusOr<Pass> Enter();

  // `model` must outlive every pass.
  void Open(ServedModel* model);
  // No one enters any more.
  void Close();
  // True: everyone has left; false: `limit` passed first.
  bool WaitUntilEmpty(absl::Duration limit);

 private:
  void Leave();

  std::mutex mutex_;
  std::condition_variable emptied_;
  ServedModel* model_ = nullptr;  // null: loading
  bool closed_ = false;
  int num_inside_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CALL_GATE_H_

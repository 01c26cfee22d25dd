// Which calls may come in, and how many are inside: the switch between loading, serving and
// draining.
#ifndef LSSAR_SERVER_CALL_GATE_H_
#define LSSAR_SERVER_CALL_GATE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
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
        : gate_(std::exchange(other.gate_, nullptr)), model_(other.model_), id_(other.id_) {}
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->Leave(id_);
    }
    ServedModel& Model() const { return *model_; }

   private:
    friend class CallGate;
    Pass(CallGate* gate, ServedModel* model, uint64_t id) : gate_(gate), model_(model), id_(id) {}
    CallGate* gate_;
    ServedModel* model_;
    uint64_t id_;
  };
  // `max_calls`: that may be inside at once.
  explicit CallGate(int max_calls) : max_calls_(max_calls) {}

  // Ends a call at once, from any thread.
  using Cut = std::function<void(const absl::Status&)>;

  // `cut`: how CutAll ends this call; empty: it ends by itself soon.
  // Errors  UNAVAILABLE: as Readiness; RESOURCE_EXHAUSTED: too many are inside
  absl::StatusOr<Pass> Enter(Cut cut = {});

  // `model` must outlive every pass.
  void Open(ServedModel* model);
  // No one enters any more; `reason` (UNAVAILABLE) is what they are told. The last reason counts.
  void Close(absl::Status reason);
  // Ends every call that is inside with `reason`.
  void CutAll(const absl::Status& reason);

  // OK: calls may come in. UNAVAILABLE: loading, or what Close was given.
  absl::Status Readiness() const;
  // Null: loading.
  ServedModel* Model() const;

  // True: everyone has left; false: `limit` passed first.
  bool WaitUntilEmpty(absl::Duration limit);

 private:
  absl::Status LockedReadiness() const;
  void Leave(uint64_t id);

  const int max_calls_;
  mutable std::mutex mutex_;
  std::condition_variable emptied_;
  ServedModel* model_ = nullptr;  // null: loading
  absl::Status closed_;           // OK: open
  uint64_t next_id_ = 0;
  std::map<uint64_t, Cut> inside_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CALL_GATE_H_

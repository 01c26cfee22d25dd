// One call, the same for both ports: admission, a worker that parses, the engine requests, their
// results, and one end.
#ifndef LSSAR_SERVER_API_CALL_H_
#define LSSAR_SERVER_API_CALL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/method.h"
#include "server/api/sub_requests.h"

namespace lssar {

// A port derives from it, decodes the request and encodes the replies. The first end counts: an
// error before or while parsing, an abort, the client's leaving, or the end of the engine requests.
//
// Threads  any
class Call : public std::enable_shared_from_this<Call>, private SubRequests::Owner {
 public:
  // `parts` outlives the call.
  Call(CallMetadata metadata, const ServiceContext& parts, std::unique_ptr<Method> method);

 protected:
  // Admits the call, then has a worker parse and submit it. Call once. `num_bytes`: of the request.
  void Begin(int64_t num_bytes);
  // HasSpace is true again.
  void Resume() { items_.Resume(); }
  // Nobody reads any more: stops the work, which then ends.
  void Stop(const absl::Status& reason);

  // The port's part.

  // The admission's result. Returns how the call goes on.
  virtual absl::Status OnAdmission(const absl::Status& status) { return status; }
  // Sets the method's request. Worker thread.
  virtual absl::Status Decode() = 0;
  // An error of the method's Parse or of the engine in the port's own names for the fields.
  virtual absl::Status InPortsNames(const absl::Status& status) const { return status; }
  // The request has been parsed.
  virtual absl::Status OnParsed(const std::vector<SubRequest>& /*items*/) {
    return absl::OkStatus();
  }
  // The engine has the request, or the first of its items. Not called if that has failed, or if the
  // call has ended by then.
  virtual void OnSubmitted() {}
  // False while too much waits for the client.
  virtual bool HasSpace() const = 0;
  // In order, one at a time, under the call's lock; SendEnd is the last. On the engine's
  // thread: must not block.
  virtual void Send(int prompt, std::unique_ptr<Message> reply) = 0;
  virtual void SendEnd(const absl::Status& status) = 0;
  // Runs `work` once, unless the call is gone by then.
  virtual void RunLater(std::chrono::milliseconds delay, std::function<void()> work) = 0;

  CallContext context_;
  const std::unique_ptr<Method> method_;

 private:
  class ItemSink;

  // Worker thread.
  void ParseAndSubmit();
  void End(const absl::Status& status, const RequestStats& total);
  // Calls `report` unless the call has ended.
  template <typename Report>
  void WhileOpen(const Report& report);

  bool HasSpaceForItems() const final { return HasSpace(); }
  std::shared_ptr<OutputSink> MakeSink(int item) final;
  void RetryLater(std::chrono::milliseconds delay) final;
  void OnItemEnd(int item, const RequestStats& stats) final;
  void OnItemsEnd(const absl::Status& status, const RequestStats& total) final {
    End(InPortsNames(status), total);
  }

  SubRequests items_{&context_, this};
  std::mutex mutex_;        // locked after that of items_
  bool is_parsed_ = false;  // the method is no longer the worker's
  bool has_ended_ = false;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_CALL_H_

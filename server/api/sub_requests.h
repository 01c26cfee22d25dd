// The engine requests of one call, its items, submitted a few at a time.
#ifndef LSSAR_SERVER_API_SUB_REQUESTS_H_
#define LSSAR_SERVER_API_SUB_REQUESTS_H_

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine.h"
#include "server/api/call_context.h"

namespace lssar {

struct SubRequest {
  Request request;  // without id, deadline and the key's salt, which SubRequests sets
  // Set: the engine has nothing to compute, and the item ends at once with these counts.
  std::optional<RequestStats> known = {};
  int64_t num_bytes = 0;  // held in the memory budget; set by SubRequests
};

// Only the first item may be rejected by a full queue; once it is accepted, later items wait for
// capacity. The first error cancels all other items.
//
// Threads  any
class SubRequests {
 public:
  // The call that owns the items. It lives until each sink's OnDone.
  class Owner {
   public:
    virtual ~Owner() = default;
    // False: the client must read first; no item is submitted.
    virtual bool HasSpaceForItems() const = 0;
    // Receives the results of one item. Its OnDone calls SubRequests::OnDone.
    virtual std::shared_ptr<OutputSink> MakeSink(int item) = 0;
    // Calls SubRequests::Retry after `delay`, unless the call is gone by then.
    virtual void RetryLater(std::chrono::milliseconds delay) = 0;
    // An item has ended without an error. Under the items' lock.
    virtual void OnItemEnd(int item, const RequestStats& stats) = 0;
    // Called once: after the last item, or with the first error. `total`: over all items.
    virtual void OnItemsEnd(const absl::Status& status, const RequestStats& total) = 0;
  };

  // Both outlive this.
  SubRequests(CallContext* context, Owner* owner) : context_(*context), owner_(*owner) {}
  ~SubRequests() { Free(); }
  SubRequests(const SubRequests&) = delete;
  SubRequests& operator=(const SubRequests&) = delete;

  // Submits the first items. Call at most once. No effect after Stop. If the server has no memory
  // left for the items (limits::kMaxRequestBytes), or the key no tokens, they end with
  // RESOURCE_EXHAUSTED.
  void Start(std::vector<SubRequest> items);
  // The owner has space again.
  void Resume();
  // Cancels all items and submits no more.
  void Stop(const absl::Status& reason);

  void OnAdmitted(int item);
  void OnDone(int item, const absl::Status& status, const RequestStats& stats);
  void Retry();

 private:
  // A call of 1024 items must not fill the engine's queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Delay before the next attempt if the engine's queue is full of other requests.
  static constexpr auto kRetryInterval = std::chrono::milliseconds(20);

  // Submits items while there is capacity; ends after the last one.
  void SubmitMore();
  // Requires  mutex_
  absl::Status SubmitNext();
  // Takes the items' memory from the budget; returns what they have not returned.
  absl::Status Hold(std::vector<SubRequest> items);
  void Free();
  void Return(SubRequest* item);
  void Fail(const absl::Status& error);

  CallContext& context_;
  Owner& owner_;

  std::mutex mutex_;  // locked before the owner's and the engine's mutexes
  bool has_started_ = false;
  bool has_ended_ = false;
  std::vector<SubRequest> items_;
  int64_t num_shared_bytes_ = 0;  // held in the memory budget, besides those of each item
  size_t next_item_ = 0;
  struct InFlight {
    Engine::Handle handle;
    RequestLease lease;
  };
  std::map<int, InFlight> in_flight_;
  absl::Status error_;  // the first error; no item is submitted after it
  bool is_retry_pending_ = false;
  RequestStats total_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_SUB_REQUESTS_H_

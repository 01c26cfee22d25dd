// The waiting queue: bounded, for each tenant ordered by priority and arrival, and the boundary
// between the threads that submit and the engine thread.
#ifndef LSSAR_RUNTIME_REQUEST_QUEUE_H_
#define LSSAR_RUNTIME_REQUEST_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "runtime/sequence.h"

namespace lssar {

// A request is open from Push to MarkDone, whether it waits here or runs.
// Threads   any, unless stated otherwise; the lock is never held while a sink is called
class RequestQueue {
 public:
  RequestQueue(int max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Errors  RESOURCE_EXHAUSTED: the queue is full, by requests or by their prompt tokens; after
  //         Close(reason): that reason.
  // A tenant without waiting requests may always push one: the bound limits how long others wait,
  // and a single request with more tokens could otherwise never run. A queue that is full still
  // takes the requests of a tenant that has less than its share in it: the bounds divided by the
  // number of tenants that wait.
  absl::Status Push(std::unique_ptr<SequenceGroup> group);
  // Whether Push would take the tenant's request now.
  // Errors  as Push
  absl::Status CheckCapacity(std::string_view tenant, const Request& request) const;

  // From now on Push fails with `reason`, unless an earlier call gave another.
  void Close(absl::Status reason);
  // Waits until no request is open. False: `limit` passed before.
  bool WaitUntilNoneOpen(absl::Duration limit) const;
  // Ends the engine thread's current or next WaitForWork.
  void Wake();
  // Ends all calls of WaitForWork, which return false from now on.
  void Stop();

  struct Load {
    int num_requests = 0;
    int64_t num_tokens = 0;
    bool is_closed = false;
  };
  Load CurrentLoad() const;

  // The calls below are the engine thread's.

  // Sleeps until `until`, a Push or a Wake; returns at once if either came since the last return.
  // False: stopped.
  bool WaitForWork(Clock::time_point until);
  // The earliest deadline of all waiting requests; time_point::max(): none has one.
  Clock::time_point NextDeadline() const;
  // The flag is true as soon as a request of another tenant waits. Valid until the next call.
  const std::atomic<bool>* WatchForOthers(const std::string& tenant);
  // The first waiting request of each tenant. They stay valid until this thread removes them.
  void GetFirst(std::vector<const SequenceGroup*>* first) const;
  // The first waiting request of one tenant; null: none.
  const SequenceGroup* GetFirst(const std::string& tenant) const;
  std::unique_ptr<SequenceGroup> Pop(const SequenceGroup& group);
  // Moves requests that are cancelled or past their deadline to `aborted`, with their status set.
  void TakeAborted(Clock::time_point now, std::vector<std::unique_ptr<SequenceGroup>>* aborted);
  // The same for all requests, with `status`.
  void TakeAll(const absl::Status& status, std::vector<std::unique_ptr<SequenceGroup>>* aborted);
  void MarkDone(int num_requests);

 private:
  // The waiting requests of one tenant.
  struct Waiting {
    std::deque<std::unique_ptr<SequenceGroup>> groups;  // by effective arrival time
    int64_t num_tokens = 0;
  };

  absl::Status CheckCapacityLocked(std::string_view tenant, int64_t num_tokens) const;
  // Takes the count of a request out; the tenant's last one removes the tenant.
  std::unique_ptr<SequenceGroup> RemoveLocked(const std::string& tenant, size_t at);

  const int max_requests_;
  const int64_t max_tokens_;
  mutable std::mutex mutex_;
  mutable std::condition_variable work_, none_open_;
  std::map<std::string, Waiting, std::less<>> waiting_;  // by tenant; none without requests
  int num_requests_ = 0;                                 // of all tenants
  int64_t num_tokens_ = 0;
  bool is_woken_ = false;
  int num_open_ = 0;
  absl::Status closed_;  // OK: open
  bool is_stopped_ = false;
  std::string watched_tenant_;
  std::atomic<bool> others_came_ = false;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_REQUEST_QUEUE_H_

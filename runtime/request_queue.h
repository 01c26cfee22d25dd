// The border between RPC threads and the engine thread: a bounded queue of requests.
#ifndef LSSAR_RUNTIME_REQUEST_QUEUE_H_
#define LSSAR_RUNTIME_REQUEST_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/request.h"

namespace lssar {

struct Submission {
  Request request;
  std::shared_ptr<TokenSink> sink;
  std::shared_ptr<std::atomic<bool>> cancelled;
  Clock::time_point submitted_at;
};

// CANCELLED or DEADLINE_EXCEEDED, when that is what `submission` should end with by now; else OK.
absl::Status DueStatus(const Submission& submission, Clock::time_point now);

// A request is open from Push to MarkDone, whether it waits here or runs.
// Threads   any, where not said otherwise; the lock is never held while a sink is called
class RequestQueue {
 public:
  explicit RequestQueue(int max_queued) : max_queued_(max_queued) {}

  // Errors  RESOURCE_EXHAUSTED: full; after Close what that was given.
  absl::Status Push(Submission submission);

  // From now on Push fails with `reason`, unless an earlier call gave one.
  void Close(absl::Status reason);
  // Waits until no request is open; false: `limit` passed before.
  bool WaitUntilNoneOpen(absl::Duration limit);
  // Ends the engine thread's next WaitForWork.
  void Stop();

  bool IsClosed() const;
  int NumQueued() const;

  // The engine thread's part.
  // Sleeps until there is something to do: a queued request, unless something runs already.
  // False: stopped.
  bool WaitForWork(bool is_running);
  // The oldest request, if `is_admissible` says so of it.
  std::optional<Submission> PopIf(const std::function<bool(const Request&)>& is_admissible);
  // Moves the requests that are cancelled or late to `due`, each with its status.
  void TakeDue(Clock::time_point now, std::vector<std::pair<Submission, absl::Status>>* due);
  std::vector<Submission> TakeAll();
  void MarkDone(int num_requests);

 private:
  const int max_queued_;
  mutable std::mutex mutex_;
  std::condition_variable work_, none_open_;
  std::deque<Submission> queue_;
  int num_open_ = 0;
  absl::Status closed_;  // OK: open
  bool is_stopped_ = false;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_REQUEST_QUEUE_H_

// The border between RPC threads and the engine thread: a bounded queue of requests.
#ifndef LSSAR_RUNTIME_REQUEST_QUEUE_H_
#define LSSAR_RUNTIME_REQUEST_QUEUE_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "runtime/limits.h"
#include "runtime/request.h"

namespace lssar {

struct Submission {
  Request request;
  std::shared_ptr<OutputSink> sink;
  std::shared_ptr<std::atomic<bool>> cancelled;
  Clock::time_point submitted_at;

  // Who comes first: priority and waiting in one number that stays the same while time passes, as
  // if a request of higher priority had come that much earlier. Smaller first.
  Clock::time_point EffectiveArrivalTime() const {
    return submitted_at - request.priority * limits::kWaitPerPriority;
  }
};

// Of the prompt; of a score, of its context and all continuations.
int64_t NumPromptTokens(const Request& request);

// CANCELLED or DEADLINE_EXCEEDED, when that is what `submission` should end with by now; else OK.
absl::Status DueStatus(const Submission& submission, Clock::time_point now);

// A request is open from Push to MarkDone, whether it waits here or runs.
// Threads   any, where not said otherwise; the lock is never held while a sink is called
class RequestQueue {
 public:
  RequestQueue(int max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // Errors  RESOURCE_EXHAUSTED: full, by requests or by their prompt tokens; after Close what that
  //         was given. An empty queue takes any request: the limit bounds how long others wait, and
  //         a single one of more tokens would else be refused for ever.
  absl::Status Push(Submission submission);
  // Whether Push would take the smallest of requests now. Errors  as Push
  absl::Status CheckQueueCapacity() const;

  // From now on Push fails with `reason`, unless an earlier call gave one.
  void Close(absl::Status reason);
  // Waits until no request is open; false: `limit` passed before.
  bool WaitUntilNoneOpen(absl::Duration limit);
  // Ends the engine thread's next WaitForWork at once.
  void Wake();
  // The same for all to come, which return false.
  void Stop();

  struct Load {
    int num_requests = 0;
    int64_t num_tokens = 0;
    bool is_closed = false;
  };
  Load CurrentLoad() const;
  int NumQueued() const { return CurrentLoad().num_requests; }

  // The engine thread's part.
  // Sleeps until `until`, or until a request comes or Wake is called, or was since the last return.
  // False: stopped.
  bool WaitForWork(Clock::time_point until);
  // The earliest deadline of those that wait; time_point::max(): none has one.
  Clock::time_point NextDeadline() const;
  // The most senior request, if `is_admissible` says so of it.
  std::optional<Submission> PopIf(absl::FunctionRef<bool(const Submission&)> is_admissible);
  // Moves the requests that are cancelled or late to `due`, each with its status.
  void TakeDue(Clock::time_point now, std::vector<std::pair<Submission, absl::Status>>* due);
  std::vector<Submission> TakeAll();
  void MarkDone(int num_requests);

 private:
  // CheckQueueCapacity under the lock.
  absl::Status LockedRoom() const;
  // Takes the submission at `at` out; under the lock.
  Submission Take(std::deque<Submission>::iterator at);

  const int max_requests_;
  const int64_t max_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable work_, none_open_;
  std::deque<Submission> queue_;  // most senior first
  int64_t num_tokens_ = 0;        // of the queue
  bool is_woken_ = false;
  int num_open_ = 0;
  absl::Status closed_;  // OK: open
  bool is_stopped_ = false;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_REQUEST_QUEUE_H_

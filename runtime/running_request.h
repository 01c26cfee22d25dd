// An admitted request: its sequences and what is told of it at the end.
#ifndef LSSAR_RUNTIME_RUNNING_REQUEST_H_
#define LSSAR_RUNTIME_RUNNING_REQUEST_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "models/checkpoint.h"
#include "runtime/admission.h"
#include "runtime/request_queue.h"
#include "runtime/sequence.h"

namespace lssar {

struct RunningRequest {
  Submission submission;
  Clock::time_point admitted_at;
  std::optional<Clock::time_point> prefilled_at;
  std::vector<Sequence> sequences;  // never moved: the step points into it
  absl::Status status;              // not OK: to be ended with it
  bool is_paused = false;           // its sink had no room in this step
  int num_cached_tokens = 0;
  int num_preemptions = 0;

  const Request& GetRequest() const { return submission.request; }
  bool IsOver() const;
  RequestStats Stats(Clock::time_point now) const;
};

int64_t Microseconds(Clock::duration d);
void Add(const AttentionStats& from, AttentionStats* to);

// Of a request that has just been admitted, or ended before it was.
RequestStats StatsAtAdmission(const Submission& submission, Clock::time_point now);

// The `num_sequences` of a request, all of them still without pages. `uses_cache`: they take part
// in the prefix cache. What `checkpoint` owns must outlive the result.
std::unique_ptr<RunningRequest> MakeRunning(Submission submission, int num_sequences,
                                            const Demand& demand, const Checkpoint& checkpoint,
                                            bool uses_cache);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_RUNNING_REQUEST_H_

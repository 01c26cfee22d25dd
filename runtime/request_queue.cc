#include "runtime/request_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Prompt tokens of the request's longest sequence. More continuations of a score request do not
// make the others wait for longer: it takes turns with them (Scheduler::TakeNewTurn).
int64_t NumQueuedTokens(const Request& request) {
  size_t longest = 0;
  if (request.score) {
    for (const auto& ids : request.score->continuations) longest = std::max(longest, ids.size());
  }
  return int64_t(request.prompt.size() + longest);
}

}  // namespace

absl::Status RequestQueue::Push(std::unique_ptr<SequenceGroup> group) {
  const int64_t num_tokens = NumQueuedTokens(group->request);
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(CheckCapacityLocked());
    if (!waiting_.empty() && num_tokens_ + num_tokens > max_tokens_) {
      return absl::ResourceExhaustedError(StrCat("the queue is full: ", num_tokens_,
                                                 " queued prompt tokens + ", num_tokens,
                                                 " of this request = ", num_tokens_ + num_tokens,
                                                 " (max_queued_tokens = ", max_tokens_, ")"));
    }
    const auto at = std::ranges::upper_bound(
        waiting_, group->EffectiveArrivalTime(), {},
        [](const auto& waiting) { return waiting->EffectiveArrivalTime(); });
    waiting_.insert(at, std::move(group));
    num_tokens_ += num_tokens;
    is_woken_ = true;
    ++num_open_;
  }
  work_.notify_one();
  return absl::OkStatus();
}

absl::Status RequestQueue::CheckCapacity() const {
  const std::lock_guard lock(mutex_);
  return CheckCapacityLocked();
}

absl::Status RequestQueue::CheckCapacityLocked() const {
  RETURN_IF_ERROR(closed_);
  if (int(waiting_.size()) >= max_requests_) {
    return absl::ResourceExhaustedError(
        StrCat("the queue is full: ", waiting_.size(),
               " requests wait (max_queued_requests = ", max_requests_, ")"));
  }
  if (!waiting_.empty() && num_tokens_ >= max_tokens_) {
    return absl::ResourceExhaustedError(
        StrCat("the queue is full: ", num_tokens_,
               " prompt tokens wait (max_queued_tokens = ", max_tokens_, ")"));
  }
  return absl::OkStatus();
}

void RequestQueue::Close(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  if (closed_.ok()) closed_ = std::move(reason);
}

bool RequestQueue::WaitUntilNoneOpen(absl::Duration limit) const {
  // Longer limits would overflow the clock's arithmetic.
  const absl::Duration bounded = std::min(limit, absl::Hours(24 * 365 * 100));
  std::unique_lock lock(mutex_);
  return none_open_.wait_for(lock, absl::ToChronoMicroseconds(bounded),
                             [this] { return num_open_ == 0; });
}

void RequestQueue::Wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  work_.notify_one();
}

void RequestQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  work_.notify_one();
}

RequestQueue::Load RequestQueue::CurrentLoad() const {
  const std::lock_guard lock(mutex_);
  return {
      .num_requests = int(waiting_.size()), .num_tokens = num_tokens_, .is_closed = !closed_.ok()};
}

bool RequestQueue::WaitForWork(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const auto has_work = [this] { return is_stopped_ || is_woken_; };
  if (until == Clock::time_point::max()) {
    work_.wait(lock, has_work);
  } else {
    work_.wait_until(lock, until, has_work);
  }
  is_woken_ = false;
  return !is_stopped_;
}

Clock::time_point RequestQueue::NextDeadline() const {
  const std::lock_guard lock(mutex_);
  Clock::time_point earliest = Clock::time_point::max();
  for (const auto& group : waiting_) {
    if (group->request.deadline) earliest = std::min(earliest, *group->request.deadline);
  }
  return earliest;
}

std::unique_ptr<SequenceGroup> RequestQueue::RemoveLocked(Groups::iterator at) {
  std::unique_ptr<SequenceGroup> group = std::move(*at);
  waiting_.erase(at);
  num_tokens_ -= NumQueuedTokens(group->request);
  return group;
}

std::unique_ptr<SequenceGroup> RequestQueue::PopIf(
    absl::FunctionRef<bool(const SequenceGroup&)> is_admissible) {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty() || !is_admissible(*waiting_.front())) return nullptr;
  return RemoveLocked(waiting_.begin());
}

void RequestQueue::TakeAborted(Clock::time_point now,
                               std::vector<std::unique_ptr<SequenceGroup>>* aborted) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < waiting_.size();) {
    waiting_[i]->status = waiting_[i]->AbortStatus(now);
    if (waiting_[i]->status.ok()) {
      ++i;
    } else {
      aborted->push_back(RemoveLocked(waiting_.begin() + std::ptrdiff_t(i)));
    }
  }
}

void RequestQueue::TakeAll(const absl::Status& status,
                           std::vector<std::unique_ptr<SequenceGroup>>* aborted) {
  const std::lock_guard lock(mutex_);
  for (auto& group : waiting_) {
    group->status = status;
    aborted->push_back(std::move(group));
  }
  waiting_.clear();
  num_tokens_ = 0;
}

void RequestQueue::MarkDone(int num_requests) {
  const std::lock_guard lock(mutex_);
  num_open_ -= num_requests;
  LSSAR_CHECK(num_open_ >= 0);
  if (num_open_ == 0) none_open_.notify_all();
}

}  // namespace lssar

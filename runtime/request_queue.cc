#include "runtime/request_queue.h"

#include <algorithm>
#include <chrono>

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar {

absl::Status DueStatus(const Submission& submission, Clock::time_point now) {
  if (submission.cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError("the request was cancelled");
  }
  if (submission.request.deadline && *submission.request.deadline <= now) {
    const auto age =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - submission.submitted_at);
    return absl::DeadlineExceededError(
        StrCat("the request's deadline passed; it is ", age.count(), " ms old"));
  }
  return absl::OkStatus();
}

int64_t NumPromptTokens(const Request& request) {
  auto num_tokens = int64_t(request.prompt.size());
  if (!request.score) return num_tokens;
  for (const auto& continuation : request.score->continuations) {
    num_tokens += int64_t(continuation.size());
  }
  return num_tokens;
}

absl::Status RequestQueue::Push(Submission submission) {
  const int64_t num_tokens = NumPromptTokens(submission.request);
  {
    const std::lock_guard lock(mutex_);
    if (absl::Status status = LockedRoom(); !status.ok()) return status;
    if (!queue_.empty() && num_tokens_ + num_tokens > max_tokens_) {
      return absl::ResourceExhaustedError(StrCat("the queue is full: ", num_tokens_,
                                                 " queued prompt tokens + ", num_tokens,
                                                 " of this request = ", num_tokens_ + num_tokens,
                                                 " (max_queued_tokens = ", max_tokens_, ")"));
    }
    const auto at = std::ranges::upper_bound(queue_, submission.EffectiveArrivalTime(), {},
                                             &Submission::EffectiveArrivalTime);
    queue_.insert(at, std::move(submission));
    num_tokens_ += num_tokens;
    is_woken_ = true;
    ++num_open_;
  }
  work_.notify_one();
  return absl::OkStatus();
}

absl::Status RequestQueue::CheckQueueCapacity() const {
  const std::lock_guard lock(mutex_);
  return LockedRoom();
}

absl::Status RequestQueue::LockedRoom() const {
  if (!closed_.ok()) return closed_;
  if (int(queue_.size()) >= max_requests_) {
    return absl::ResourceExhaustedError(
        StrCat("the queue is full: ", queue_.size(),
               " requests wait (max_queued_requests = ", max_requests_, ")"));
  }
  if (!queue_.empty() && num_tokens_ >= max_tokens_) {
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

bool RequestQueue::WaitUntilNoneOpen(absl::Duration limit) {
  // A century stands for ever: the clock's own arithmetic would overflow beyond.
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
      .num_requests = int(queue_.size()), .num_tokens = num_tokens_, .is_closed = !closed_.ok()};
}

bool RequestQueue::WaitForWork(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  const auto is_called = [this] { return is_stopped_ || is_woken_; };
  if (until == Clock::time_point::max()) {
    work_.wait(lock, is_called);
  } else {
    work_.wait_until(lock, until, is_called);
  }
  is_woken_ = false;
  return !is_stopped_;
}

Clock::time_point RequestQueue::NextDeadline() const {
  const std::lock_guard lock(mutex_);
  Clock::time_point earliest = Clock::time_point::max();
  for (const Submission& submission : queue_) {
    if (submission.request.deadline) earliest = std::min(earliest, *submission.request.deadline);
  }
  return earliest;
}

Submission RequestQueue::Take(std::deque<Submission>::iterator at) {
  Submission submission = std::move(*at);
  queue_.erase(at);
  num_tokens_ -= NumPromptTokens(submission.request);
  return submission;
}

std::optional<Submission> RequestQueue::PopIf(
    absl::FunctionRef<bool(const Submission&)> is_admissible) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || !is_admissible(queue_.front())) return std::nullopt;
  return Take(queue_.begin());
}

void RequestQueue::TakeDue(Clock::time_point now,
                           std::vector<std::pair<Submission, absl::Status>>* due) {
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < queue_.size();) {
    absl::Status status = DueStatus(queue_[i], now);
    if (status.ok()) {
      ++i;
    } else {
      due->emplace_back(Take(queue_.begin() + std::ptrdiff_t(i)), std::move(status));
    }
  }
}

std::vector<Submission> RequestQueue::TakeAll() {
  const std::lock_guard lock(mutex_);
  std::vector<Submission> all(std::make_move_iterator(queue_.begin()),
                              std::make_move_iterator(queue_.end()));
  queue_.clear();
  num_tokens_ = 0;
  return all;
}

void RequestQueue::MarkDone(int num_requests) {
  const std::lock_guard lock(mutex_);
  num_open_ -= num_requests;
  LSSAR_CHECK(num_open_ >= 0);
  if (num_open_ == 0) none_open_.notify_all();
}

}  // namespace lssar

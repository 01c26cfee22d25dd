#include "runtime/request_queue.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace lssar {

absl::Status DueStatus(const Submission& submission, Clock::time_point now) {
  if (submission.cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError("the request was cancelled");
  }
  if (submission.request.deadline && *submission.request.deadline <= now) {
    const auto age =
        std::chrono::duration_cast<std::chrono::milliseconds>(now - submission.submitted_at);
    return absl::DeadlineExceededError(
        absl::StrCat("the request's deadline passed; it is ", age.count(), " ms old"));
  }
  return absl::OkStatus();
}

absl::Status RequestQueue::Push(Submission submission) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (int(queue_.size()) >= max_queued_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue is full: ", queue_.size(),
                       " requests wait (max_queued_requests = ", max_queued_, ")"));
    }
    queue_.push_back(std::move(submission));
    ++num_open_;
  }
  work_.notify_one();
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

void RequestQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  work_.notify_one();
}

bool RequestQueue::IsClosed() const {
  const std::lock_guard lock(mutex_);
  return !closed_.ok();
}

int RequestQueue::NumQueued() const {
  const std::lock_guard lock(mutex_);
  return int(queue_.size());
}

bool RequestQueue::WaitForWork(bool is_running) {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [&] { return is_stopped_ || is_running || !queue_.empty(); });
  return !is_stopped_;
}

std::optional<Submission> RequestQueue::PopIf(
    const std::function<bool(const Request&)>& is_admissible) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || !is_admissible(queue_.front().request)) return std::nullopt;
  Submission submission = std::move(queue_.front());
  queue_.pop_front();
  return submission;
}

void RequestQueue::TakeDue(Clock::time_point now,
                           std::vector<std::pair<Submission, absl::Status>>* due) {
  const std::lock_guard lock(mutex_);
  std::erase_if(queue_, [&](Submission& submission) {
    absl::Status status = DueStatus(submission, now);
    if (status.ok()) return false;
    due->emplace_back(std::move(submission), std::move(status));
    return true;
  });
}

std::vector<Submission> RequestQueue::TakeAll() {
  const std::lock_guard lock(mutex_);
  std::vector<Submission> all(std::make_move_iterator(queue_.begin()),
                              std::make_move_iterator(queue_.end()));
  queue_.clear();
  return all;
}

void RequestQueue::MarkDone(int num_requests) {
  const std::lock_guard lock(mutex_);
  num_open_ -= num_requests;
  LSSAR_CHECK(num_open_ >= 0);
  if (num_open_ == 0) none_open_.notify_all();
}

}  // namespace lssar

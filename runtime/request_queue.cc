#include "runtime/request_queue.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/error_details.h"
#include "base/fair_share.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Prompt tokens of the request's longest sequence, at least one. More continuations of a score
// request do not make the others wait for longer: it yields to them
// (Scheduler::YieldAfterQuantum).
int64_t NumQueuedTokens(const Request& request) {
  return std::max(int64_t{1}, std::ssize(request.prompt) + LongestContinuation(request));
}

}  // namespace

absl::Status RequestQueue::Push(std::unique_ptr<SequenceGroup> group) {
  const int64_t num_tokens = NumQueuedTokens(group->request);
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(CheckCapacityLocked(group->tenant, num_tokens));
    if (group->tenant != watched_tenant_) others_came_ = true;
    Waiting& waiting = waiting_[group->tenant];
    const auto at =
        std::ranges::upper_bound(waiting.groups, group->EffectiveArrivalTime(), {},
                                 [](const auto& other) { return other->EffectiveArrivalTime(); });
    waiting.groups.insert(at, std::move(group));
    waiting.num_tokens += num_tokens;
    num_tokens_ += num_tokens;
    ++num_requests_;
    is_woken_ = true;
    ++num_open_;
  }
  work_.notify_one();
  return absl::OkStatus();
}

absl::Status RequestQueue::CheckCapacity(std::string_view tenant, const Request& request) const {
  const std::lock_guard lock(mutex_);
  return CheckCapacityLocked(tenant, NumQueuedTokens(request));
}

absl::Status RequestQueue::CheckCapacityLocked(std::string_view tenant, int64_t num_tokens) const {
  RETURN_IF_ERROR(closed_);
  const auto waiting = waiting_.find(tenant);
  if (waiting == waiting_.end()) return absl::OkStatus();
  const auto num_tenants = int64_t(waiting_.size());
  const int64_t own_requests = std::ssize(waiting->second.groups);
  if (!MayTake(1, own_requests, num_requests_, max_requests_, num_tenants)) {
    return LimitError(error_reason::kQueuedRequests,
                      StrCat("the queue is full: ", num_requests_,
                             " requests wait (max_queued_requests = ", max_requests_, "), ",
                             own_requests, " of this client"));
  }
  if (!MayTake(num_tokens, waiting->second.num_tokens, num_tokens_, max_tokens_, num_tenants)) {
    return LimitError(error_reason::kQueuedTokens,
                      StrCat("the queue is full: ", num_tokens_, " queued prompt tokens + ",
                             num_tokens, " of this request = ", num_tokens_ + num_tokens,
                             " (max_queued_tokens = ", max_tokens_, "), ",
                             waiting->second.num_tokens, " of this client"));
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
  return {.num_requests = num_requests_, .num_tokens = num_tokens_, .is_closed = !closed_.ok()};
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

const std::atomic<bool>* RequestQueue::WatchForOthers(const std::string& tenant) {
  const std::lock_guard lock(mutex_);
  watched_tenant_ = tenant;
  others_came_ =
      std::ranges::any_of(waiting_, [&](const auto& waiting) { return waiting.first != tenant; });
  return &others_came_;
}

Clock::time_point RequestQueue::NextDeadline() const {
  const std::lock_guard lock(mutex_);
  Clock::time_point earliest = Clock::time_point::max();
  for (const auto& [tenant, waiting] : waiting_) {
    for (const auto& group : waiting.groups) {
      if (group->request.deadline) earliest = std::min(earliest, *group->request.deadline);
    }
  }
  return earliest;
}

std::unique_ptr<SequenceGroup> RequestQueue::RemoveLocked(const std::string& tenant, size_t at) {
  const auto waiting = waiting_.find(tenant);
  auto& groups = waiting->second.groups;
  std::unique_ptr<SequenceGroup> group = std::move(groups[at]);
  groups.erase(groups.begin() + std::ptrdiff_t(at));
  const int64_t num_tokens = NumQueuedTokens(group->request);
  waiting->second.num_tokens -= num_tokens;
  num_tokens_ -= num_tokens;
  --num_requests_;
  if (groups.empty()) waiting_.erase(waiting);
  return group;
}

void RequestQueue::GetFirst(std::vector<const SequenceGroup*>* first) const {
  first->clear();
  const std::lock_guard lock(mutex_);
  for (const auto& [tenant, waiting] : waiting_) first->push_back(waiting.groups.front().get());
}

const SequenceGroup* RequestQueue::GetFirst(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto waiting = waiting_.find(tenant);
  return waiting == waiting_.end() ? nullptr : waiting->second.groups.front().get();
}

std::unique_ptr<SequenceGroup> RequestQueue::Pop(const SequenceGroup& group) {
  const std::lock_guard lock(mutex_);
  const auto waiting = waiting_.find(group.tenant);
  LSSAR_CHECK(waiting != waiting_.end());
  const auto& groups = waiting->second.groups;
  const auto at = std::ranges::find(groups, &group, &std::unique_ptr<SequenceGroup>::get);
  LSSAR_CHECK(at != groups.end());
  return RemoveLocked(std::string(group.tenant), size_t(at - groups.begin()));
}

void RequestQueue::TakeAborted(Clock::time_point now,
                               std::vector<std::unique_ptr<SequenceGroup>>* aborted) {
  const std::lock_guard lock(mutex_);
  for (auto waiting = waiting_.begin(); waiting != waiting_.end();) {
    const auto& [tenant, own] = *waiting++;  // the tenant's last request removes it
    for (size_t i = 0, num_left = own.groups.size(); num_left-- > 0;) {
      own.groups[i]->status = own.groups[i]->AbortStatus(now);
      if (own.groups[i]->status.ok()) {
        ++i;
      } else {
        aborted->push_back(RemoveLocked(tenant, i));
      }
    }
  }
}

void RequestQueue::TakeAll(const absl::Status& status,
                           std::vector<std::unique_ptr<SequenceGroup>>* aborted) {
  const std::lock_guard lock(mutex_);
  for (auto& [tenant, waiting] : waiting_) {
    for (auto& group : waiting.groups) {
      group->status = status;
      aborted->push_back(std::move(group));
    }
  }
  waiting_.clear();
  num_tokens_ = num_requests_ = 0;
}

void RequestQueue::MarkDone(int num_requests) {
  const std::lock_guard lock(mutex_);
  num_open_ -= num_requests;
  LSSAR_CHECK(num_open_ >= 0);
  if (num_open_ == 0) none_open_.notify_all();
}

}  // namespace lssar

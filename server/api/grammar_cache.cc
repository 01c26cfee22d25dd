#include "server/api/grammar_cache.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/error_details.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// A call that waits asks so often whether it is still wanted.
constexpr std::chrono::milliseconds kPollInterval{20};
// Memory of an entry besides its text, twice, and its grammar.
constexpr int64_t kEntryBytes = 512;
// Tenants whose last turns are remembered. They may be client addresses, of which there are many.
constexpr size_t kMaxRemembered = 4096;

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCache::Get(
    const GrammarSource& source, const std::function<bool()>& should_stop,
    const std::string& tenant, WorkerPool* workers) {
  Key key(source.kind, source.text);
  std::unique_lock lock(mutex_);
  if (const Result* result = Find(key)) return *result;
  if (compiling_.contains(key) || IsFull() || !waiters_.empty()) {
    const bool has_waiter = std::ranges::any_of(
        waiters_, [&](const Waiter& waiter) { return waiter.tenant == tenant; });
    if (std::ssize(waiters_) >= (has_waiter ? kMaxGrammarWaits : kMaxFirstGrammarWaits)) {
      return RetryAfter(
          error_reason::kConstraints, kMaxGrammarWait,
          StrCat(waiters_.size(), " requests wait for constraints that are compiled; try again"));
    }
    const WorkerPool::Wait wait(workers);
    const auto self = waiters_.insert(waiters_.end(), {.key = key, .tenant = tenant});
    const std::optional<Result> result = WaitFor(*self, should_stop, lock);
    waiters_.erase(self);
    if (result) return *result;
  }
  Evict();
  if (num_bytes_ > max_bytes_) {
    return RetryAfter(error_reason::kConstraints, kMaxGrammarWait,
                      StrCat("the constraints of running requests have ", num_bytes_,
                             " bytes; they may have ", max_bytes_, "; try again"));
  }
  const auto compilation = std::make_shared<Compilation>();
  compiling_.emplace(key, compilation);
  if (waiters_.empty() || last_turns_.size() >= kMaxRemembered) last_turns_.clear();
  last_turns_[tenant] = ++num_turns_;
  if (compiler_ == nullptr) {
    compiler_ = std::make_unique<GrammarCompiler>(
        *checkpoint_.tokenizer, checkpoint_.config.NumTokenIds(), checkpoint_.config.EosIds());
  }
  lock.unlock();
  const Result result = compiler_->Compile(source, [&] {
    if (!should_stop()) return false;
    const std::lock_guard waiting_lock(mutex_);
    return compilation->num_waiting == 0;
  });
  lock.lock();
  compiling_.erase(key);
  const bool is_stopped = absl::IsCancelled(result.status());
  // Those that have come since it was stopped compile it themselves.
  if (!is_stopped) compilation->result = result;
  // Another time the machine may be less busy.
  const bool is_final = !is_stopped && !absl::IsDeadlineExceeded(result.status());
  if (is_final) Insert(std::move(key), result);
  changed_.notify_all();
  return result;
}

bool GrammarCache::IsFirstOfTenant(const Waiter& self) const {
  for (const Waiter& waiter : waiters_) {
    if (&waiter == &self) break;
    if (waiter.tenant == self.tenant && !compiling_.contains(waiter.key)) return false;
  }
  return true;
}

bool GrammarCache::IsNext(const Waiter& self) const {
  const auto last_turn = [this](const Waiter& waiter) {
    const auto found = last_turns_.find(waiter.tenant);
    return found == last_turns_.end() ? 0 : found->second;
  };
  const Waiter* next = nullptr;
  for (const Waiter& waiter : waiters_) {
    if (compiling_.contains(waiter.key)) continue;
    if (next == nullptr || last_turn(waiter) < last_turn(*next)) next = &waiter;
  }
  return next == &self;
}

std::optional<GrammarCache::Result> GrammarCache::WaitFor(const Waiter& self,
                                                          const std::function<bool()>& should_stop,
                                                          std::unique_lock<std::mutex>& lock) {
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const auto other = compiling_.find(self.key);
    const Awaited awaited = other == compiling_.end() ? nullptr : other->second;
    if (awaited == nullptr && !IsFull() && IsNext(self)) return std::nullopt;
    const auto limit = IsFirstOfTenant(self) ? kMaxGrammarTurn : kMaxGrammarWait;
    if (awaited == nullptr && Clock::now() - begin >= limit) {
      return RetryAfter(
          error_reason::kConstraints, kMaxGrammarWait,
          StrCat(compiling_.size(), " other constraints are being compiled; try again"));
    }
    if (awaited != nullptr) ++awaited->num_waiting;
    changed_.wait_for(lock, kPollInterval);
    lock.unlock();
    const bool is_stopped = should_stop();
    lock.lock();
    if (awaited != nullptr) --awaited->num_waiting;
    if (awaited != nullptr && awaited->result) return *awaited->result;
    if (const Result* result = Find(self.key)) return *result;
    if (is_stopped) return absl::CancelledError("the call has ended");
  }
}

const GrammarCache::Result* GrammarCache::Find(const Key& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return &found->second->result;
}

void GrammarCache::Insert(Key key, const Result& result) {
  const int64_t num_bytes =
      kEntryBytes + 2 * std::ssize(key.second) + (result.ok() ? (*result)->NumBytes() : int64_t{0});
  entries_.push_front({.key = key, .result = result, .num_bytes = num_bytes});
  by_key_.emplace(std::move(key), entries_.begin());
  num_bytes_ += num_bytes;
  Evict();
}

void GrammarCache::Evict() {
  for (auto at = entries_.end(); num_bytes_ > max_bytes_ && at != entries_.begin();) {
    --at;
    if (at->result.ok() && at->result->use_count() > 1) continue;
    num_bytes_ -= at->num_bytes;
    by_key_.erase(at->key);
    at = entries_.erase(at);
  }
}

}  // namespace lssar

#include "server/auth/key_usage.h"

#include <algorithm>
#include <chrono>
#include <ratio>

#include "base/error_details.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// Time in which `amount` refills.
Clock::duration TimeFor(int64_t amount, int64_t per_minute) {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  return std::chrono::round<Clock::duration>(Minutes(double(amount) / double(per_minute)));
}

// What a bucket must hold for `amount`, which is at most `per_minute`: half a minute's worth stays
// for clients.
int64_t Needed(int64_t amount, int64_t per_minute, CallSource source) {
  return source == CallSource::kClient ? amount : std::min(amount + per_minute / 2, per_minute);
}

}  // namespace

TokenReservation TokenBucket::Take(int64_t amount, Clock::time_point now) {
  if (per_minute_ == 0) return {};
  full_at_ = std::max(full_at_, now) + TimeFor(amount, per_minute_);
  return {.num_tokens = amount, .per_minute = per_minute_};
}

void TokenBucket::Return(const TokenReservation& taken) {
  if (taken.per_minute > 0) full_at_ -= TimeFor(taken.num_tokens, taken.per_minute);
}

Clock::duration TokenBucket::TimeUntil(int64_t amount, Clock::time_point now) const {
  if (per_minute_ == 0) return Clock::duration::zero();
  const Clock::duration full_in = std::max(full_at_, now) + TimeFor(amount, per_minute_) - now;
  return std::max(full_in - Clock::duration(std::chrono::minutes(1)), Clock::duration::zero());
}

RequestLease& RequestLease::operator=(RequestLease&& other) noexcept {
  if (this == &other) return *this;
  End();
  client_ = std::move(other.client_);
  num_sequences_ = other.num_sequences_;
  source_ = other.source_;
  is_waiting_ = other.is_waiting_;
  return *this;
}

void RequestLease::EndWait() {
  if (client_ != nullptr && std::exchange(is_waiting_, false)) client_->EndWait(source_);
}

void RequestLease::End() {
  if (const auto client = std::exchange(client_, nullptr)) {
    client->RemoveRequest(num_sequences_, is_waiting_, source_);
  }
}

std::string KeyUsage::Description() const { return StrCat(is_key_ ? "key " : "client ", name_); }

absl::StatusOr<RequestLease> KeyUsage::AddRequest(int num_sequences, int priority,
                                                  CallSource source) {
  const std::lock_guard lock(mutex_);
  Load& load = LoadOf(source);
  const ClientLimits& limits = client_limits_;
  if (priority > limits.max_priority) {
    // Over HTTP, as in vLLM, the lowest runs first.
    return absl::PermissionDeniedError(StrCat("priority = ", priority, " (over HTTP ", -priority,
                                              ") is over max-priority = ", limits.max_priority,
                                              " of ", Description()));
  }
  if (limits.max_sequences > 0 && num_sequences > limits.max_sequences) {
    return absl::PermissionDeniedError(StrCat("n = ", num_sequences, " is over max-sequences = ",
                                              limits.max_sequences, " of ", Description()));
  }
  if (limits.max_sequences > 0 && load.num_sequences + num_sequences > limits.max_sequences) {
    return LimitError(
        error_reason::kMaxSequences,
        StrCat("n = ", num_sequences, " sequences and the ", load.num_sequences, " of ",
               Description(), "'s other requests are ", load.num_sequences + num_sequences,
               ", over its max-sequences = ", limits.max_sequences));
  }
  if (limits.max_queued > 0 && load.num_waiting >= limits.max_queued) {
    return LimitError(error_reason::kMaxQueued,
                      StrCat(Description(), " has ", load.num_waiting,
                             " waiting requests (max-queued = ", limits.max_queued, ")"));
  }
  load.num_sequences += num_sequences;
  ++load.num_waiting;
  return RequestLease(shared_from_this(), num_sequences, source);
}

void KeyUsage::EndWait(CallSource source) {
  const std::lock_guard lock(mutex_);
  --LoadOf(source).num_waiting;
}

void KeyUsage::RemoveRequest(int num_sequences, bool is_waiting, CallSource source) {
  const std::lock_guard lock(mutex_);
  LoadOf(source).num_sequences -= num_sequences;
  LoadOf(source).num_waiting -= is_waiting ? 1 : 0;
}

absl::StatusOr<TokenReservation> KeyUsage::ReserveTokens(int64_t num_tokens, Clock::time_point now,
                                                         CallSource source) {
  const std::lock_guard lock(mutex_);
  const int64_t limit = limits_.tokens_per_minute;
  if (limit == 0) return TokenReservation();
  const std::string sentence =
      StrCat("the request may use ", num_tokens, " tokens (prompts + n x max_tokens)");
  if (num_tokens > limit) {
    return NeverRetry(error_reason::kTokensPerMinute, StrCat(sentence, ", and ", Description(),
                                                             " has tokens-per-minute = ", limit));
  }
  const Clock::duration wait = tokens_.TimeUntil(Needed(num_tokens, limit, source), now);
  if (wait > Clock::duration::zero()) {
    return RetryAfter(error_reason::kTokensPerMinute, wait,
                      StrCat(sentence, ", more than is left of tokens-per-minute = ", limit, " of ",
                             Description()));
  }
  return tokens_.Take(num_tokens, now);
}

void KeyUsage::RefundTokens(const TokenReservation& unused) {
  const std::lock_guard lock(mutex_);
  tokens_.Return(unused);
}

void KeyUsage::SetLimits(const KeyLimits& limits, const ClientLimits& defaults) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  client_limits_ = {.max_sequences = limits.max_sequences.value_or(defaults.max_sequences),
                    .max_queued = limits.max_queued.value_or(defaults.max_queued),
                    .max_priority = limits.max_priority.value_or(defaults.max_priority)};
  requests_.SetRate(limits.requests_per_minute);
  tokens_.SetRate(limits.tokens_per_minute);
}

KeyCounts KeyUsage::Counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void KeyUsage::CountRejection() {
  const std::lock_guard lock(mutex_);
  ++counts_.num_refused;
}

void KeyUsage::ReturnRequest() {
  const std::lock_guard lock(mutex_);
  requests_.Return({.num_tokens = 1, .per_minute = limits_.requests_per_minute});
}

void KeyUsage::CountRow() {
  const std::lock_guard lock(mutex_);
  ++counts_.num_calls;
}

absl::Status KeyUsage::Acquire(Clock::time_point now, CallSource source) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = CheckLimits(now, source); !status.ok()) {
    if (source == CallSource::kClient) ++counts_.num_refused;  // a row waits and begins again
    return status;
  }
  requests_.Take(1, now);
  ++LoadOf(source).num_running;
  if (source == CallSource::kClient) ++counts_.num_calls;
  return absl::OkStatus();
}

absl::Status KeyUsage::CheckLimits(Clock::time_point now, CallSource source) const {
  const int num_running = loads_[int(source)].num_running;
  if (limits_.max_concurrent > 0 && num_running >= limits_.max_concurrent) {
    return LimitError(error_reason::kMaxConcurrent,
                      StrCat("key ", name_, " has ", num_running,
                             " running calls (max-concurrent = ", limits_.max_concurrent, ")"));
  }
  if (const Clock::duration wait =
          requests_.TimeUntil(Needed(1, limits_.requests_per_minute, source), now);
      wait > Clock::duration::zero()) {
    return RetryAfter(error_reason::kRequestsPerMinute, wait,
                      StrCat("key ", name_, " has used up its requests-per-minute = ",
                             limits_.requests_per_minute));
  }
  if (const Clock::duration wait =
          tokens_.TimeUntil(Needed(1, limits_.tokens_per_minute, source), now);
      wait > Clock::duration::zero()) {
    return RetryAfter(
        error_reason::kTokensPerMinute, wait,
        StrCat("key ", name_, " has used up its tokens-per-minute = ", limits_.tokens_per_minute));
  }
  return absl::OkStatus();
}

void KeyUsage::Release(CallSource source) {
  const std::lock_guard lock(mutex_);
  --LoadOf(source).num_running;
}

void KeyUsage::CountTokens(int64_t num_tokens, int64_t num_unreserved, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (num_unreserved > 0) tokens_.Take(num_unreserved, now);
  counts_.num_tokens += num_tokens;
}

}  // namespace lssar

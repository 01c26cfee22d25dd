#include "server/key_usage.h"

#include <algorithm>

#include "kernels/str_cat.h"
#include "server/grpc_status.h"

namespace lssar {

Clock::duration TokenBucket::TimeFor(int64_t amount) const {
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  return std::chrono::round<Clock::duration>(
      Minutes(static_cast<double>(amount) / static_cast<double>(per_minute_)));
}

void TokenBucket::Take(int64_t amount, Clock::time_point now) {
  if (per_minute_ > 0) full_at_ = std::max(full_at_, now) + TimeFor(amount);
}

Clock::duration TokenBucket::TimeUntil(int64_t amount, Clock::time_point now) const {
  if (per_minute_ == 0) return Clock::duration::zero();
  const Clock::duration full_in = std::max(full_at_, now) + TimeFor(amount) - now;
  return std::max(full_in - Clock::duration(std::chrono::minutes(1)), Clock::duration::zero());
}

void KeyUsage::SetLimits(const KeyLimits& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
  requests_.SetRate(limits.requests_per_minute);
  tokens_.SetRate(limits.tokens_per_minute);
}

absl::Status KeyUsage::Enter(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (limits_.max_concurrent > 0 && num_inside_ >= limits_.max_concurrent) {
    return absl::ResourceExhaustedError(
        StrCat("key ", name_, " has ", num_inside_,
               " calls running (max-concurrent = ", limits_.max_concurrent, ")"));
  }
  if (const Clock::duration wait = requests_.TimeUntil(1, now); wait > Clock::duration::zero()) {
    return ExhaustedFor(wait, StrCat("key ", name_, " has used up its requests-per-minute = ",
                                     limits_.requests_per_minute));
  }
  if (const Clock::duration wait = tokens_.TimeUntil(1, now); wait > Clock::duration::zero()) {
    return ExhaustedFor(
        wait,
        StrCat("key ", name_, " has used up its tokens-per-minute = ", limits_.tokens_per_minute));
  }
  requests_.Take(1, now);
  ++num_inside_;
  return absl::OkStatus();
}

void KeyUsage::Leave() {
  const std::lock_guard lock(mutex_);
  --num_inside_;
}

void KeyUsage::CountTokens(int64_t num_tokens, Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  tokens_.Take(num_tokens, now);
}

}  // namespace lssar

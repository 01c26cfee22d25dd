// What one API key has under way and has used up of its minute.
#ifndef LSSAR_SERVER_KEY_USAGE_H_
#define LSSAR_SERVER_KEY_USAGE_H_

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "runtime/request.h"
#include "server/api_keys.h"

namespace lssar {

// Holds a minute's worth of something, is full at first, and fills at a steady rate. What is taken
// beyond its content is a debt that flows back first.
class TokenBucket {
 public:
  // 0: whatever is taken, nothing runs short. What was taken before counts, as time to fill again.
  void SetRate(int64_t per_minute) { per_minute_ = per_minute; }
  void Take(int64_t amount, Clock::time_point now);
  // Zero: there is `amount`, at most the rate, now; else how long until there is.
  Clock::duration TimeUntil(int64_t amount, Clock::time_point now) const;

 private:
  // In which `amount` flows back.
  Clock::duration TimeFor(int64_t amount) const;

  int64_t per_minute_ = 0;
  Clock::time_point full_at_ = {};
};

// Threads  any
class KeyUsage {
 public:
  explicit KeyUsage(std::string name) : name_(std::move(name)) {}
  const std::string& Name() const { return name_; }

  // The limits in force from now on; what was used before counts.
  void SetLimits(const KeyLimits& limits);

  // One more call is inside, until Leave.
  // Errors  RESOURCE_EXHAUSTED: names the limit; carries the time after which to try again
  absl::Status Enter(Clock::time_point now);
  void Leave();

  // Tokens are counted as they come: a call that is inside is never cut, but the next one waits
  // until they are paid for.
  void CountTokens(int64_t num_tokens, Clock::time_point now);

 private:
  const std::string name_;
  std::mutex mutex_;
  KeyLimits limits_;
  int num_inside_ = 0;
  TokenBucket requests_, tokens_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_KEY_USAGE_H_

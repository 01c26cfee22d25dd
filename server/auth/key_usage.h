// What one client uses of its limits: an API key, or an address where there are no keys.
#ifndef LSSAR_SERVER_AUTH_KEY_USAGE_H_
#define LSSAR_SERVER_AUTH_KEY_USAGE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/auth/api_keys.h"

namespace lssar {

// What was taken from a bucket, and the rate at which it refills: a refund lasts as long as what it
// gives back, whatever the rate is by then.
struct TokenReservation {
  int64_t num_tokens = 0;
  int64_t per_minute = 0;  // 0: there was no limit, so nothing was taken
};

// A token bucket that holds one minute's worth, starts full and refills at a steady rate. Taking
// more than it holds leaves a debt that refills first.
class TokenBucket {
 public:
  // 0: unlimited. What was taken before stays taken; the time to refill it does not change.
  void SetRate(int64_t per_minute) { per_minute_ = per_minute; }
  TokenReservation Take(int64_t amount, Clock::time_point now);
  // Gives back what was taken, or a part of it.
  void Return(const TokenReservation& taken);
  // Time until the bucket holds `amount`, which is at most the rate; zero if it does now.
  Clock::duration TimeUntil(int64_t amount, Clock::time_point now) const;

 private:
  int64_t per_minute_ = 0;
  Clock::time_point full_at_ = {};
};

// The counts of one key, since the server's start.
struct KeyCounts {
  int64_t num_calls = 0, num_refused = 0;  // admitted; refused by a limit of the key or the queue
  int64_t num_tokens = 0;                  // prompt and output
};

class KeyUsage;

// Who has made a call: a client, or a batch of the client. Each may have as many running calls,
// sequences and waiting requests as the limits allow; the rates are for both together, and rows of
// batches take only from the upper half of what a minute allows. So a batch that runs for days
// never keeps its owner from asking for its state, from ending it, or from working beside it.
enum class CallSource : uint8_t { kClient, kBatch };

// One request in the engine, which counts against the limits of its client until it is destroyed.
class RequestLease {
 public:
  RequestLease() = default;  // of no client
  RequestLease(std::shared_ptr<KeyUsage> client, int num_sequences, CallSource source)
      : client_(std::move(client)), num_sequences_(num_sequences), source_(source) {}
  RequestLease(RequestLease&& other) noexcept { *this = std::move(other); }
  RequestLease& operator=(RequestLease&& other) noexcept;
  ~RequestLease() { End(); }

  // The request was admitted.
  void EndWait();

 private:
  void End();

  std::shared_ptr<KeyUsage> client_;
  int num_sequences_ = 0;
  CallSource source_ = CallSource::kClient;
  bool is_waiting_ = true;
};

// The running calls of one key and its use of the per-minute limits; or those of one client
// address, where there are no keys.
//
// Threads  any
class KeyUsage : public std::enable_shared_from_this<KeyUsage> {
 public:
  explicit KeyUsage(std::string name, bool is_key = true)
      : name_(std::move(name)), is_key_(is_key) {}
  const std::string& Name() const { return name_; }
  bool IsKey() const { return is_key_; }

  // Applies from now on; past use still counts. `defaults`: for those that are not set.
  void SetLimits(const KeyLimits& limits, const ClientLimits& defaults = {});
  void SetRole(KeyRole role) { is_admin_ = role == KeyRole::kAdmin; }
  bool IsAdmin() const { return is_admin_; }

  KeyCounts Counts() const;
  // An admitted call of a client was refused later.
  void CountRejection();
  // An admitted row of a batch was refused later, and begins again: it was no request so far.
  void ReturnRequest();
  // An admitted row of a batch was not refused later: only now it is one admitted call, because the
  // counts never fall.
  void CountRow();

  // Counts one more running call, until Release with the same source.
  // Errors  RESOURCE_EXHAUSTED: names the limit; carries the retry delay
  absl::Status Acquire(Clock::time_point now, CallSource source = CallSource::kClient);
  void Release(CallSource source = CallSource::kClient);

  // Counts a request of the engine until the lease ends.
  // Errors  PERMISSION_DENIED: over a ceiling, so that no retry can pass; RESOURCE_EXHAUSTED: over
  //         what the client's other requests leave. Both name the field, its value and the limit.
  absl::StatusOr<RequestLease> AddRequest(int num_sequences, int priority,
                                          CallSource source = CallSource::kClient);

  // Takes the tokens that a call may use, before it uses any; none if the key has no limit now.
  // RefundTokens gives back those that it has not used.
  // Errors  RESOURCE_EXHAUSTED: names the limit; carries the retry delay, except for more than
  //         tokens-per-minute, which never fit
  absl::StatusOr<TokenReservation> ReserveTokens(int64_t num_tokens, Clock::time_point now,
                                                 CallSource source = CallSource::kClient);
  void RefundTokens(const TokenReservation& unused);
  // Counts tokens, and charges those of them that were not reserved. A running call is never
  // stopped for its tokens; the next call waits until the debt has refilled.
  void CountTokens(int64_t num_tokens, int64_t num_unreserved, Clock::time_point now);

 private:
  // What is there now, by CallSource.
  struct Load {
    int num_running = 0;    // calls
    int num_sequences = 0;  // of requests in the engine
    int num_waiting = 0;    // of these, requests that wait
  };
  // Under the lock.
  absl::Status CheckLimits(Clock::time_point now, CallSource source) const;
  Load& LoadOf(CallSource source) { return loads_[int(source)]; }

  friend class RequestLease;
  // "key alice", "client 192.0.2.1".
  std::string Description() const;
  void EndWait(CallSource source);
  void RemoveRequest(int num_sequences, bool is_waiting, CallSource source);

  const std::string name_;
  const bool is_key_;
  std::atomic<bool> is_admin_ = false;
  mutable std::mutex mutex_;
  KeyCounts counts_;
  KeyLimits limits_;
  ClientLimits client_limits_;
  std::array<Load, 2> loads_;
  TokenBucket requests_, tokens_;
};

// A client: the usage record of its key, or of its address (OfAddress); null: neither.
using Caller = std::shared_ptr<KeyUsage>;
// Its key has role admin, or the server has no keys.
inline bool SeesAll(const Caller& caller) {
  return caller == nullptr || !caller->IsKey() || caller->IsAdmin();
}

}  // namespace lssar

#endif  // LSSAR_SERVER_AUTH_KEY_USAGE_H_

// Counts the connections of one port, in total and per client address, and refuses further ones.
#ifndef LSSAR_SERVER_NET_CONNECTION_LIMITER_H_
#define LSSAR_SERVER_NET_CONNECTION_LIMITER_H_

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "server/net/port_metrics.h"

namespace lssar {

class ConnectionLimiter;

// The right of one connection to be open. Destroying it frees its place.
class ConnectionSlot {
 public:
  ConnectionSlot() = default;
  ConnectionSlot(ConnectionSlot&&) noexcept = default;
  ConnectionSlot& operator=(ConnectionSlot&& other) noexcept;
  ~ConnectionSlot();

  // The address that the limits count by; empty: no slot.
  const std::string& Address() const { return address_; }

 private:
  friend class ConnectionLimiter;
  ConnectionSlot(std::shared_ptr<ConnectionLimiter> limiter, std::string address)
      : limiter_(std::move(limiter)), address_(std::move(address)) {}

  std::shared_ptr<ConnectionLimiter> limiter_;
  std::string address_;
};

// Threads  any
class ConnectionLimiter : public std::enable_shared_from_this<ConnectionLimiter> {
 public:
  struct Options {
    int max_connections = 0;
    // Zero: no limit, for a port behind a proxy, where all connections come from one address. In
    // any case the last sixteenth of max_connections is kept for addresses without a connection, so
    // that a few addresses cannot shut out a health probe.
    int max_connections_per_address = 0;
    PortMetrics* metrics = nullptr;  // outlives the slots; null: nothing is counted
  };
  // Requires  held by a shared_ptr: the slots share it
  explicit ConnectionLimiter(const Options& options) : options_(options) {}

  // The slot of a new connection, or the reason to refuse it.
  std::optional<Rejection> Check(const std::string& address, Clock::time_point now) const;
  // Requires  Check returned nullopt, and no other thread adds
  ConnectionSlot Add(std::string address);

  // Reports a violation by `address`. The third within ten seconds blocks the address for ten
  // seconds, unless addresses are not limited.
  void OnViolation(const std::string& address, Clock::time_point now);

  // Whether an address stands for one client, so that its connections are limited.
  bool LimitsAddresses() const { return options_.max_connections_per_address > 0; }

 private:
  friend class ConnectionSlot;
  void Remove(const std::string& address);

  struct Peer {
    int num_violations = 0;
    Clock::time_point forgotten_at, blocked_until;
  };

  const Options options_;
  mutable std::mutex mutex_;
  int num_connections_ = 0;
  std::unordered_map<std::string, int> num_by_address_;
  std::unordered_map<std::string, Peer> peers_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_CONNECTION_LIMITER_H_

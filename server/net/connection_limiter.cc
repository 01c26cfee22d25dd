#include "server/net/connection_limiter.h"

#include <chrono>
#include <utility>

namespace lssar {
namespace {

constexpr int kMaxViolations = 3;
constexpr auto kMemoryTime = std::chrono::seconds(10);
constexpr auto kBlockTime = std::chrono::seconds(10);

}  // namespace

ConnectionSlot& ConnectionSlot::operator=(ConnectionSlot&& other) noexcept {
  std::swap(limiter_, other.limiter_);
  std::swap(address_, other.address_);
  return *this;
}

ConnectionSlot::~ConnectionSlot() {
  if (limiter_ != nullptr) limiter_->Remove(address_);
}

std::optional<Rejection> ConnectionLimiter::Check(const std::string& address,
                                                  Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  const auto peer = peers_.find(address);
  if (peer != peers_.end() && now < peer->second.blocked_until) {
    return Rejection::kBlocked;
  }
  const auto found = num_by_address_.find(address);
  const int num_of_address = found == num_by_address_.end() ? 0 : found->second;
  int max_connections = options_.max_connections;
  if (LimitsAddresses() && num_of_address >= options_.max_connections_per_address) {
    return Rejection::kMaxConnectionsPerAddress;
  }
  if (num_of_address > 0) max_connections -= max_connections / 16;
  if (num_connections_ >= max_connections) return Rejection::kMaxConnections;
  return std::nullopt;
}

ConnectionSlot ConnectionLimiter::Add(std::string address) {
  {
    const std::lock_guard lock(mutex_);
    ++num_connections_;
    ++num_by_address_[address];
  }
  if (options_.metrics != nullptr) options_.metrics->OnOpened();
  return {shared_from_this(), std::move(address)};
}

void ConnectionLimiter::Remove(const std::string& address) {
  {
    const std::lock_guard lock(mutex_);
    --num_connections_;
    const auto found = num_by_address_.find(address);
    if (--found->second == 0) num_by_address_.erase(found);
  }
  if (options_.metrics != nullptr) options_.metrics->OnEnded();
}

void ConnectionLimiter::OnViolation(const std::string& address, Clock::time_point now) {
  if (!LimitsAddresses()) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(peers_, [now](const auto& entry) {
    return entry.second.forgotten_at < now && entry.second.blocked_until < now;
  });
  Peer& peer = peers_[address];
  peer.forgotten_at = now + kMemoryTime;
  if (++peer.num_violations >= kMaxViolations) peer.blocked_until = now + kBlockTime;
}

}  // namespace lssar

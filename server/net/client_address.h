// Who sends a call: the connection's client, or the one that a trusted proxy names.
#ifndef LSSAR_SERVER_NET_CLIENT_ADDRESS_H_
#define LSSAR_SERVER_NET_CLIENT_ADDRESS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

struct ClientAddress {
  std::string text;     // for the log: "192.0.2.1", "2001:db8::1", "unix"
  std::string limited;  // what limits and shares count by: PeerAddress::limited
};

// --trusted-proxies: whose X-Forwarded-For is believed.
class TrustedProxies {
 public:
  // None: every call comes from the connection's client.
  TrustedProxies() = default;

  // Addresses and networks, separated by commas: "192.0.2.1, 10.0.0.0/8, 2001:db8::/32"; "unix":
  // the clients of a Unix socket.
  // Errors  INVALID_ARGUMENT: says what it must be
  static absl::StatusOr<TrustedProxies> Parse(std::string_view list);

  // `peer`: PeerAddress::uri. `forwarded_for`: the values of the header x-forwarded-for in order,
  // with commas between them. Each proxy appends the address that it has seen, so the client is
  // the last one that is not a trusted proxy.
  ClientAddress Find(std::string_view peer, std::string_view forwarded_for) const;

 private:
  // IPv6; an IPv4 address is mapped into it.
  using Ip = std::array<uint8_t, 16>;
  struct Network {
    Ip ip = {};
    int num_bits = 0;
  };

  static bool ParseIp(std::string_view text, Ip* ip);
  bool Contains(const Ip& ip) const;
  static ClientAddress Describe(const Ip& ip);

  std::vector<Network> networks_;
  bool trusts_unix_ = false;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_CLIENT_ADDRESS_H_

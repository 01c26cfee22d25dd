#include "server/net/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kMappedPrefixBytes = 12;

PeerAddress FromIpv4(const in_addr& address, int port) {
  std::array<char, INET_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET, &address, text.data(), text.size());
  return {.limited = text.data(), .uri = StrCat("ipv4:", text.data(), ":", port)};
}

}  // namespace

PeerAddress ToPeerAddress(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4 = {};
    std::memcpy(&ipv4, &address, sizeof(ipv4));
    return FromIpv4(ipv4.sin_addr, ntohs(ipv4.sin_port));
  }
  if (address.ss_family != AF_INET6) return {.limited = "other", .uri = "other"};
  sockaddr_in6 ipv6 = {};
  std::memcpy(&ipv6, &address, sizeof(ipv6));
  const int port = ntohs(ipv6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&ipv6.sin6_addr)) {
    in_addr ipv4 = {};
    std::memcpy(&ipv4, ipv6.sin6_addr.s6_addr + kMappedPrefixBytes, sizeof(ipv4));
    return FromIpv4(ipv4, port);
  }
  std::array<char, INET6_ADDRSTRLEN> text = {};
  inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
  PeerAddress peer;
  peer.uri = StrCat("ipv6:%5B", text.data(), "%5D:", port);
  std::fill_n(ipv6.sin6_addr.s6_addr + 8, 8, uint8_t{0});
  inet_ntop(AF_INET6, &ipv6.sin6_addr, text.data(), text.size());
  peer.limited = StrCat(text.data(), "/64");
  return peer;
}

}  // namespace lssar

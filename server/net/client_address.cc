#include "server/net/client_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/ascii.h"
#include "base/quote.h"
#include "base/str_cat.h"
#include "server/net/peer_address.h"

namespace lssar {
namespace {

constexpr std::string_view kUnix = "unix";
constexpr int kMappedBits = 96;  // of an IPv4 address that is mapped into IPv6

// "192.0.2.1:50000" and "[2001:db8::1]:50000" without the port.
std::string_view WithoutPort(std::string_view text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  const size_t colon = text.find(':');
  return colon != text.npos && colon == text.rfind(':') ? text.substr(0, colon) : text;
}

// The address of "ipv4:192.0.2.1:50000" or "ipv6:%5B2001:db8::1%5D:50000"; empty: another kind.
std::string_view AddressOfPeer(std::string_view peer) {
  constexpr std::string_view kIpv4 = "ipv4:", kIpv6 = "ipv6:", kOpen = "%5B", kClose = "%5D";
  if (peer.starts_with(kIpv4)) return WithoutPort(peer.substr(kIpv4.size()));
  if (!peer.starts_with(kIpv6)) return {};
  peer.remove_prefix(kIpv6.size());
  if (!peer.starts_with(kOpen)) return WithoutPort(peer);
  peer.remove_prefix(kOpen.size());
  return peer.substr(0, peer.find(kClose));
}

}  // namespace

bool TrustedProxies::ParseIp(std::string_view text, Ip* ip) {
  const std::string address(text);
  in_addr ipv4 = {};
  if (inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    *ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(ip->data() + kMappedBits / 8, &ipv4, sizeof(ipv4));
    return true;
  }
  in6_addr ipv6 = {};
  if (inet_pton(AF_INET6, address.c_str(), &ipv6) != 1) return false;
  std::memcpy(ip->data(), &ipv6, sizeof(ipv6));
  return true;
}

absl::StatusOr<TrustedProxies> TrustedProxies::Parse(std::string_view list) {
  TrustedProxies proxies;
  const std::vector<std::string> entries =
      absl::StrSplit(absl::string_view(list.data(), list.size()), ',');
  for (const std::string& part : entries) {
    const std::string_view entry = Trim(part);
    if (entry == kUnix) {
      proxies.trusts_unix_ = true;
      continue;
    }
    const size_t slash = entry.find('/');
    const std::string_view address = entry.substr(0, slash);
    Network network;
    const bool is_ip = ParseIp(address, &network.ip);
    const int first_bit = address.find(':') == address.npos ? kMappedBits : 0;
    const int max_bits = 128 - first_bit;
    int num_bits = max_bits;
    if (!is_ip || (slash != entry.npos &&
                   (!absl::SimpleAtoi(std::string(entry.substr(slash + 1)), &num_bits) ||
                    num_bits < 0 || num_bits > max_bits))) {
      return absl::InvalidArgumentError(
          StrCat(Quote(entry),
                 " is neither an IP address nor a network such as 10.0.0.0/8 or 2001:db8::/32, "
                 "nor unix; put commas between them"));
    }
    network.num_bits = first_bit + num_bits;
    proxies.networks_.push_back(network);
  }
  return proxies;
}

bool TrustedProxies::Contains(const Ip& ip) const {
  return std::ranges::any_of(networks_, [&](const Network& network) {
    for (int bit = 0; bit < network.num_bits; ++bit) {
      const auto mask = uint8_t(0x80 >> (bit % 8));
      if (((ip[size_t(bit / 8)] ^ network.ip[size_t(bit / 8)]) & mask) != 0) return false;
    }
    return true;
  });
}

ClientAddress TrustedProxies::Describe(const Ip& ip) {
  sockaddr_in6 ipv6 = {};
  ipv6.sin6_family = AF_INET6;
  std::memcpy(&ipv6.sin6_addr, ip.data(), ip.size());
  sockaddr_storage address = {};
  std::memcpy(&address, &ipv6, sizeof(ipv6));
  const PeerAddress peer = ToPeerAddress(address);
  return {.text = std::string(AddressOfPeer(peer.uri)), .limited = peer.limited};
}

ClientAddress TrustedProxies::Find(std::string_view peer, std::string_view forwarded_for) const {
  Ip ip = {};
  ClientAddress client = {.text = std::string(kUnix), .limited = std::string(kUnix)};
  bool is_trusted = trusts_unix_;
  if (ParseIp(AddressOfPeer(peer), &ip)) {
    client = Describe(ip);
    is_trusted = Contains(ip);
  }
  while (is_trusted && !forwarded_for.empty()) {
    const size_t comma = forwarded_for.rfind(',');
    const size_t begin = comma == forwarded_for.npos ? 0 : comma + 1;
    if (!ParseIp(WithoutPort(Trim(forwarded_for.substr(begin))), &ip)) break;
    client = Describe(ip);
    is_trusted = Contains(ip);
    forwarded_for = forwarded_for.substr(0, begin == 0 ? 0 : begin - 1);
  }
  return client;
}

}  // namespace lssar

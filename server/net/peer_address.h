// The address of a connection's client, as limits and gRPC know it.
#ifndef LSSAR_SERVER_NET_PEER_ADDRESS_H_
#define LSSAR_SERVER_NET_PEER_ADDRESS_H_

#include <sys/socket.h>

#include <string>

namespace lssar {

struct PeerAddress {
  // What limits count by: the IPv4 address ("192.0.2.1"), or the /64 network of an IPv6 address
  // ("2001:db8::/64"), all of which one client has.
  std::string limited;
  // As in grpc::ServerContext::peer() and channelz: "ipv4:192.0.2.1:50000",
  // "ipv6:%5B2001:db8::1%5D:50000".
  std::string uri;
};

// An IPv4 address that is mapped into IPv6 counts as IPv4. Any other family is all one client.
PeerAddress ToPeerAddress(const sockaddr_storage& address);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_PEER_ADDRESS_H_

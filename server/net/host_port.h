// HOST:PORT as flags, URLs and users write it.
#ifndef LSSAR_SERVER_NET_HOST_PORT_H_
#define LSSAR_SERVER_NET_HOST_PORT_H_

#include <optional>
#include <string>
#include <string_view>

namespace lssar {

struct HostPort {
  std::string host;  // a name or an address, IPv6 without brackets; not empty
  int port = 0;      // [0, 65535]

  // IPv6 in brackets.
  std::string Text() const;
};

// "[::1]:8080" -> {"::1", 8080}. nullopt: it is something else, such as an IPv6 address without
// brackets: "::1:80" is an address of its own, and one with a port.
std::optional<HostPort> SplitHostPort(std::string_view text);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_HOST_PORT_H_

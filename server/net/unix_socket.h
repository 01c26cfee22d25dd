// Addresses of Unix sockets: unix:PATH, as gRPC writes them. A private server listens on one in a
// directory that only its owner can enter.
#ifndef LSSAR_SERVER_NET_UNIX_SOCKET_H_
#define LSSAR_SERVER_NET_UNIX_SOCKET_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>

namespace lssar {

inline constexpr std::string_view kUnixPrefix = "unix:";
inline constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // 107

inline bool IsUnixSocket(std::string_view address) { return address.starts_with(kUnixPrefix); }

// Whether a process listens on it. A socket that a killed one has left refuses connections.
// Requires  IsUnixSocket(address), and a path of at most kMaxUnixPathBytes
inline bool IsListening(std::string_view address) {
  const std::string_view path = address.substr(kUnixPrefix.size());
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  path.copy(name.sun_path, kMaxUnixPathBytes);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool is_listening =
      connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 ||
      errno == EAGAIN;  // as many connections wait as may
  close(fd);
  return is_listening;
}

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_UNIX_SOCKET_H_

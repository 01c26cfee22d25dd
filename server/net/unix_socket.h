// Addresses of Unix sockets: unix:PATH, as gRPC writes them. A private server listens on one in a
// directory that only its owner can enter.
#ifndef LSSAR_SERVER_NET_UNIX_SOCKET_H_
#define LSSAR_SERVER_NET_UNIX_SOCKET_H_

#include <sys/un.h>

#include <cstddef>
#include <string_view>

namespace lssar {

inline constexpr std::string_view kUnixPrefix = "unix:";
inline constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // 107

inline bool IsUnixSocket(std::string_view address) { return address.starts_with(kUnixPrefix); }

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_UNIX_SOCKET_H_

// A bare TCP connection.
#ifndef LSSAR_SERVER_NET_CONNECT_H_
#define LSSAR_SERVER_NET_CONNECT_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"

namespace lssar {

// Connects to `host`:`port` and closes the connection. Blocks for at most `timeout`.
// Errors  UNAVAILABLE: with the system's reason
absl::Status TryConnect(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_CONNECT_H_

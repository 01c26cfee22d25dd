#include "server/net/connect.h"

#include <boost/asio/ip/tcp.hpp>

namespace lssar {

absl::Status TryConnect(const std::string& host, int port, std::chrono::milliseconds timeout) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(timeout);
  stream.connect(host, std::to_string(port));
  if (stream) return absl::OkStatus();
  return absl::UnavailableError(stream.error().message());
}

}  // namespace lssar

// A small blocking HTTP client: for the health probe, traces, and tests.
#ifndef LSSAR_SERVER_HTTP_BLOCKING_CLIENT_H_
#define LSSAR_SERVER_HTTP_BLOCKING_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"

namespace lssar {

struct HttpTarget {
  std::string host;  // a name or an address, IPv6 without brackets
  int port = 0;
  bool has_tls = false;
  // PEM file of the roots that the server's certificate must lead to; empty: any certificate is
  // accepted.
  std::string ca_file = {};
  // Without a ca_file: the system's roots, or those that SSL_CERT_FILE and SSL_CERT_DIR name.
  bool uses_system_roots = false;
  // PEM files of the client's own certificate and key; empty: none.
  std::string certificate_file = {}, key_file = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(1);  // of the whole exchange
  size_t max_reply_bytes = std::numeric_limits<size_t>::max();  // head and body; else UNAVAILABLE
};

// Sends one request on a connection of its own, and reads the whole answer; chunks are joined.
// `headers` go out beside Host, Connection: close and Content-Length.
// Errors  UNAVAILABLE: no connection, no TLS, no answer in time, or none that is HTTP/1.0 or 1.1
absl::StatusOr<HttpReply> SendRequest(const HttpTarget& target, std::string_view method,
                                      std::string_view path,
                                      const std::vector<HttpHeader>& headers = {},
                                      std::string_view body = {});

// The value of a header of a reply; names are in lower case there. Empty: there is none.
std::string HeaderOf(const HttpReply& reply, std::string_view name);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_BLOCKING_CLIENT_H_

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
#include "server/net/file_descriptor.h"

struct addrinfo;

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
  // The whole exchange has it, once the host's addresses are known: the resolver has its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  size_t max_reply_bytes = std::numeric_limits<size_t>::max();  // head and body; else UNAVAILABLE
};

// Sends one request on a connection of its own, and reads the whole answer; chunks are joined.
// `headers` go out beside Host, Connection: close and Content-Length.
// Errors  UNAVAILABLE: no connection, no TLS, no answer in time, or none that is HTTP/1.0 or 1.1
absl::StatusOr<HttpReply> SendRequest(const HttpTarget& target, std::string_view method,
                                      std::string_view path,
                                      const std::vector<HttpHeader>& headers = {},
                                      std::string_view body = {});

// A connection, non-blocking, to the first of the addresses that takes one. Each has an equal share
// of the time that those before it have left, so that one which does not answer hides no other.
// Errors  UNAVAILABLE: why the last one took none
absl::StatusOr<FileDescriptor> ConnectToAny(const addrinfo* addresses,
                                            std::chrono::steady_clock::time_point end);

// The value of a header of a reply; names are in lower case there. Empty: there is none.
std::string HeaderOf(const HttpReply& reply, std::string_view name);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_BLOCKING_CLIENT_H_

#include "server/http/blocking_client.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

using SteadyClock = std::chrono::steady_clock;

// False: `end` came first.
bool PollUntil(int socket, short events, SteadyClock::time_point end) {
  pollfd waited = {.fd = socket, .events = events, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - SteadyClock::now());
    if (left.count() <= 0) return false;
    const int num_ready = poll(&waited, 1, int(left.count()));
    if (num_ready > 0) return true;
    if (num_ready == 0 || errno != EINTR) return false;
  }
}

// One connection, non-blocking underneath, so that every wait has an end.
class Link {
 public:
  explicit Link(const HttpTarget& target)
      : target_(target), end_(SteadyClock::now() + target.timeout) {}

  absl::Status Open() {
    RETURN_IF_ERROR(Connect());
    return target_.has_tls ? StartTls() : absl::OkStatus();
  }

  absl::Status Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t num_sent = session_ == nullptr
                                   ? send(socket_.Get(), bytes.data(), bytes.size(), MSG_NOSIGNAL)
                                   : SSL_write(session_.get(), bytes.data(), int(bytes.size()));
      if (num_sent > 0) {
        bytes.remove_prefix(size_t(num_sent));
        continue;
      }
      // The server may have answered and closed: what it said can still be read.
      if (!WaitAfter(int(num_sent), POLLOUT)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  // Appends what comes next. False: the connection has ended, or the time is over.
  bool Receive(std::string* into) {
    char buffer[16 << 10];
    while (true) {
      const ssize_t num_read = session_ == nullptr
                                   ? recv(socket_.Get(), buffer, sizeof(buffer), 0)
                                   : SSL_read(session_.get(), buffer, int(sizeof(buffer)));
      if (num_read > 0) {
        into->append(buffer, size_t(num_read));
        return true;
      }
      if (num_read == 0 && session_ == nullptr) return false;
      if (!WaitAfter(int(num_read), POLLIN)) return false;
    }
  }

 private:
  struct FreeContext {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  struct FreeSession {
    void operator()(SSL* session) const { SSL_free(session); }
  };

  absl::Status Unavailable(std::string_view what) const {
    return absl::UnavailableError(StrCat(target_.host, ":", target_.port, ": ", what));
  }

  absl::Status Connect() {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(target_.host.c_str(), StrCat(target_.port).c_str(), &hints, &found) != 0) {
      return Unavailable("the host has no address");
    }
    auto connected = ConnectToAny(found, end_);
    freeaddrinfo(found);
    if (!connected.ok()) return Unavailable(std::string(connected.status().message()));
    socket_ = *std::move(connected);
    return absl::OkStatus();
  }

  absl::Status StartTls() {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (context_ == nullptr) return Unavailable("TLS cannot be set up");
    if (!target_.ca_file.empty()) {
      if (SSL_CTX_load_verify_locations(context_.get(), target_.ca_file.c_str(), nullptr) != 1) {
        return Unavailable("the file of root certificates cannot be used");
      }
    } else if (target_.uses_system_roots) {
      SSL_CTX_set_default_verify_paths(context_.get());
    }
    const bool verifies = !target_.ca_file.empty() || target_.uses_system_roots;
    if (verifies) SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    if (!target_.certificate_file.empty() &&
        (SSL_CTX_use_certificate_chain_file(context_.get(), target_.certificate_file.c_str()) !=
             1 ||
         SSL_CTX_use_PrivateKey_file(context_.get(), target_.key_file.c_str(), SSL_FILETYPE_PEM) !=
             1)) {
      return Unavailable("the client's certificate cannot be used");
    }
    session_.reset(SSL_new(context_.get()));
    SSL_set_fd(session_.get(), socket_.Get());
    SSL_set_tlsext_host_name(session_.get(), target_.host.c_str());
    if (verifies) SSL_set1_host(session_.get(), target_.host.c_str());
    int result = 0;
    do {
      ERR_clear_error();
      result = SSL_connect(session_.get());
    } while (result <= 0 && WaitAfter(result, POLLIN));
    ERR_clear_error();
    return result == 1 ? absl::OkStatus() : Unavailable("the TLS handshake failed");
  }

  // After a call that returned `result` <= 0: true where it may be repeated.
  bool WaitAfter(int result, short events) {
    if (session_ == nullptr) {
      return (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) && Poll(events);
    }
    switch (SSL_get_error(session_.get(), result)) {
      case SSL_ERROR_WANT_READ: return Poll(POLLIN);
      case SSL_ERROR_WANT_WRITE: return Poll(POLLOUT);
      default: ERR_clear_error(); return false;
    }
  }

  bool Poll(short events) const { return PollUntil(socket_.Get(), events, end_); }

  const HttpTarget target_;
  const SteadyClock::time_point end_;
  FileDescriptor socket_;
  std::unique_ptr<SSL_CTX, FreeContext> context_;
  std::unique_ptr<SSL, FreeSession> session_;
};

// Joins the chunks at the front of `*bytes`. True: the last chunk is among them.
bool JoinChunks(std::string* bytes, std::string* body) {
  while (true) {
    const size_t line_end = bytes->find("\r\n");
    if (line_end == std::string::npos) return false;
    const size_t size = std::strtoul(bytes->c_str(), nullptr, 16);
    if (bytes->size() < size || bytes->size() - size < line_end + 2 + 2) return false;
    body->append(*bytes, line_end + 2, size);
    bytes->erase(0, line_end + 2 + size + 2);
    if (size == 0) return true;
  }
}

// Reads "HTTP/1.1 200 OK", of HTTP/1.0 too, and the headers after it.
bool ReadHead(std::string_view head, HttpReply* reply) {
  if (!head.starts_with("HTTP/1.1 ") && !head.starts_with("HTTP/1.0 ")) return false;
  if (!absl::SimpleAtoi(std::string(head.substr(9, 3)), &reply->status)) return false;
  for (size_t begin = head.find("\r\n"); begin != std::string_view::npos;) {
    begin += 2;
    const size_t end = head.find("\r\n", begin);
    const std::string_view line = head.substr(begin, end - begin);
    begin = end;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    std::string name(line.substr(0, colon));
    absl::AsciiStrToLower(&name);
    std::string value(line.substr(colon + 1));
    absl::StripAsciiWhitespace(&value);
    if (name == "content-type") reply->content_type = value;
    reply->headers.push_back({.name = std::move(name), .value = std::move(value)});
  }
  return true;
}

}  // namespace

absl::StatusOr<FileDescriptor> ConnectToAny(const addrinfo* addresses,
                                            std::chrono::steady_clock::time_point end) {
  int num_left = 0;
  for (const addrinfo* each = addresses; each != nullptr; each = each->ai_next) ++num_left;
  std::string reason = "the host has no address";
  for (const addrinfo* each = addresses; each != nullptr; each = each->ai_next, --num_left) {
    FileDescriptor candidate(
        socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!candidate.IsOpen()) {
      reason = std::strerror(errno);
      continue;
    }
    int error = connect(candidate.Get(), each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      const auto now = SteadyClock::now();
      socklen_t size = sizeof(error);
      error = ETIMEDOUT;
      if (PollUntil(candidate.Get(), POLLOUT, now + (end - now) / num_left)) {
        getsockopt(candidate.Get(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) return candidate;
    reason = std::strerror(error);
  }
  return absl::UnavailableError(reason);
}

std::string HeaderOf(const HttpReply& reply, std::string_view name) {
  for (const HttpHeader& header : reply.headers) {
    if (header.name == name) return header.value;
  }
  return {};
}

absl::StatusOr<HttpReply> SendRequest(const HttpTarget& target, std::string_view method,
                                      std::string_view path, const std::vector<HttpHeader>& headers,
                                      std::string_view body) {
  Link link(target);
  RETURN_IF_ERROR(link.Open());
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  std::string head =
      StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", is_ipv6 ? "[" : "", target.host,
             is_ipv6 ? "]" : "", ":", target.port, "\r\nConnection: close\r\n");
  for (const HttpHeader& header : headers) {
    head += StrCat(header.name, ": ", header.value, "\r\n");
  }
  if (!body.empty()) head += StrCat("Content-Length: ", body.size(), "\r\n");
  RETURN_IF_ERROR(link.Send(head + "\r\n"));
  RETURN_IF_ERROR(link.Send(body));

  const auto no_answer = [&] {
    return absl::UnavailableError(
        StrCat(target.host, ":", target.port, ": no answer of an HTTP server"));
  };
  std::string bytes;
  HttpReply reply;
  const auto receive = [&] {
    return link.Receive(&bytes) && bytes.size() + reply.body.size() <= target.max_reply_bytes;
  };
  size_t head_end = std::string::npos;
  while ((head_end = bytes.find("\r\n\r\n")) == std::string::npos) {
    if (!receive()) return no_answer();
  }
  reply.content_type.clear();
  if (!ReadHead(std::string_view(bytes).substr(0, head_end), &reply)) return no_answer();
  bytes.erase(0, head_end + 4);
  const bool is_chunked = HeaderOf(reply, "transfer-encoding") == "chunked";
  size_t length = 0;
  const bool has_length = absl::SimpleAtoi(HeaderOf(reply, "content-length"), &length);
  if (method == "HEAD" || reply.status == 204) return reply;
  while (is_chunked ? !JoinChunks(&bytes, &reply.body) : !(has_length && bytes.size() >= length)) {
    if (receive()) continue;
    // Cut short, or too long.
    if (is_chunked || has_length || bytes.size() > target.max_reply_bytes) return no_answer();
    break;
  }
  if (!is_chunked) reply.body = std::move(bytes);
  return reply;
}

}  // namespace lssar

#include "server/bounded_stream.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>

#include "kernels/check.h"

namespace lssar {
namespace {

constexpr size_t kMaxRequestBytes = size_t{64} << 10;
constexpr auto kConnectionLimit = std::chrono::seconds(5);
// How soon a waiting connection sees that the server stops.
constexpr auto kStopInterval = std::chrono::milliseconds(100);

// One that waits for the first bytes of a client.
SSL* MakeSession(SSL_CTX* tls, int socket) {
  if (tls == nullptr) return nullptr;
  SSL* session = SSL_new(tls);
  LSSAR_CHECK(session != nullptr && SSL_set_fd(session, socket) == 1);
  SSL_set_accept_state(session);
  return session;
}

void Clear(std::string& ip, int& port) {
  ip.clear();
  port = 0;
}

}  // namespace

BoundedStream::BoundedStream(int socket, const std::atomic<bool>* is_stopping, SSL_CTX* tls)
    : socket_(socket),
      end_(Clock::now() + kConnectionLimit),
      is_stopping_(is_stopping),
      session_(MakeSession(tls, socket)) {
  // All waiting is done by Wait, which knows the end.
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

bool BoundedStream::Handshake() {
  if (session_ == nullptr) return true;
  int result = 0;
  do {
    ERR_clear_error();  // SSL_get_error looks at all that lies there
    result = SSL_accept(session_.get());
  } while (result <= 0 && WaitForTls(result));
  return result == 1;
}

void BoundedStream::Goodbye() {
  if (session_ == nullptr || SSL_is_init_finished(session_.get()) == 0) return;
  ERR_clear_error();
  SSL_shutdown(session_.get());
}

bool BoundedStream::is_readable() const {
  return next_ < filled_ || (session_ != nullptr && SSL_pending(session_.get()) > 0) ||
         Wait(POLLIN);
}

bool BoundedStream::is_writable() const { return Wait(POLLOUT); }

ssize_t BoundedStream::read(char* ptr, size_t size) {
  if (next_ == filled_) {
    if (num_read_ >= kMaxRequestBytes) return -1;
    const ssize_t received = Receive();
    if (received <= 0) return received;
    next_ = 0;
    filled_ = size_t(received);
    num_read_ += filled_;
  }
  const size_t count = std::min(size, filled_ - next_);
  std::copy_n(buffer_ + next_, count, ptr);
  next_ += count;
  return ssize_t(count);
}

ssize_t BoundedStream::Receive() {
  if (session_ == nullptr) {
    return Wait(POLLIN) ? recv(socket_, buffer_, sizeof(buffer_), 0) : -1;
  }
  int result = 0;
  do {
    ERR_clear_error();
    result = SSL_read(session_.get(), buffer_, int(sizeof(buffer_)));
  } while (result <= 0 && WaitForTls(result));
  return result > 0 ? result : -1;
}

ssize_t BoundedStream::write(const char* ptr, size_t size) {
  if (session_ == nullptr) return Wait(POLLOUT) ? send(socket_, ptr, size, MSG_NOSIGNAL) : -1;
  const int count = int(std::min(size, size_t(std::numeric_limits<int>::max())));
  int result = 0;
  do {
    ERR_clear_error();
    result = SSL_write(session_.get(), ptr, count);
  } while (result <= 0 && WaitForTls(result));
  return result > 0 ? result : -1;
}

bool BoundedStream::WaitForTls(int result) const {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ: return Wait(POLLIN);
    case SSL_ERROR_WANT_WRITE: return Wait(POLLOUT);
    default: return false;
  }
}

bool BoundedStream::Wait(short events) const {
  pollfd waited = {.fd = socket_, .events = events, .revents = 0};
  while (!*is_stopping_) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now());
    if (left.count() <= 0) return false;
    const int num_ready = poll(&waited, 1, int(std::min(left, kStopInterval).count()));
    if (num_ready > 0) return true;
    if (num_ready < 0 && errno != EINTR) return false;
  }
  return false;
}

void BoundedStream::get_remote_ip_and_port(std::string& ip, int& port) const { Clear(ip, port); }
void BoundedStream::get_local_ip_and_port(std::string& ip, int& port) const { Clear(ip, port); }

}  // namespace lssar

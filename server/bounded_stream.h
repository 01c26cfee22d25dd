// A connection of the HTTP port, with or without TLS, that has an end.
#ifndef LSSAR_SERVER_BOUNDED_STREAM_H_
#define LSSAR_SERVER_BOUNDED_STREAM_H_

#include <httplib.h>
#include <openssl/ssl.h>

#include <atomic>
#include <memory>
#include <string>

#include "runtime/request.h"

namespace lssar {

// The library's own streams have a timeout for each read, so that a client with a byte now and then
// would keep its thread for ever. This one has 5 s from its beginning to the last byte, and reads
// 64 KiB at most.
class BoundedStream final : public httplib::Stream {
 public:
  // `is_stopping` ends every wait within 100 ms. `tls`: null: none. Does not own the socket.
  BoundedStream(int socket, const std::atomic<bool>* is_stopping, SSL_CTX* tls);

  // First of all calls. False: the client does not speak TLS as we do; true at once without TLS.
  bool Handshake();
  // Tells a client of TLS that nothing comes any more, as far as there is room for that now.
  void Goodbye();

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* ptr, size_t size) override;
  ssize_t write(const char* ptr, size_t size) override;
  // Nothing here asks who is there.
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  struct Free {
    void operator()(SSL* session) const { SSL_free(session); }
  };

  // False: the connection's time is over, or the server stops.
  bool Wait(short events) const;
  // Takes a call of OpenSSL that gave `result` to its end. True: call it again.
  bool WaitForTls(int result) const;
  ssize_t Receive();

  const int socket_;
  const Clock::time_point end_;
  const std::atomic<bool>* const is_stopping_;
  const std::unique_ptr<SSL, Free> session_;  // null: no TLS
  char buffer_[4096];
  size_t next_ = 0, filled_ = 0;  // of the buffer
  size_t num_read_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_BOUNDED_STREAM_H_

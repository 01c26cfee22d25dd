// The bytes of one connection, with or without TLS. Only http_transport.cc and socket_stream.cc
// include this: Asio is slow to compile.
#ifndef LSSAR_SERVER_HTTP_SOCKET_STREAM_H_
#define LSSAR_SERVER_HTTP_SOCKET_STREAM_H_

#include <openssl/ssl.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>

namespace lssar {

// At most one read and one write may be under way. Completion handlers run on the socket's
// executor, which is a strand.
class SocketStream {
 public:
  using ErrorCode = boost::system::error_code;
  using OnDone = std::function<void(const ErrorCode&, size_t)>;

  virtual ~SocketStream() = default;
  virtual void Handshake(std::function<void(const ErrorCode&)> on_done) = 0;
  // After the handshake: the client has shown a certificate, which has been verified.
  virtual bool HasClientCertificate() const = 0;
  virtual void ReadSome(boost::asio::mutable_buffer buffer, OnDone on_done) = 0;
  virtual void WriteSome(boost::asio::const_buffer buffer, OnDone on_done) = 0;
  // Tells the client that no more bytes come. Reading is still possible without TLS.
  virtual void ShutdownWrite(std::function<void()> on_done) = 0;
  virtual boost::asio::ip::tcp::socket& Socket() = 0;
};

// `tls` null: none.
std::unique_ptr<SocketStream> MakeSocketStream(boost::asio::ip::tcp::socket socket, SSL_CTX* tls);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_SOCKET_STREAM_H_

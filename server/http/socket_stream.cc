#include "server/http/socket_stream.h"

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <utility>

namespace lssar {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

class PlainStream final : public SocketStream {
 public:
  explicit PlainStream(tcp::socket socket) : socket_(std::move(socket)) {}

  void Handshake(std::function<void(const ErrorCode&)> on_done) override { on_done({}); }
  bool HasClientCertificate() const override { return false; }
  void ReadSome(asio::mutable_buffer buffer, OnDone on_done) override {
    socket_.async_read_some(buffer, std::move(on_done));
  }
  void WriteSome(asio::const_buffer buffer, OnDone on_done) override {
    socket_.async_write_some(buffer, std::move(on_done));
  }
  void ShutdownWrite(std::function<void()> on_done) override {
    ErrorCode ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    on_done();
  }
  tcp::socket& Socket() override { return socket_; }

 private:
  tcp::socket socket_;
};

// Asio's context takes ownership of a reference.
SSL_CTX* Share(SSL_CTX* tls) {
  SSL_CTX_up_ref(tls);
  return tls;
}

class TlsStream final : public SocketStream {
 public:
  TlsStream(tcp::socket socket, SSL_CTX* tls)
      : context_(Share(tls)), stream_(std::move(socket), context_) {}

  void Handshake(std::function<void(const ErrorCode&)> on_done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(on_done));
  }
  bool HasClientCertificate() const override {
    SSL* const session = const_cast<asio::ssl::stream<tcp::socket>&>(stream_).native_handle();
    return SSL_get0_peer_certificate(session) != nullptr &&
           SSL_get_verify_result(session) == X509_V_OK;
  }
  void ReadSome(asio::mutable_buffer buffer, OnDone on_done) override {
    stream_.async_read_some(buffer, std::move(on_done));
  }
  void WriteSome(asio::const_buffer buffer, OnDone on_done) override {
    stream_.async_write_some(buffer, std::move(on_done));
  }
  void ShutdownWrite(std::function<void()> on_done) override {
    // Sends close_notify, then waits for the client's. The connection's deadline bounds that.
    stream_.async_shutdown([on_done = std::move(on_done)](const ErrorCode&) { on_done(); });
  }
  tcp::socket& Socket() override { return stream_.next_layer(); }

 private:
  asio::ssl::context context_;
  asio::ssl::stream<tcp::socket> stream_;
};

}  // namespace

std::unique_ptr<SocketStream> MakeSocketStream(tcp::socket socket, SSL_CTX* tls) {
  if (tls == nullptr) return std::make_unique<PlainStream>(std::move(socket));
  return std::make_unique<TlsStream>(std::move(socket), tls);
}

}  // namespace lssar

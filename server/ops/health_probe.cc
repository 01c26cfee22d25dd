#include "server/ops/health_probe.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/http/blocking_client.h"
#include "server/net/host_port.h"
#include "server/net/unix_socket.h"

namespace lssar {
namespace {

constexpr std::chrono::seconds kTimeout{3};

// A host and a port, or unix:PATH as the host.
using Address = HostPort;

std::string TextOf(const Address& address) {
  return IsUnixSocket(address.host) ? address.host : address.Text();
}

// A bare TCP connection, which is closed at once.
// Errors  UNAVAILABLE: with the system's reason
absl::Status TryConnect(const Address& address) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(kTimeout);
  stream.connect(address.host, std::to_string(address.port));
  if (stream) return absl::OkStatus();
  return absl::UnavailableError(stream.error().message());
}

// The address at which this machine reaches a server that listens on `listen`.
absl::StatusOr<Address> LocalAddress(const char* flag, const std::string& listen) {
  if (IsUnixSocket(listen)) return Address{.host = listen};
  std::optional<Address> address = SplitHostPort(listen);
  if (address && address->port != 0) {
    if (address->host == "0.0.0.0") address->host = "127.0.0.1";
    if (address->host == "::") address->host = "::1";
    return *std::move(address);
  }
  return absl::InvalidArgumentError(
      StrCat(flag, " ", listen, ": with port 0 only the server knows its port; set a port"));
}

absl::Status NoAnswer(const Address& address, const std::string& reason) {
  return absl::UnavailableError(
      StrCat("no answer from a server at ", TextOf(address), ": ", reason));
}

absl::Status ProbeHttp(const Address& address, bool has_tls) {
  const auto reply = SendRequest(
      {.host = address.host, .port = address.port, .has_tls = has_tls, .timeout = kTimeout}, "GET",
      "/readyz");
  if (!reply.ok()) return NoAnswer(address, std::string(reply.status().message()));
  if (reply->status == 200) return absl::OkStatus();
  return absl::UnavailableError(absl::StripTrailingAsciiWhitespace(reply->body));
}

// Errors  those of ReadTlsMaterial
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> CredentialsFor(const TlsFiles& tls) {
  if (!tls.HasTls()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  if (!tls.client_ca.empty()) {
    ASSIGN_OR_RETURN(const auto material, ReadTlsMaterial(tls));
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
            std::vector<grpc::experimental::IdentityKeyCertPair>{
                {.private_key = material->key, .certificate_chain = material->certificate}}));
    options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

// On a new connection.
absl::StatusOr<bool> IsServing(const Address& address, const TlsFiles& tls) {
  ASSIGN_OR_RETURN(const auto credentials, CredentialsFor(tls));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
  // No http_proxy of the environment lies between the server and itself.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // The same for every address: the certificate is not verified, and an IPv6 address in brackets
  // would be no name.
  arguments.SetSslTargetNameOverride("127.0.0.1");
  const auto is_serving =
      lssar::IsServing(grpc::CreateCustomChannel(TextOf(address), credentials, arguments));
  if (!is_serving.ok()) return NoAnswer(address, std::string(is_serving.status().message()));
  return is_serving;
}

absl::Status ProbeGrpc(const Address& address, const TlsFiles& tls) {
  ASSIGN_OR_RETURN(const bool is_serving, IsServing(address, tls));
  if (is_serving) return absl::OkStatus();
  return absl::UnavailableError("the server is not serving: it is loading, draining or has failed");
}

}  // namespace

absl::StatusOr<bool> IsServing(const std::shared_ptr<grpc::Channel>& channel) {
  using grpc::health::v1::HealthCheckResponse;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
  context.set_wait_for_ready(false);
  HealthCheckResponse reply;
  const grpc::Status status = grpc::health::v1::Health::NewStub(channel)->Check(
      &context, grpc::health::v1::HealthCheckRequest(), &reply);
  if (!status.ok()) return absl::UnavailableError(status.error_message());
  return reply.status() == HealthCheckResponse::SERVING;
}

absl::Status ProbeHealth(const ServerOptions& options) {
  if (options.http_listen.empty()) {
    ASSIGN_OR_RETURN(const Address address, LocalAddress("--listen", options.listen));
    return ProbeGrpc(address, IsUnixSocket(options.listen) ? TlsFiles{} : options.tls);
  }
  ASSIGN_OR_RETURN(const Address address, LocalAddress("--http-listen", options.http_listen));
  return ProbeHttp(address, options.tls.HasTls());
}

absl::Status ProbeGrpcPort(const std::string& listen, const TlsFiles& tls) {
  ASSIGN_OR_RETURN(const Address address, LocalAddress("--listen", listen));
  if (IsUnixSocket(listen)) return IsServing(address, {}).status();
  if (tls.client_ca.empty()) return IsServing(address, tls).status();
  const absl::Status status = TryConnect(address);
  return status.ok() ? status : NoAnswer(address, std::string(status.message()));
}

}  // namespace lssar

#include "server/grpc/grpc_port.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "server/config/limits.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/reflection_service.h"
#include "server/net/unix_socket.h"
#include "server/ops/metrics.h"

namespace lssar {
namespace {

// Memory for gRPC's buffers: a few dozen messages of the largest size.
constexpr int64_t kGrpcMemoryBytes = int64_t{1} << 30;
// A connection without calls is closed after this time; clients open it again when they need it.
constexpr int kMaxIdleMs = 15 * 60 * 1000;
// Clients may send keepalive pings this often; gRPC closes the connections of those that ping
// faster.
constexpr int kMinClientPingMs = 500;

void Configure(const ConnectionOptions& options, grpc::ServerBuilder& builder) {
  static const bool has_plugins = [] {
    grpc::EnableDefaultHealthCheckService(true);
    // Protobuf would write plain text between the JSON log lines; ReadMessage reports its errors.
    google::protobuf::SetLogHandler(nullptr);
    return true;
  }();
  LSSAR_CHECK(has_plugins);
  builder.SetMaxReceiveMessageSize(limits::kMaxMessageBytes);
  builder.SetMaxSendMessageSize(-1);
  builder.SetResourceQuota(grpc::ResourceQuota("lssar").Resize(kGrpcMemoryBytes));
  // A compressed message is refused, and never inflated: gRPC checks its size afterwards only.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // TrafficWatch relies on flow control windows that do not grow with the bandwidth.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_calls);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, limits::kMaxMetadataBytes);
  const auto milliseconds = [](absl::Duration duration) {
    return int(absl::ToInt64Milliseconds(duration));
  };
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             milliseconds(options.handshake_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             milliseconds(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinClientPingMs);
}

}  // namespace

absl::StatusOr<GrpcPort> StartGrpcPort(const ServerOptions& options,
                                       std::unique_ptr<Acceptor> acceptor,
                                       TlsCertificates* certificates, ServiceContext context) {
  using ConnectionType = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  GrpcPort port;
  port.reflection =
      MakeReflectionService({v1::Inference::service_full_name(), "grpc.health.v1.Health",
                             "grpc.reflection.v1alpha.ServerReflection"});
  grpc::ServerBuilder builder;
  Configure(options.connection, builder);
  port.replies = std::make_unique<ReplyWriter>(builder.AddCompletionQueue());
  if (acceptor != nullptr) {
    port.connections = std::make_unique<GrpcConnections>(GrpcConnections::Options{
        .acceptor = std::move(acceptor),
        .grpc_acceptor = builder.experimental().AddExternalConnectionAcceptor(
            ConnectionType::FROM_FD, MakeCredentials(certificates)),
        .metrics = &context.metrics->GrpcPort(),
        .log = context.log,
        .max_streams = options.connection.max_calls,
        .max_upload_bytes_per_address = kGrpcMemoryBytes * 3 / 8});
  }
  context.replies = port.replies.get();
  InferenceRpcs inference = MakeInferenceService(
      context,
      [connections = port.connections.get()](const std::string& peer, size_t num_bytes) {
        if (connections != nullptr) connections->OnMessage(peer, num_bytes);
      },
      [connections = port.connections.get()](const std::string& peer) {
        return connections == nullptr ? nullptr : connections->FindSocket(peer);
      });
  port.service = std::move(inference.service);
  builder.RegisterService(port.service.get());
  builder.RegisterService(port.reflection.get());
  if (IsUnixSocket(options.listen)) {
    // Who may connect is a matter of the file's directory: gRPC's own listener is enough, without
    // TLS. gRPC replaces a socket that an earlier server has left, but also one in use.
    if (IsListening(options.listen)) {
      return absl::UnavailableError(
          StrCat("--listen ", options.listen, ": another process listens on this socket"));
    }
    builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials());
  }
  port.server = builder.BuildAndStart();
  if (port.server == nullptr) {
    return IsUnixSocket(options.listen)
               ? absl::UnavailableError(StrCat("--listen ", options.listen,
                                               ": the socket cannot be opened; its directory must "
                                               "exist and be writable"))
               : absl::InternalError("gRPC's server does not start");
  }
  inference.accept();
  port.replies->Start();
  return port;
}

}  // namespace lssar

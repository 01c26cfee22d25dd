// The gRPC port: gRPC's server with its settings, its services and the connections that it serves.
#ifndef LSSAR_SERVER_GRPC_GRPC_PORT_H_
#define LSSAR_SERVER_GRPC_GRPC_PORT_H_

#include <grpcpp/server.h>

#include <memory>

#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/config/options.h"
#include "server/grpc/reply_writer.h"
#include "server/net/acceptor.h"
#include "server/net/grpc_connections.h"
#include "server/net/tls.h"

namespace lssar {

// Destroyed in reverse order: each part uses those above it. An owner that takes them apart keeps
// this order.
struct GrpcPort {
  std::unique_ptr<grpc::Service> service;  // lssar.v1.Inference
  std::unique_ptr<grpc::Service> reflection;
  std::unique_ptr<GrpcConnections> connections;  // null: no TCP port
  std::unique_ptr<ReplyWriter> replies;
  std::unique_ptr<grpc::Server> server;
};

// Starts gRPC. Connections are served from GrpcConnections::Start on.
// `acceptor`      of --listen; null: calls come from this process, or by a Unix socket
// `certificates`  null: no TLS
// `context`       without `replies`
// Errors  UNAVAILABLE: the Unix socket is in use, or cannot be opened
absl::StatusOr<GrpcPort> StartGrpcPort(const ServerOptions& options,
                                       std::unique_ptr<Acceptor> acceptor,
                                       TlsCertificates* certificates, ServiceContext context);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_GRPC_PORT_H_

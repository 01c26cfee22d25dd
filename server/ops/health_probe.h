// Whether a server is serving: for `lssar-server --check-health`, the server's own check, clients.
#ifndef LSSAR_SERVER_OPS_HEALTH_PROBE_H_
#define LSSAR_SERVER_OPS_HEALTH_PROBE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/config/options.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace lssar {

// What grpc.health.v1 says of the whole server.
// Errors  UNAVAILABLE: no answer within 3 s, or no such service
absl::StatusOr<bool> IsServing(const std::shared_ptr<grpc::Channel>& channel);

// `options`: the options of that server. Requests /readyz from its HTTP port, behind which the
// server calls its own gRPC port, or, if that is off, grpc.health.v1 from its gRPC port. Does not
// verify the certificate, since the server runs on this machine. Presents the server's own
// certificate if gRPC clients need one.
// Errors  UNAVAILABLE: the server is not serving (with its reason) or does not answer within 3 s
//         INVALID_ARGUMENT: the port is 0, so the actual port is unknown
absl::Status ProbeHealth(const ServerOptions& options);

// Whether the gRPC port of `listen` (with its actual port) answers a call of grpc.health.v1 on a
// new connection within 3 s, whatever the answer is. With tls.client_ca the server's own
// certificate may not be accepted; then only whether the port takes a connection.
// Errors  UNAVAILABLE: it does not
absl::Status ProbeGrpcPort(const std::string& listen, const TlsFiles& tls);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_HEALTH_PROBE_H_

// `lssar-server --check-health`: asks the server that runs on this machine whether it serves.
#ifndef LSSAR_SERVER_HEALTH_PROBE_H_
#define LSSAR_SERVER_HEALTH_PROBE_H_

#include "absl/status/status.h"
#include "server/options.h"

namespace lssar {

// `options`: what that server was told. Asks its HTTP port for /readyz; where that is off, its gRPC
// port for grpc.health.v1; under TLS whatever its certificate says: it is this machine's own. Where
// gRPC's clients need a certificate, the server's own is shown.
// Errors  UNAVAILABLE: it does not serve (its own reason), or does not answer within 3 s;
//         INVALID_ARGUMENT: its port is 0, so that nobody knows which it took
absl::Status ProbeHealth(const ServerOptions& options);

}  // namespace lssar

#endif  // LSSAR_SERVER_HEALTH_PROBE_H_

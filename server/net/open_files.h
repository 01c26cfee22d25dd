// The process's limit of open files, and how many connections fit under it.
#ifndef LSSAR_SERVER_NET_OPEN_FILES_H_
#define LSSAR_SERVER_NET_OPEN_FILES_H_

#include <cstdint>

namespace lssar {

// Raises the soft limit (RLIMIT_NOFILE) to the hard limit. Returns the limit in force.
int64_t RaiseOpenFileLimit();

// The number of connections, at most `max_connections` and at least 1, that each port can have
// under `open_file_limit`. A gRPC connection takes two descriptors (grpc_connections.h), an HTTP
// connection one, or two where it may download a file of a batch; 256 are left for everything else.
int FitConnections(int max_connections, bool has_grpc, bool has_http, bool has_batches,
                   int64_t open_file_limit);

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_OPEN_FILES_H_

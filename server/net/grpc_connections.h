// The connections of the gRPC port: accepted by us, served by gRPC, and watched.
#ifndef LSSAR_SERVER_NET_GRPC_CONNECTIONS_H_
#define LSSAR_SERVER_NET_GRPC_CONNECTIONS_H_

#include <grpcpp/server_builder.h>

#include <cstdint>
#include <memory>
#include <string>

#include "server/net/acceptor.h"
#include "server/net/socket_cork.h"

namespace lssar {

// Dispatches accepted sockets to gRPC and keeps a second descriptor of each. That one tells when
// gRPC has closed the connection, how many bytes it received and sent, and closes it after a
// violation, which TrafficWatch looks for every 100 ms.
class GrpcConnections {
 public:
  struct Options {
    std::unique_ptr<Acceptor> acceptor;
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_acceptor;
    PortMetrics* metrics = nullptr;  // outlives this; null: nothing is counted
    const Log* log = nullptr;        // outlives this; null: no log lines
    int max_streams = 0;             // that a client may have open on one connection
    // What the unfinished requests of one address may take of gRPC's memory.
    int64_t max_upload_bytes_per_address = 0;
  };
  explicit GrpcConnections(Options options);
  ~GrpcConnections();
  GrpcConnections(const GrpcConnections&) = delete;
  GrpcConnections& operator=(const GrpcConnections&) = delete;

  // Accepts connections from now on. Requires  gRPC's server has started
  void Start();
  // Closes the port; open connections stay, watched as before. Call before gRPC's server is shut
  // down, and destroy this after.
  void StopAccepting();
  // Ends every open connection with a reset: clients see UNAVAILABLE, whatever they were sending.
  void ResetAll();

  // A request of `num_bytes` has reached its handler. `peer`: grpc::ServerContextBase::peer().
  // Any thread.
  void OnMessage(const std::string& peer, size_t num_bytes);

  // The socket of an open connection; null: `peer` has none. Any thread.
  std::shared_ptr<SocketCork> FindSocket(const std::string& peer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_GRPC_CONNECTIONS_H_

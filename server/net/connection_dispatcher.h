// Dispatches accepted sockets to gRPC.
#ifndef LSSAR_SERVER_NET_CONNECTION_DISPATCHER_H_
#define LSSAR_SERVER_NET_CONNECTION_DISPATCHER_H_

#include <grpcpp/server_builder.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "server/net/file_descriptor.h"

namespace lssar {

// On a thread of its own: within the call that takes a socket, gRPC parses what the client has
// sent, and goes on for as long as more has arrived. A client that sends what is slow to parse can
// keep that thread until TrafficWatch closes its connection; the watch must not be on it.
class ConnectionDispatcher {
 public:
  // Requires  gRPC's server has started
  explicit ConnectionDispatcher(
      std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Close; waits until gRPC has taken the socket that it is taking.
  ~ConnectionDispatcher();
  ConnectionDispatcher(const ConnectionDispatcher&) = delete;
  ConnectionDispatcher& operator=(const ConnectionDispatcher&) = delete;

  // Does not wait for gRPC. Any thread.
  void Add(FileDescriptor socket);
  // Closes the sockets that wait, and those that come later.
  void Close();

 private:
  void Run();

  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<FileDescriptor> waiting_;  // under the mutex
  bool is_closed_ = false;              // under the mutex
  std::thread thread_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_CONNECTION_DISPATCHER_H_

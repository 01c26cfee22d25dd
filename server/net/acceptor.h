// Listens on one port and accepts its connections. Both ports of the server have one.
#ifndef LSSAR_SERVER_NET_ACCEPTOR_H_
#define LSSAR_SERVER_NET_ACCEPTOR_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/net/connection_limiter.h"
#include "server/net/file_descriptor.h"
#include "server/net/peer_address.h"
#include "server/net/port_metrics.h"
#include "server/ops/log.h"

namespace lssar {

struct AcceptorOptions {
  std::string flag;    // of the address, for errors: "--listen"
  std::string listen;  // HOST:PORT; port 0: any free one
  std::string name;    // of the port, for log lines: "grpc"
  ConnectionLimiter::Options limits;
  const Log* log = nullptr;  // outlives the acceptor; null: no log lines
};

struct AcceptedConnection {
  FileDescriptor socket;  // non-blocking, closed on exec, TCP_NODELAY
  int family = 0;         // AF_INET or AF_INET6
  PeerAddress peer;
  ConnectionSlot slot;  // kept as long as the connection is open
};

// A connection that is one too many is closed at once, counted and logged, at most one line in ten
// seconds. Where descriptors run out (EMFILE, ENFILE, ENOBUFS, ENOMEM), those that wait are closed
// by means of a spare descriptor, and accepting pauses for 100 ms; it never ends.
//
// Threads  callbacks run on the acceptor's own thread, one at a time
class Acceptor {
 public:
  struct Callbacks {
    // Nullopt: the connection is served. Otherwise it is closed, counted and logged.
    std::function<std::optional<Rejection>(AcceptedConnection)> on_accepted;
    // Before `fd` is closed, for an answer that must not wait. Empty: none.
    std::function<void(int fd, Rejection reason)> on_rejected = {};
    // Before a limit refuses a connection: a chance to notice connections that have ended.
    std::function<void()> before_rejection = {};
    // Called every `interval`. Empty: never.
    std::function<void()> on_tick = {};
    std::chrono::milliseconds interval = {};
  };

  // Binds and listens; connections wait until Start. Listens on every address that a host name
  // stands for.
  // Errors  INVALID_ARGUMENT: `listen` is not HOST:PORT; UNAVAILABLE: the address cannot be used
  static absl::StatusOr<std::unique_ptr<Acceptor>> Listen(const AcceptorOptions& options);
  ~Acceptor();  // Stop
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  // Call once.
  void Start(Callbacks callbacks);
  // Closes the port. `on_tick` alone is still called. Idempotent.
  void StopAccepting();
  // Closes the port. No callback runs any more when it returns. Idempotent.
  void Stop();

  int Port() const;
  ConnectionLimiter& Limiter() const;

 private:
  struct State;
  explicit Acceptor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_ACCEPTOR_H_

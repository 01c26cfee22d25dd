// The whole server in this process: model, engine, gRPC services, health, and a port if wanted.
// `lssar-server` runs it with a port; `lssar --model DIR` runs it without one, over an in-process
// channel, so that both share one code path.
#ifndef LSSAR_SERVER_SERVER_H_
#define LSSAR_SERVER_SERVER_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/options.h"
#include "server/watchdog.h"

namespace lssar {

class ServedModel;

class Server {
 public:
  // How a model comes about; ServedModel::Load, where a test does not want another.
  using LoadModel =
      std::function<absl::StatusOr<std::unique_ptr<ServedModel>>(const ModelOptions&)>;
  // Told once when the engine has died or hangs: everything has been said to clients and probes by
  // then, and nothing here works any more. On a thread of its own, which may end the process.
  using OnEngineFailure = std::function<void(const EngineFailure&)>;

  // Open, then Load: returns when requests are served. For in-process use empty `listen` and
  // `http_listen`, and set log_level to "off".
  // Errors  those of Open and Load
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // Opens the ports. Until Load succeeds every rpc is answered with UNAVAILABLE, health says
  // NOT_SERVING and /readyz 503.
  // Errors  INVALID_ARGUMENT: an option out of range, or a file of certificates or keys that is
  //         none; NOT_FOUND: such a file cannot be read; UNAVAILABLE: an address cannot be listened
  //         on (in use, not of this machine)
  static absl::StatusOr<std::unique_ptr<Server>> Open(const ServerOptions& options,
                                                      OnEngineFailure on_failure = {});

  // Loads the checkpoint, checks it against its golden rows, starts the engine and serves. Once.
  // Errors  those of `load`; nothing is served then
  absl::Status Load();
  absl::Status Load(const LoadModel& load);

  // Shuts down without waiting for what runs.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // A client channel that needs no port; works from Open on, until the server goes.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // The ports listened on; 0: none.
  int Port() const;
  int HttpPort() const;

  // Health turns NOT_SERVING, new calls get UNAVAILABLE, running ones may finish until `limit` has
  // passed; the rest is cut. True: nothing had to be cut. Further calls return the first's result.
  bool Shutdown(absl::Duration limit);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SERVER_H_

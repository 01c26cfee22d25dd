// The whole server in this process: model, engine, gRPC services, health, and a port if wanted.
// `lssar-server` runs it with a port; `lssar --model DIR` runs it without one, over an in-process
// channel, so that both share one code path.
#ifndef LSSAR_SERVER_LOCAL_SERVER_H_
#define LSSAR_SERVER_LOCAL_SERVER_H_

#include <grpcpp/channel.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/options.h"

namespace lssar {

class ServedModel;

class LocalServer {
 public:
  // Open, then Load: returns when requests are served. For in-process use leave `listen` empty and
  // set log_level to "off".
  // Errors  those of Open and Load
  static absl::StatusOr<std::unique_ptr<LocalServer>> Start(const ServerOptions& options);

  // Opens the port. Until Load or Serve succeeds every rpc is answered with UNAVAILABLE and health
  // says NOT_SERVING.
  // Errors  INVALID_ARGUMENT: an option out of range; UNAVAILABLE: the address cannot be listened
  //         on (in use, not of this machine)
  static absl::StatusOr<std::unique_ptr<LocalServer>> Open(const ServerOptions& options);

  // Loads the checkpoint, checks it against its golden rows, starts the engine and serves.
  // Errors  those of LoadCheckpoint, SelfCheck and Engine::Create; nothing is served then
  absl::Status Load();

  // Serves a model made elsewhere. Requires  called once, instead of Load
  void Serve(std::unique_ptr<ServedModel> model);

  // Shuts down without waiting for what runs.
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  // A client channel that needs no port; works from Open on, until the server goes.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // The port listened on; 0: none.
  int Port() const;

  // False: the engine has stopped for good, because the machine failed it (memory, device). Health
  // says NOT_SERVING from then on. Ask now and then after Load.
  bool CheckEngine();

  // Health turns NOT_SERVING, new calls get UNAVAILABLE, running ones may finish until `limit` has
  // passed; the rest is cut. True: nothing had to be cut. Further calls return the first's result.
  bool Shutdown(absl::Duration limit);

 private:
  struct State;
  explicit LocalServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_LOCAL_SERVER_H_

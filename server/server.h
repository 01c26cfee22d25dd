// The server: model, engine, gRPC service, HTTP port, health, watchdog. `lssar-server` runs it with
// ports; `lssar --model DIR` runs it in-process without ports, over an in-process channel.
#ifndef LSSAR_SERVER_SERVER_H_
#define LSSAR_SERVER_SERVER_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/config/options.h"
#include "server/ops/watchdog.h"

namespace lssar {

class LoadedModel;

class Server {
 public:
  // Loads the model: LoadedModel::Load, or a test's own.
  using LoadModel =
      std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>(const ModelOptions&)>;
  // Called once if the engine fails or hangs, after clients and probes have been notified. Runs on
  // a thread of its own and may exit the process; the server cannot be used any more.
  using OnEngineFailure = std::function<void(const EngineFailure&)>;

  // Open, then Load. For in-process use, clear `listen` and `http_listen` and set `log_level` to
  // "off".
  // Errors  those of Open and Load
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options);

  // Opens the ports. Until Load succeeds, every rpc returns UNAVAILABLE, health is NOT_SERVING and
  // /readyz returns 503.
  // Errors  INVALID_ARGUMENT: an option is out of range, or a certificate or key file is invalid
  //         NOT_FOUND: no such file
  //         UNAVAILABLE: an address is in use or does not belong to this machine
  static absl::StatusOr<std::unique_ptr<Server>> Open(const ServerOptions& options,
                                                      OnEngineFailure on_failure = {});

  // Loads the model and starts to serve. Call once.
  // Errors  those of `load`; the server then keeps rejecting calls
  absl::Status Load();
  absl::Status Load(const LoadModel& load);

  // Shuts down without waiting for running calls.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // A client channel that needs no port. Valid until the server is destroyed.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // The ports that are open; 0: none.
  int Port() const;
  int HttpPort() const;

  // Reads API keys and certificates again, and logs the results. What is invalid stays as it was.
  // Then does ServedModels::Reload.
  // Threads  any
  void Reload();
  // A reload loads a model: the destructor would wait for it.
  bool IsReloading() const;
  // After Shutdown: a thread still waits for the collector of traces. The process must end by
  // std::_Exit.
  bool IsExporting() const;

  // Sets health to NOT_SERVING, rejects new calls with UNAVAILABLE, waits up to `limit` for running
  // calls to finish and aborts the rest. True if no call was aborted. Idempotent: later calls
  // return the result of the first.
  bool Shutdown(absl::Duration limit);

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SERVER_H_

// lssar-server: a model behind a port until SIGTERM or SIGINT.
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "server/local_server.h"
#include "server/log.h"
#include "server/options.h"

namespace lssar {
namespace {

// 0 ok, 2 usage, 1 failure.
constexpr int kFailure = 1;
constexpr auto kCheckInterval = std::chrono::seconds(1);

// Never destroyed: the signal thread and gRPC's may write until the process is gone.
const Log* server_log = nullptr;

// gRPC's own errors become lines of our log.
void ForwardGrpcLine(gpr_log_func_args* line) {
  if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
  server_log->Warning("grpc", {{"message", line->message}});
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Takes the signals that StopSignals blocked in every thread: the first one asks for a drain, the
// second stops at once.
void WaitForSignals(std::promise<void> drain) {
  const sigset_t signals = StopSignals();
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  server_log->Info("draining", {{"signal", strsignal(signal_number)}});
  drain.set_value();
  sigwait(&signals, &signal_number);
  server_log->Warning("stopped at once", {{"signal", strsignal(signal_number)}});
  std::_Exit(kFailure);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "lssar-server: %s\n", std::string(status.message()).c_str());
  return kFailure;
}

int Run(const ServerOptions& options) {
  // Before any thread exists: they all inherit it.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  server_log = new Log(options.log_level);
  gpr_set_log_function(ForwardGrpcLine);

  auto server = LocalServer::Open(options);
  if (!server.ok()) return Fail(server.status());
  std::promise<void> drain;
  std::future<void> drain_asked = drain.get_future();
  std::thread(WaitForSignals, std::move(drain)).detach();

  if (const absl::Status status = (*server)->Load(); !status.ok()) return Fail(status);
  while (drain_asked.wait_for(kCheckInterval) != std::future_status::ready) {
    if ((*server)->CheckEngine()) continue;
    server_log->Error("engine failed", LogFields::object());
    return kFailure;
  }
  return (*server)->Shutdown(options.drain_timeout) ? 0 : kFailure;
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  const lssar::CommandLine line = lssar::ParseCommandLine(argc, argv);
  if (line.exit_code) {
    std::fputs(line.text.c_str(), *line.exit_code == 0 ? stdout : stderr);
    return *line.exit_code;
  }
  return lssar::Run(line.options);
}

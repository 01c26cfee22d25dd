#include "server/run_server.h"

#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "server/health_probe.h"
#include "server/log.h"

namespace lssar {
namespace {

// From an engine's failure to the process's end: watchers of health and clients hear of it first.
constexpr auto kLastWords = std::chrono::seconds(1);

// Never destroyed: the signal thread and gRPC's may write until the process is gone.
const Log* server_log = nullptr;
std::atomic<bool> is_loading = true;

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
// second stops at once. While loading there is nothing to drain, and the first one stops.
void WaitForSignals(std::promise<void> drain) {
  const sigset_t signals = StopSignals();
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  if (is_loading) {
    server_log->Info("stopped", {{"signal", strsignal(signal_number)}, {"cut", false}});
    std::_Exit(kExitOk);
  }
  server_log->Info("draining", {{"signal", strsignal(signal_number)}});
  drain.set_value();
  sigwait(&signals, &signal_number);
  server_log->Warning("stopped at once", {{"signal", strsignal(signal_number)}});
  std::_Exit(kExitFailure);
}

// The engine's thread may never come back, so nothing here is waited for or destroyed.
void EndAfterEngineFailure(const EngineFailure& failure) {
  std::this_thread::sleep_for(kLastWords);
  std::_Exit(failure.is_device_lost ? kExitDeviceLost : kExitEngineFailure);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "lssar-server: %s\n", std::string(status.message()).c_str());
  return kExitFailure;
}

}  // namespace

int RunServer(const ServerOptions& options, const Server::LoadModel& load) {
  // Before any thread exists: they all inherit it.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  server_log = new Log(options.log_level);
  gpr_set_log_function(ForwardGrpcLine);

  auto server = Server::Open(options, EndAfterEngineFailure);
  if (!server.ok()) return Fail(server.status());
  std::promise<void> drain;
  std::future<void> drain_asked = drain.get_future();
  std::thread(WaitForSignals, std::move(drain)).detach();

  if (const absl::Status status = (*server)->Load(load); !status.ok()) return Fail(status);
  is_loading = false;
  drain_asked.wait();
  return (*server)->Shutdown(options.drain_timeout) ? kExitOk : kExitFailure;
}

int RunServer(int argc, const char* const* argv, const Server::LoadModel& load) {
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.exit_code) {
    std::fputs(line.text.c_str(), *line.exit_code == 0 ? stdout : stderr);
    return *line.exit_code;
  }
  if (!line.check_health) return RunServer(line.options, load);
  const absl::Status status = ProbeHealth(line.options);
  if (!status.ok()) return Fail(status);
  std::puts("ok");
  return kExitOk;
}

}  // namespace lssar

#include "server/run_server.h"

#include <grpc/support/log.h>
#include <malloc.h>
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

#include "base/thread_name.h"
#include "server/ops/health_probe.h"
#include "server/ops/log.h"
#include "server/served_model.h"

namespace lssar {
namespace {

// Buffers of this size, such as the bodies of large requests, come from the system and go back to
// it. By itself glibc would keep them in the heap once the first one has been freed.
constexpr int kMmapThresholdBytes = 1 << 20;

// Delay between an engine failure and the exit, so that health watchers and clients are notified.
constexpr auto kNotificationTime = std::chrono::seconds(1);

// Never destroyed: the signal thread and gRPC's threads may log until the process exits.
const Log* server_log = nullptr;
std::atomic<bool> is_loading = true;

// Writes gRPC's own errors as log lines.
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

// Handles the signals, which are blocked in every other thread: the first one starts a drain, the
// second exits at once. While the model is loading, the first one exits.
void WaitForSignals(std::promise<void> drain) {
  NameThisThread("signals");
  const sigset_t signals = StopSignals();
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  if (is_loading) {
    server_log->Info("stopped", {{"signal", strsignal(signal_number)}, {"aborted_calls", false}});
    std::_Exit(kExitOk);
  }
  server_log->Info("draining", {{"signal", strsignal(signal_number)}});
  drain.set_value();
  sigwait(&signals, &signal_number);
  server_log->Warning("stopped at once", {{"signal", strsignal(signal_number)}});
  std::_Exit(kExitFailure);
}

// Exits without waiting for or destroying anything: the engine's thread may never return.
void EndAfterEngineFailure(const EngineFailure& failure) {
  std::this_thread::sleep_for(kNotificationTime);
  std::_Exit(failure.is_device_lost ? kExitDeviceLost : kExitEngineFailure);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "lssar-server: %s\n", std::string(status.message()).c_str());
  return kExitFailure;
}

}  // namespace

int RunServer(const ServerOptions& options, const Server::LoadModel& load) {
  // Before any thread exists: every thread inherits the signal mask.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  server_log = new Log(options.log_level);
  gpr_set_log_function(ForwardGrpcLine);

  const auto server = Server::Open(options, EndAfterEngineFailure);
  if (!server.ok()) return Fail(server.status());
  std::promise<void> drain;
  std::future<void> drain_requested = drain.get_future();
  std::thread(WaitForSignals, std::move(drain)).detach();

  // From the end of loading on, a signal drains: calls may be admitted before Load returns.
  const auto load_model = [&load](const ModelOptions& model) {
    auto served = load(model);
    is_loading = false;
    return served;
  };
  if (const absl::Status status = (*server)->Load(load_model); !status.ok()) return Fail(status);
  drain_requested.wait();
  return (*server)->Shutdown(options.drain_timeout) ? kExitOk : kExitFailure;
}

int RunServer(int argc, const char* const* argv, const Server::LoadModel& load) {
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.exit_code) {
    std::fputs(line.text.c_str(), *line.exit_code == 0 ? stdout : stderr);
    return *line.exit_code;
  }
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  if (!line.check_health) return RunServer(line.options, load);
  const absl::Status status = ProbeHealth(line.options);
  if (!status.ok()) return Fail(status);
  std::puts("ok");
  return kExitOk;
}

}  // namespace lssar

#include "server/run_server.h"

#include <grpc/support/log.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/quote.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/loaded_model.h"
#include "server/ops/health_probe.h"
#include "server/ops/log.h"
#include "server/ops/service_manager.h"
#include "server/served_models.h"

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

// Clients cause gRPC's errors, as often as they like: this many lines are written in this time.
constexpr int kMaxGrpcLines = 10;
constexpr auto kGrpcLineTime = std::chrono::seconds(10);

// Writes gRPC's own errors as log lines.
void ForwardGrpcLine(gpr_log_func_args* line) {
  if (line->severity != GPR_LOG_SEVERITY_ERROR) return;
  const std::string_view message = line->message;
  // A client, such as the server's own probe, names a host that the certificate does not have. gRPC
  // serves its only certificate, and the client decides.
  if (message.starts_with("No match found for server name")) return;
  static std::mutex mutex;
  static Clock::time_point begin;
  static int num_lines = 0, num_left_out = 0;
  LogFields fields = {{"message", std::string(message)}};
  {
    const std::lock_guard lock(mutex);
    const Clock::time_point now = Clock::now();
    if (now - begin > kGrpcLineTime) {
      begin = now;
      num_lines = 0;
    }
    if (++num_lines > kMaxGrpcLines) {
      ++num_left_out;
      return;
    }
    if (num_left_out > 0) fields["num_left_out"] = std::exchange(num_left_out, 0);
  }
  server_log->Warning("grpc", fields);
}

// Writes what is left of the log, and exits without waiting for or destroying anything else.
[[noreturn]] void Exit(int code) {
  Log::Flush();
  std::_Exit(code);
}

// A shell script's `&` has a program ignore Ctrl-C, SIGINT and SIGQUIT, which are for the programs
// before it: so they are left alone where the server was started so. A signal that is blocked and
// waited for would come in spite of that. SIGHUP only reloads: it is handled under nohup, too.
sigset_t HandledSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGHUP}) sigaddset(&signals, number);
  for (const int number : {SIGINT, SIGQUIT}) {
    struct sigaction inherited = {};
    sigaction(number, nullptr, &inherited);
    if (inherited.sa_handler != SIG_IGN) sigaddset(&signals, number);
  }
  return signals;
}

// Waits for a signal that stops the server. SIGHUP makes `reload` be called.
template <typename Reload>
int WaitForStop(const Reload& reload) {
  const sigset_t signals = HandledSignals();
  int signal_number = 0;
  while (true) {
    sigwait(&signals, &signal_number);
    if (signal_number != SIGHUP) return signal_number;
    reload();
  }
}

// Handles the signals, which are blocked in every other thread: the first one that stops starts a
// drain, the second exits at once. While the model is loading, the first one exits.
void WaitForSignals(std::promise<void> drain, const std::weak_ptr<Server>& weak_server) {
  NameThisThread("signals");
  int signal_number = WaitForStop([&weak_server] {
    server_log->Info("reload", {{"signal", strsignal(SIGHUP)}});
    if (const auto server = weak_server.lock()) server->Reload();
  });
  if (is_loading) {
    server_log->Info("stopped", {{"signal", strsignal(signal_number)}, {"aborted_calls", false}});
    Exit(kExitOk);
  }
  server_log->Info("draining", {{"signal", strsignal(signal_number)}});
  drain.set_value();
  signal_number = WaitForStop([] {});
  server_log->Warning("stopped at once", {{"signal", strsignal(signal_number)}});
  Exit(kExitFailure);
}

// The engine's thread may never return.
void EndAfterEngineFailure(const EngineFailure& failure) {
  std::this_thread::sleep_for(kNotificationTime);
  Exit(failure.is_device_lost ? kExitDeviceLost : kExitEngineFailure);
}

// Files of a checkpoint may bring control characters into a message.
std::string MessageOf(const absl::Status& status) {
  return Printable({status.message().data(), status.message().size()});
}

int Fail(const absl::Status& status) {
  const std::string message = MessageOf(status);
  // A stderr that takes no more lines would hold up this one, too.
  if (Log::Flush()) std::fprintf(stderr, "lssar-server: %s\n", message.c_str());
  return kExitFailure;
}

// The same with a line of the log before it.
int FailToStart(const absl::Status& status) {
  server_log->Error("start failed", {{"code", absl::StatusCodeToString(status.code())},
                                     {"message", MessageOf(status)}});
  return Fail(status);
}

// What no one has caught: mostly that the system gives the process no more threads or memory. A
// server that had begun to serve leaves a core file.
[[noreturn]] void EndForException() {
  std::string message = "an exception was not caught";
  if (const std::exception_ptr exception = std::current_exception()) {
    try {
      std::rethrow_exception(exception);
    } catch (const std::system_error& error) {
      message = std::string(NoThreadError(error).message());
    } catch (const std::bad_alloc&) {
      message = std::string(NoMemoryError().message());
    } catch (const std::exception& error) {
      message = error.what();
    }
  }
  const absl::Status status = absl::ResourceExhaustedError(message);
  if (server_log == nullptr) {  // the log itself needs a thread
    std::fprintf(stderr, "lssar-server: %s\n", message.c_str());
    std::_Exit(kExitFailure);
  }
  if (is_loading) Exit(FailToStart(status));
  server_log->Error("ended by an exception", {{"message", MessageOf(status)}});
  Log::Flush();
  std::abort();
}

// To standard output, which may be a file on a full disk.
int Print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0) return kExitOk;
  return Fail(absl::UnavailableError("cannot write to standard output"));
}

}  // namespace

int RunServer(const ServerOptions& options, const Server::LoadModel& load) {
  // Before any thread exists: every thread inherits the signal mask.
  const sigset_t signals = HandledSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // A write to a pipe or a socket whose reader has gone, stderr's included, is an error of that
  // write and not the end of the process.
  signal(SIGPIPE, SIG_IGN);
  // Other servers turn the log or its level by these. An operator who tries must not end this one.
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
  std::set_terminate(EndForException);
  server_log = new Log(options.log_level);
  gpr_set_log_function(ForwardGrpcLine);
  for (const std::string& sentence : MisspeltVariables(environ)) {
    server_log->Warning("unknown variable", {{"message", sentence}});
  }

  auto opened = Server::Open(options, EndAfterEngineFailure);
  if (!opened.ok()) return FailToStart(opened.status());
  std::shared_ptr<Server> server = *std::move(opened);
  std::promise<void> drain;
  std::future<void> drain_requested = drain.get_future();
  std::thread(WaitForSignals, std::move(drain), std::weak_ptr(server)).detach();

  // From the end of loading on, a signal drains: calls may be admitted before Load returns.
  const auto load_model = [&load](const ModelOptions& model) {
    auto served = load(model);
    is_loading = false;
    return served;
  };
  if (const absl::Status status = server->Load(load_model); !status.ok()) {
    server = nullptr;  // its line "stopped" comes before the reason
    return FailToStart(status);
  }
  NotifyServiceManager("READY=1");
  const auto interval = ServiceWatchdogInterval().value_or(std::chrono::hours(1));
  while (drain_requested.wait_for(interval) == std::future_status::timeout) {
    NotifyServiceManager("WATCHDOG=1");
  }
  NotifyServiceManager("STOPPING=1");
  const int exit_code = server->Shutdown(options.drain_timeout) ? kExitOk : kExitFailure;
  // A load cannot be interrupted, and may take minutes. No thread may outlive main.
  if (server->IsReloading() || server->IsExporting()) Exit(exit_code);
  return exit_code;
}

int RunServer(int argc, const char* const* argv, const Server::LoadModel& load) {
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.exit_code == kExitOk) return Print(line.text);
  if (line.exit_code) {
    std::fputs(line.text.c_str(), stderr);
    return *line.exit_code;
  }
  mallopt(M_MMAP_THRESHOLD, kMmapThresholdBytes);
  if (!line.check_health) return RunServer(line.options, load);
  const absl::Status status = ProbeHealth(line.options);
  if (!status.ok()) return Fail(status);
  return Print("ok\n");
}

}  // namespace lssar

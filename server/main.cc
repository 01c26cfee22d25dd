// lssar-server: a model behind a port until SIGTERM or SIGINT.
#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "server/local_server.h"
#include "server/log.h"
#include "server/options.h"

namespace lssar {
namespace {

// 0 ok, 2 usage, 1 failure.
constexpr int kFailure = 1;

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Takes the signals that StopSignals blocked in every thread: the first one asks for a drain, the
// second stops at once.
void WaitForSignals(std::promise<void> drain, const Log& log) {
  const sigset_t signals = StopSignals();
  int signal_number = 0;
  sigwait(&signals, &signal_number);
  log.Info("draining", {{"signal", strsignal(signal_number)}});
  drain.set_value();
  sigwait(&signals, &signal_number);
  log.Warning("stopped at once", {{"signal", strsignal(signal_number)}});
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
  const Log log(options.log_level);

  auto server = LocalServer::Open(options);
  if (!server.ok()) return Fail(server.status());
  std::promise<void> drain;
  std::future<void> drain_asked = drain.get_future();
  std::thread(WaitForSignals, std::move(drain), std::cref(log)).detach();

  if (const absl::Status status = (*server)->Load(); !status.ok()) return Fail(status);
  drain_asked.wait();
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

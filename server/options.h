// What the server can be told: flags, environment and configuration file, all with the same names.
#ifndef LSSAR_SERVER_OPTIONS_H_
#define LSSAR_SERVER_OPTIONS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "runtime/engine.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar {

// The part that a model needs, with or without a port: `lssar --model DIR` takes it too.
struct ModelOptions {
  std::string directory;
  std::optional<DType> weights;  // nullopt: as the checkpoint stores them
  BackendOptions backend;
  EngineOptions engine;
};

struct ServerOptions {
  ModelOptions model;
  std::string listen = "127.0.0.1:50051";  // host:port, port 0: any free one; empty: no port at all
  std::string http_listen = "127.0.0.1:8080";  // the same, for metrics and probes
  absl::Duration drain_timeout = absl::Seconds(30);
  // An engine step that takes longer is stuck; zero: however long.
  absl::Duration step_timeout = absl::Seconds(60);
  std::string log_level = "info";  // debug | info | warning | error | off
};

// Adds the flags of ModelOptions (--model, --max-context, --kv-type, ...) with their environment
// names (LSSAR_MAX_CONTEXT, ...) to `app`. They write to `options`, which must outlive the parse.
// A value out of range becomes CLI::ValidationError, so a CLI11 program needs nothing else.
void AddModelFlags(CLI::App& app, ModelOptions& options);

// What a command line asked for: to serve, or to print `text` and leave with `exit_code`.
struct CommandLine {
  ServerOptions options;
  std::optional<int> exit_code;  // 0: --help, --version (text is for stdout); 2: usage (for stderr)
  std::string text;
};

// Flags over environment over --config FILE over defaults. Never throws, never prints.
CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPTIONS_H_

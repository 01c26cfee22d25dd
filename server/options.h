// What the server can be told: flags, environment and configuration file, all with the same names.
#ifndef LSSAR_SERVER_OPTIONS_H_
#define LSSAR_SERVER_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "runtime/engine.h"
#include "server/tls.h"

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

// Of a call that streams replies.
struct StreamOptions {
  int64_t buffer_bytes = int64_t{1} << 20;  // that may wait for the client before the call pauses
  // How long a client may read nothing while its call waits for it; zero: however long.
  absl::Duration client_timeout = absl::Seconds(60);
};

// Of the gRPC port.
struct ConnectionOptions {
  int max_calls = 256;  // of one connection at once
  // A connection that has been silent for so long is asked for a sign of life, and closed when none
  // comes. The answer is gRPC's own, so that a prefill of a minute costs no client its connection.
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
};

struct ServerOptions {
  ModelOptions model;
  std::string listen = "127.0.0.1:50051";  // host:port, port 0: any free one; empty: no port at all
  std::string http_listen = "127.0.0.1:8080";  // the same, for metrics and probes
  int http_max_connections = 4096;             // of the HTTP port at once
  std::vector<std::string> http_cors_origins;  // of web pages that may call; "*": all; empty: none
  TlsFiles tls;
  std::string api_keys;  // a file (api_keys.h); empty: everyone may call
  int max_calls = 1024;  // inside at once, running and queued
  ConnectionOptions connection;
  StreamOptions stream;
  absl::Duration drain_timeout = absl::Seconds(30);
  // An engine step that takes longer is stuck; zero: however long.
  absl::Duration step_timeout = absl::Seconds(60);
  std::string log_level = "info";  // debug | info | warning | error | off
};

// Adds the flags of ModelOptions (--model, --max-model-len, --kv-cache-dtype, ...) with their environment
// names (LSSAR_MAX_MODEL_LEN, ...) to `app`. They write to `options`, which must outlive the parse.
// A value out of range becomes CLI::ValidationError, so a CLI11 program needs nothing else.
void AddModelFlags(CLI::App& app, ModelOptions& options);

// What a command line asked for: to serve, to ask the server that does, or to print `text` and
// leave with `exit_code`.
struct CommandLine {
  ServerOptions options;
  bool check_health = false;     // health_probe.h
  std::optional<int> exit_code;  // 0: --help, --version (text is for stdout); 2: usage (for stderr)
  std::string text;
};

// Flags over environment over --config FILE over defaults. Never throws, never prints.
CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPTIONS_H_

// The server's options, set by flags, environment variables and a configuration file of the same
// names.
#ifndef LSSAR_SERVER_CONFIG_OPTIONS_H_
#define LSSAR_SERVER_CONFIG_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine_options.h"
#include "server/auth/api_keys.h"
#include "server/net/client_address.h"
#include "server/net/tls.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar {

// Options of model and engine. `lssar --model DIR` has the same flags.
struct ModelOptions {
  std::string directory;
  std::optional<DType> dtype;  // of the weights; nullopt: as stored in the checkpoint
  BackendOptions backend;
  EngineOptions engine;
  std::string draft_directory;       // of the draft model's checkpoint; empty: none
  std::optional<DType> draft_dtype;  // of its weights; nullopt: as stored
  // nullopt: kDraftModel with a draft_directory, else that of `engine`.
  std::optional<SpeculativeMethod> speculative_method;
  std::vector<std::string> served_names;  // of the model, in requests; empty: the checkpoint's
  int max_choices = limits::kMaxChoices;  // n of a request, at most
  // Requests may have another attention than the checkpoint's.
  bool allow_attention_override = false;
  bool allow_steering = false;  // they may change the residual stream
  // A checkpoint is served although its self-check has failed.
  bool allow_failed_self_check = false;
  OnSelfCheckProgress on_self_check = nullptr;  // called while the checkpoint is checked
};

// The method of `options`.
// Errors  INVALID_ARGUMENT, with the flags' names: kDraftModel without a draft model, or a draft
//         model with kNgram. With kOff it is not used
absl::StatusOr<SpeculativeMethod> ChooseSpeculativeMethod(const ModelOptions& options);

// Options of a call that streams replies.
struct StreamOptions {
  int64_t buffer_bytes = int64_t{1} << 20;  // buffered for the client before the request pauses
  // A client that reads nothing for this long while its call waits is disconnected; zero: no limit.
  absl::Duration client_timeout = absl::Seconds(60);
  // HTTP: where a stream of events had nothing to send for this long, a comment goes out; 0: none.
  absl::Duration comment_interval = absl::Seconds(15);
};

// Options of the ports' connections.
struct ConnectionOptions {
  int max_connections = 4096;  // of each port at the same time
  // From one IPv4 address or IPv6 /64 network, on each port; zero: no limit (behind a proxy).
  int max_connections_per_address = 1024;
  // Limits TLS and, on the gRPC port, for the client's HTTP/2 preface and settings.
  absl::Duration handshake_timeout = absl::Seconds(10);
  int max_calls = 256;  // at the same time, on one gRPC connection
  // A connection that is idle for keepalive_time is pinged and, without an answer within
  // keepalive_timeout, closed. gRPC answers pings itself, so a long prefill closes no connection.
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
};

struct ServerOptions {
  ModelOptions model;
  // HOST:PORT or unix:PATH; port 0: any free port; empty: no port
  std::string listen = "127.0.0.1:50051";
  std::string http_listen = "127.0.0.1:8080";  // HOST:PORT; port 0: any free port; empty: no port
  // Origins of web pages that may call the HTTP port (CORS); "*": all; empty: none.
  std::vector<std::string> http_cors_origins;
  // Has the files and batches of /v1/files and /v1/batches; empty: there are none.
  std::string batch_directory;
  int64_t batch_max_bytes = int64_t{10} << 30;  // of its files
  bool web_page = true;                         // at / of the HTTP port
  bool vllm_metrics = false;                    // /metrics has vLLM's names where there are such
  TlsFiles tls;
  std::string api_keys;  // path of the key file (api_keys.h); empty: no keys
  ClientLimits client_limits;
  TrustedProxies trusted_proxies;
  // False: a cached prefix serves only the API key whose requests computed it.
  bool share_prefix_cache_between_keys = false;
  int max_calls = 1024;  // at the same time, running and queued
  ConnectionOptions connection;
  StreamOptions stream;
  absl::Duration drain_timeout = absl::Seconds(30);
  // An engine step that spends longer in one layer is stuck; zero: no limit.
  absl::Duration step_timeout = absl::Seconds(60);
  std::string log_level = "info";  // info | warning | error | off
  std::string otlp_endpoint;       // of spans, as of ParseOtlpEndpoint; empty: none are sent
  double otlp_sample = 1;          // part of the traces that begin here, [0, 1]
};

// Adds the flags of ModelOptions (--model, --max-model-len, ...) with their environment variables
// (LSSAR_MAX_MODEL_LEN, ...) to `app`. They write to `options`, which must outlive the parse. A
// value out of range throws CLI::ConversionError, which CLI11 programs handle anyway.
void AddModelFlags(CLI::App& app, ModelOptions& options);

// Errors  INVALID_ARGUMENT: a flag of AddModelFlags that somebody has set, as `is_set` says of its
//         name ("draft-dtype"), has no effect without another one
absl::Status CheckModelFlags(const ModelOptions& options,
                             const std::function<bool(const std::string& name)>& is_set);

// The parsed command line: serve, probe the running server, or print `text` and exit.
struct CommandLine {
  ServerOptions options;
  bool check_health = false;  // health_probe.h
  std::optional<int>
      exit_code;  // 0: print to stdout (--help, --version); 2: usage error, print to stderr
  std::string text;
};

// A sentence for each LSSAR_ variable of `environment` (NAME=VALUE, nullptr at the end) that is no
// flag's and whose name is almost one's.
std::vector<std::string> MisspeltVariables(const char* const* environment);

// Flags override the environment, which overrides --config FILE, which overrides the defaults.
// Never throws or prints.
CommandLine ParseCommandLine(int argc, const char* const* argv);

}  // namespace lssar

#endif  // LSSAR_SERVER_CONFIG_OPTIONS_H_

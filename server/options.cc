#include "server/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "kernels/str_cat.h"
#include "runtime/limits.h"
#include "server/flags.h"

namespace lssar {
namespace {

constexpr std::string_view kExamples =
    R"(Every flag is also an environment variable (LSSAR_MAX_MODEL_LEN) and a line of the --config
file (max-model-len = 8192). A flag wins over the environment, the environment over the file.

Examples:
  lssar-server --model models/zoo/lssar-6m
  lssar-server --model models/zoo/lssar-6m --listen 0.0.0.0:50051 --max-model-len 8192)";

constexpr std::string_view kOff = "off";

// `or_off`: the word for no port at all, which leaves `target` empty, is a value too.
AssignFlag AssignListen(std::string* target, bool or_off) {
  return [=](const std::string& value) {
    if (or_off && value == kOff) {
      target->clear();
      return absl::OkStatus();
    }
    const size_t colon = value.rfind(':');
    int port = 0;
    if (colon == std::string::npos || colon == 0 ||
        !absl::SimpleAtoi(value.substr(colon + 1), &port) || port < 0 || port > 65535) {
      return absl::InvalidArgumentError(
          StrCat("it must be HOST:PORT with a port in [0, 65535], such as 127.0.0.1:50051",
                 or_off ? ", or off" : ""));
    }
    *target = value;
    return absl::OkStatus();
  };
}

AssignFlag AssignDevice(std::string* target) {
  return [target](const std::string& value) {
    const bool is_numbered = value.starts_with("cuda:");
    int device_idx = 0;
    if (value != "cpu" && value != "cuda" && value != "reference" &&
        !(is_numbered && absl::SimpleAtoi(value.substr(5), &device_idx) && device_idx >= 0)) {
      return absl::InvalidArgumentError(
          "it must be cpu, cuda, cuda:N such as cuda:0, or reference");
    }
    *target = value;
    return absl::OkStatus();
  };
}

AssignFlag AssignQueuedTokens(int64_t* target) {
  return [target](const std::string& value) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(value, &number) || number < 0 || number > limits::kMaxQueuedTokens) {
      return absl::InvalidArgumentError(
          StrCat("it must be a number in [0, ", limits::kMaxQueuedTokens, "]"));
    }
    *target = number;
    return absl::OkStatus();
  };
}

std::vector<Flag> MemoryFlags(ModelOptions& options) {
  EngineOptions& engine = options.engine;
  return {
      {"dtype", "Memory", "TYPE",
       "How weights are kept: auto (as the checkpoint stores them), fp32, fp16, bf16, int8; "
       "default auto",
       AssignChoice(
           {"auto", "fp32", "fp16", "bf16", "int8"},
           [&options](size_t i) {
             constexpr std::array kTypes = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8};
             options.weights = std::nullopt;
             if (i > 0) options.weights = kTypes.at(i - 1);
           })},
      {"kv-cache-dtype", "Memory", "TYPE",
       "Elements of the key/value cache: fp16, fp32, int8; default fp16",
       AssignChoice({"fp16", "fp32", "int8"},
                    [&engine](size_t i) {
                      constexpr std::array kTypes = {DType::kF16, DType::kF32, DType::kI8};
                      engine.kv_cache_dtype = kTypes.at(i);
                    })},
      {"kv-cache-memory", "Memory", "BYTES",
       "Size of the key/value cache, with K, M or G; default 0: four sequences of max-model-len, "
       "at "
       "most half of the free memory; on cuda max-num-seqs of them, at most what is free",
       AssignBytes(&engine.kv_cache_bytes, 0, int64_t{1} << 50)},
      {"prefix-cache", "Memory", "on|off",
       "Keep the pages of prompts and answers for requests that begin the same way; default on",
       AssignChoice({"on", "off"}, [&engine](size_t i) { engine.prefix_cache = i == 0; })},
      {"page-size", "Memory", "TOKENS",
       "Tokens that a page of the cache holds: 16, 32, 64, 128, 256; default 64",
       AssignChoice({"16", "32", "64", "128", "256"},
                    [&engine](size_t i) { engine.page_size = kMinPageSize << i; })},
  };
}

std::vector<Flag> ModelFlags(ModelOptions& options) {
  EngineOptions& engine = options.engine;
  std::vector<Flag> flags = {
      {"model", "Model", "DIR",
       "Checkpoint: a directory with config.json, model.safetensors, tokenizer.model; required",
       AssignText(&options.directory)},
      {"max-model-len", "Limits", "TOKENS",
       StrCat("Prompt and output of one request together, [2, ", limits::kMaxModelLen,
              "]; default 16384"),
       AssignInt(&engine.max_model_len, 2, limits::kMaxModelLen)},
      {"max-num-seqs", "Limits", "COUNT",
       StrCat("Sequences that run at once, [1, ", limits::kMaxNumSeqs, "]; default 64"),
       AssignInt(&engine.max_num_seqs, 1, limits::kMaxNumSeqs)},
      {"max-queued-requests", "Limits", "COUNT",
       StrCat("Requests that may wait; one more is refused, [1, ", limits::kMaxQueuedRequests,
              "]; default 64"),
       AssignInt(&engine.max_queued_requests, 1, limits::kMaxQueuedRequests)},
      {"max-queued-tokens", "Limits", "TOKENS",
       StrCat("Prompt tokens that may wait; more are refused, [0, ", limits::kMaxQueuedTokens,
              "]; default 0: 16 times max-model-len"),
       AssignQueuedTokens(&engine.max_queued_tokens)},
      {"max-num-batched-tokens", "Limits", "TOKENS",
       StrCat("Tokens that one engine step computes at most, [1, ", limits::kMaxNumBatchedTokens,
              "]; default 512"),
       AssignInt(&engine.max_num_batched_tokens, 1, limits::kMaxNumBatchedTokens)},
      {"max-num-partial-prefills", "Limits", "COUNT",
       StrCat("Prompts that advance in a step in which others decode, [1, ", limits::kMaxNumSeqs,
              "]; default 16"),
       AssignInt(&engine.max_num_partial_prefills, 1, limits::kMaxNumSeqs)},
      {"chunked-prefill-size", "Limits", "TOKENS",
       StrCat("Prompt tokens of such a step, fewer deep in a long prompt, [1, ",
              limits::kMaxNumBatchedTokens, "]; default 32"),
       AssignInt(&engine.chunked_prefill_size, 1, limits::kMaxNumBatchedTokens)},
      {"device", "Machine", "DEVICE",
       "What computes: cpu, cuda or cuda:N (the Nth NVIDIA GPU, from 0), or reference (slow, "
       "double "
       "precision); default cpu",
       AssignDevice(&options.backend.name)},
      {"gemm", "Machine", "exact|fast",
       "Matrix products of --device cuda: exact, or fast: prompts through cuBLASLt, bits then "
       "depend on the batch; default exact",
       AssignChoice({"exact", "fast"},
                    [&options](size_t i) { options.backend.fast_gemm = i == 1; })},
      {"threads", "Machine", "COUNT",
       "Threads that compute on --device cpu, [0, 1024]; default 0: one per core this process may "
       "use",
       AssignInt(&options.backend.num_threads, 0, 1024)},
  };
  for (Flag& flag : MemoryFlags(options)) flags.push_back(std::move(flag));
  return flags;
}

std::vector<Flag> ServerFlags(ServerOptions& options) {
  std::vector<std::string> levels = {"debug", "info", "warning", "error", "off"};
  return {
      {"listen", "Serving", "HOST:PORT",
       "Address to listen on; port 0 takes a free one; default 127.0.0.1:50051",
       AssignListen(&options.listen, /*or_off=*/false)},
      {"http-listen", "Serving", "HOST:PORT",
       "Address of the HTTP port: OpenAI's API, /metrics, /healthz, /readyz; port 0 takes a free "
       "one, off opens "
       "none; default 127.0.0.1:8080",
       AssignListen(&options.http_listen, /*or_off=*/true)},
      {"drain-timeout", "Serving", "TIME",
       "How long SIGTERM lets running requests finish, [0, 1h]; default 30s",
       AssignDuration(&options.drain_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"step-timeout", "Serving", "TIME",
       "How long an engine step may take; a longer one is stuck, and the server ends with exit "
       "code "
       "3; 0: however long, [0, 1h]; default 1m",
       AssignDuration(&options.step_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"log-level", "Serving", "LEVEL",
       "Least severe log line: debug, info, warning, error, off; default info",
       AssignChoice(levels, [&options, levels](size_t i) { options.log_level = levels[i]; })},
  };
}

std::vector<Flag> ConnectionFlags(ServerOptions& options) {
  const std::string calls = StrCat("[1, ", limits::kMaxCalls, "]");
  ConnectionOptions& connection = options.connection;
  return {
      {"max-calls", "Limits", "COUNT",
       StrCat("Calls inside at once, running and queued; one more is refused, ", calls,
              "; default 1024"),
       AssignInt(&options.max_calls, 1, limits::kMaxCalls)},
      {"max-connection-calls", "Limits", "COUNT",
       StrCat("Calls of one connection at once; one more waits in its client, ", calls,
              "; default 256"),
       AssignInt(&connection.max_calls, 1, limits::kMaxCalls)},
      {"stream-buffer", "Limits", "BYTES",
       "Replies that may wait for a slow client before its request pauses, with K, M or G, "
       "[4K, 1G]; default 1M",
       AssignBytes(&options.stream.buffer_bytes, int64_t{4} << 10, int64_t{1} << 30)},
      {"slow-client-timeout", "Limits", "TIME",
       "How long a client may read nothing while its request waits for it, [0, 1h]; 0: however "
       "long; default 1m",
       AssignDuration(&options.stream.client_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"keepalive-time", "Serving", "TIME",
       "Silence after which a connection is asked for a sign of life, [1s, 1h]; default 1m",
       AssignDuration(&connection.keepalive_time, absl::Seconds(1), absl::Hours(1))},
      {"keepalive-timeout", "Serving", "TIME",
       "How long the sign of life may take before the connection is closed, [1s, 1h]; default 20s",
       AssignDuration(&connection.keepalive_timeout, absl::Seconds(1), absl::Hours(1))},
  };
}

AssignFlag AssignOrigins(std::vector<std::string>* target) {
  return [target](const std::string& value) {
    std::vector<std::string> origins;
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      const std::string origin = value.substr(begin, end - begin);
      const bool has_scheme = origin.starts_with("http://") || origin.starts_with("https://");
      if (origin != "*" && (!has_scheme || origin.ends_with('/') ||
                            origin.find_first_of(" \t\r\n") != std::string::npos)) {
        return absl::InvalidArgumentError(
            "it must be * or origins such as https://chat.example.org, with commas between them");
      }
      origins.push_back(origin);
      begin = end + 1;
    }
    *target = std::move(origins);
    return absl::OkStatus();
  };
}

std::vector<Flag> HttpFlags(ServerOptions& options) {
  return {
      {"http-max-connections", "Limits", "COUNT",
       "Connections of the HTTP port at once; one more is answered with 503, [1, 65536]; default "
       "4096",
       AssignInt(&options.http_max_connections, 1, limits::kMaxCalls)},
      {"http-cors-origins", "Security", "ORIGINS",
       "Web pages that may call the HTTP port from a browser: origins such as "
       "https://chat.example.org with commas between them, or *; default: none",
       AssignOrigins(&options.http_cors_origins)},
  };
}

std::vector<Flag> SecurityFlags(ServerOptions& options) {
  return {
      {"tls-cert", "Security", "FILE",
       "PEM certificate of both ports and what leads to its root, read again when it changes; "
       "default: no TLS",
       AssignText(&options.tls.certificate)},
      {"tls-key", "Security", "FILE", "Its PEM key, without a passphrase",
       AssignText(&options.tls.key)},
      {"tls-client-ca", "Security", "FILE",
       "PEM roots of clients' certificates: a client needs one; default: it needs none",
       AssignText(&options.tls.client_ca)},
      {"api-keys", "Security", "FILE",
       "TOML with a section for each key (server/OPERATIONS.md), read again when it changes; "
       "default: everyone may call",
       AssignText(&options.api_keys)},
  };
}

CommandLine Usage(const std::string& sentence) {
  CommandLine line;
  line.exit_code = 2;
  line.text = StrCat("lssar-server: ", sentence, "\nlssar-server --help lists the flags.\n");
  return line;
}

CommandLine Print(std::string text) {
  CommandLine line;
  line.exit_code = 0;
  line.text = std::move(text);
  return line;
}

absl::Status CheckTls(const TlsFiles& tls) {
  if (tls.certificate.empty() != tls.key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together: give both or none");
  }
  if (!tls.client_ca.empty() && !tls.HasTls()) {
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  return absl::OkStatus();
}

// Runs the parser over the command line and the environment; a result means: do not go on.
std::optional<CommandLine> RunParser(CLI::App& app, std::vector<std::string> known_names, int argc,
                                     const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Print(app.help());
  } catch (const CLI::CallForVersion&) {
    return Print(StrCat("lssar-server ", LSSAR_VERSION, "\n"));
  } catch (const CLI::ExtrasError&) {
    return Usage(DescribeUnknown(app.remaining(), known_names));
  } catch (const CLI::ParseError& error) {
    return Usage(error.what());
  }
  return std::nullopt;
}

}  // namespace

void AddModelFlags(CLI::App& app, ModelOptions& options) { AddFlags(app, ModelFlags(options)); }

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app("Serves an LSSAR model over gRPC.", "lssar-server");
  std::vector<Flag> flags = ModelFlags(line.options.model);
  for (auto* more : {ServerFlags, ConnectionFlags, HttpFlags, SecurityFlags}) {
    for (Flag& flag : more(line.options)) flags.push_back(std::move(flag));
  }
  AddFlags(app, flags);

  std::string config_path;
  app.add_option("--config", config_path, "File of the same names, TOML: max-model-len = 8192")
      ->type_name("FILE")
      ->group("Other")
      ->envname(EnvironmentName("config"));
  app.add_flag(
         "--check-health", line.check_health,
         "Ask the server that runs here with the same flags whether it serves, and leave with "
         "exit code 0 or 1; needs no --model")
      ->group("Other");
  app.set_help_flag("--help,-h", "Print this help")->group("Other");
  app.set_version_flag("--version", LSSAR_VERSION, "Print the version")->group("Other");
  app.footer(std::string(kExamples));

  std::vector<std::string> known_names = {"check-health", "config", "help", "version"};
  for (const Flag& flag : flags) known_names.push_back(flag.name);
  if (auto stop = RunParser(app, std::move(known_names), argc, argv)) return *std::move(stop);
  if (!config_path.empty()) {
    const absl::Status status = ApplyConfigFile(config_path, app, flags);
    if (!status.ok()) return Usage(StrCat("--config ", status.message()));
  }
  if (line.options.model.directory.empty() && !line.check_health) {
    return Usage("--model DIR is missing; for a first try: --model models/zoo/lssar-6m");
  }
  if (const absl::Status status = CheckTls(line.options.tls); !status.ok()) {
    return Usage(std::string(status.message()));
  }
  return line;
}

}  // namespace lssar

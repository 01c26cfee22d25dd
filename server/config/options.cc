#include "server/config/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/str_cat.h"
#include "kernels/dtype.h"
#include "models/page_pool.h"
#include "runtime/limits.h"
#include "server/config/flags.h"
#include "server/config/limits.h"
#include "server/http/cross_origin.h"
#include "server/net/host_port.h"
#include "server/net/unix_socket.h"
#include "server/ops/otlp_exporter.h"

namespace lssar {
namespace {

constexpr std::string_view kExamples =
    R"(Every flag can also be set by an environment variable (LSSAR_MAX_MODEL_LEN) and in the
--config file (max-model-len = 8192). Flags override the environment, which overrides the file.

Examples:
  lssar-server --model models/zoo/lssar-6m
  lssar-server --model models/zoo/lssar-6m --listen 0.0.0.0:50051 --max-model-len 8192)";

constexpr std::string_view kOff = "off";
constexpr size_t kMaxModelNameBytes = 128;  // of a model

// `or_off`: also accepts "off", which opens no port and clears `target`.
AssignFlag AssignListen(std::string* target, bool or_off) {
  return [=](const std::string& value) {
    if (or_off && value == kOff) {
      target->clear();
      return absl::OkStatus();
    }
    if (!SplitHostPort(value)) {
      return absl::InvalidArgumentError(
          StrCat("it must be HOST:PORT with a port in [0, 65535], such as 127.0.0.1:50051, an IPv6 "
                 "address in brackets: [::1]:50051",
                 or_off ? "; or off" : ""));
    }
    *target = value;
    return absl::OkStatus();
  };
}

// HOST:PORT, or unix:PATH for the gRPC port.
AssignFlag AssignGrpcListen(std::string* target) {
  return [=, assign = AssignListen(target, /*or_off=*/false)](const std::string& value) {
    if (!IsUnixSocket(value)) return assign(value);
    const size_t num_bytes = value.size() - kUnixPrefix.size();
    if (num_bytes == 0 || num_bytes > kMaxUnixPathBytes) {
      return absl::InvalidArgumentError(StrCat("the path of a Unix socket has 1 to ",
                                               kMaxUnixPathBytes, " bytes, this one has ",
                                               num_bytes));
    }
    *target = value;
    return absl::OkStatus();
  };
}

// "[1, 1024]; default 64", with the default that `target` holds.
template <typename Int>
std::string RangeAndDefault(const Int& target, limits::Range<Int> range) {
  return StrCat("[", range.min, ", ", range.max, "]; default ", target);
}

// A flag whose help ends with its range and default.
template <typename Int>
Flag IntFlag(const char* name, const char* group, const char* value_name, std::string_view meaning,
             Int* target, limits::Range<Int> range) {
  return {name, group, value_name, StrCat(meaning, ", ", RangeAndDefault(*target, range)),
          AssignInt(target, range)};
}

template <typename Int>
Flag TokensFlag(const char* name, const char* group, std::string_view meaning, Int* target,
                limits::Range<Int> range) {
  Flag flag = IntFlag(name, group, "TOKENS", meaning, target, range);
  flag.assign = AssignTokens(target, range);
  return flag;
}

// Names of weight types, "auto" first, and the flag that sets one.
std::vector<std::string> WeightTypes() {
  std::vector<std::string> types = {"auto"};
  for (const DTypeInfo& info : kDTypes) {
    if (info.holds_weights) types.emplace_back(info.name);
  }
  return types;
}
AssignFlag AssignWeightType(std::optional<DType>* target) {
  return AssignChoice(WeightTypes(), [target](size_t i) {
    *target = std::nullopt;
    if (i > 0) *target = kDTypes[i - 1].dtype;
  });
}

// Names of KvTypes, and the flag that sets one.
std::vector<std::string> KvTypeNames() {
  std::vector<std::string> names;
  for (const DType type : KvTypes()) names.emplace_back(NameOf(type));
  return names;
}
AssignFlag AssignKvType(DType* target) {
  return AssignChoice(KvTypeNames(), [target](size_t i) { *target = KvTypes()[i]; });
}

std::vector<Flag> MemoryFlags(ModelOptions& options) {
  EngineOptions& engine = options.engine;
  return {
      {"dtype", "Memory", "TYPE",
       StrCat("Data type of the weights: ", StrJoin(WeightTypes()),
              " (auto: as stored in the checkpoint); default auto"),
       AssignWeightType(&options.dtype)},
      {"kv-cache-dtype", "Memory", "TYPE",
       StrCat("Data type of the KV cache: ", StrJoin(KvTypeNames()),
              " (fx16, for models whose attention is lssar: keys in 16-bit fixed point, half of "
              "whose bytes a step reads for most keys; slower than fp16 on CPUs without VNNI and "
              "on GPUs); default fp16"),
       AssignKvType(&engine.kv_cache_dtype)},
      {"kv-cache-memory", "Memory", "BYTES",
       "Size of the KV cache in bytes, with suffix K, M or G for powers of 1024; default 0: on the "
       "CPU four sequences of max-model-len, at most half of the available memory; on a GPU "
       "max-num-seqs of them, at most the free memory less a reserve",
       AssignBytes(&engine.kv_cache_bytes, limits::kKvCacheBytes)},
      {"enable-prefix-caching", "Memory", "",
       "Reuse the cached pages of earlier requests that have the same prefix; default enabled",
       AssignBool(&engine.enable_prefix_caching), /*is_switch=*/true},
      {"page-size", "Memory", "TOKENS",
       "Tokens per page of the KV cache: 16, 32, 64, 128 or 256; default 64",
       AssignChoice({"16", "32", "64", "128", "256"},
                    [&engine](size_t i) { engine.page_size = kMinPageSize << i; })},
  };
}

std::vector<Flag> SpeculationFlags(ModelOptions& options) {
  EngineOptions& engine = options.engine;
  return {
      {"speculative", "Speculative decoding", "METHOD",
       "Draft tokens that the model verifies several in one step; the output has the same bits "
       "(on cuda with --batch-invariant). "
       "ngram: what followed the last tokens where they occurred before in the prompt or output; "
       "draft-model: what the model of --draft-model says; off: nothing, and no draft model is "
       "loaded; default draft-model with --draft-model, else off",
       AssignChoice({"off", "ngram", "draft-model"},
                    [&options](size_t i) {
                      constexpr std::array kMethods = {SpeculativeMethod::kOff,
                                                       SpeculativeMethod::kNgram,
                                                       SpeculativeMethod::kDraftModel};
                      options.speculative_method = kMethods.at(i);
                    })},
      {"draft-model", "Speculative decoding", "DIR",
       "Checkpoint directory of a draft model: one with the tokenizer of --model that is several "
       "times faster and says the same most of the time; not with --device cuda; default none",
       AssignText(&options.draft_directory)},
      {"draft-dtype", "Speculative decoding", "TYPE",
       StrCat("Data type of the draft model's weights, as --dtype: ", StrJoin(WeightTypes()),
              "; default auto"),
       AssignWeightType(&options.draft_dtype)},
      TokensFlag(
          "num-speculative-tokens", "Speculative decoding",
          "Draft tokens of a sequence in one step, at most; fewer where they are not accepted "
          "or the step has no time to spare",
          &engine.num_speculative_tokens, limits::kNumSpeculativeTokens),
      TokensFlag("prompt-lookup-min", "Speculative decoding",
                 "Last tokens that must have occurred before, at most prompt-lookup-max",
                 &engine.prompt_lookup_min, limits::kPromptLookupLength),
      TokensFlag("prompt-lookup-max", "Speculative decoding",
                 "Last tokens that are compared, to find the longest match",
                 &engine.prompt_lookup_max, limits::kPromptLookupLength),
  };
}

std::vector<Flag> ModelFlags(ModelOptions& options) {
  EngineOptions& engine = options.engine;
  std::vector<Flag> flags = {
      {"model", "Model", "DIR",
       "Checkpoint directory with config.json, model.safetensors and tokenizer files; required",
       AssignText(&options.directory)},
      {"allow-failed-self-check", "Model", "",
       "Serve a checkpoint whose self-check has failed, with a warning and in GetInfo; default off",
       AssignBool(&options.allow_failed_self_check), /*is_switch=*/true},
      TokensFlag("max-model-len", "Limits",
                 "Context length: prompt and output tokens of one request together, 16K is 16384; "
                 "at most the number of a model's learned positions",
                 &engine.max_model_len, limits::kMaxModelLen),
      IntFlag("max-num-seqs", "Limits", "COUNT",
              "Sequences that run at the same time; each choice of a request is one",
              &engine.max_num_seqs, limits::kMaxNumSeqs),
      IntFlag("max-n", "Limits", "COUNT",
              "Choices of one request (n), at most; they run together, so that no more than "
              "max-num-seqs ever do",
              &options.max_choices, limits::kMaxN),
      IntFlag("max-queued-requests", "Limits", "COUNT",
              "Requests in the waiting queue; further requests are rejected",
              &engine.max_queued_requests, limits::kMaxQueuedRequests),
      {"max-queued-tokens", "Limits", "TOKENS",
       StrCat("Prompt tokens in the waiting queue; further requests are rejected, ",
              RangeAndDefault(engine.max_queued_tokens, limits::kMaxQueuedTokens),
              ": 16 times max-model-len"),
       AssignTokens(&engine.max_queued_tokens, limits::kMaxQueuedTokens)},
      TokensFlag("max-num-batched-tokens", "Limits", "Tokens computed in one engine step",
                 &engine.max_num_batched_tokens, limits::kMaxNumBatchedTokens),
      IntFlag("max-num-partial-prefills", "Limits", "COUNT",
              "Prompts that are prefilled in a step in which other sequences decode",
              &engine.max_num_partial_prefills, limits::kMaxNumPartialPrefills),
      TokensFlag("chunked-prefill-size", "Limits",
                 "Prompt tokens of all these prompts in such a step, fewer deep in a long prompt",
                 &engine.chunked_prefill_size, limits::kChunkedPrefillSize),
  };
  for (Flag& flag : SpeculationFlags(options)) flags.push_back(std::move(flag));
  flags.push_back(
      {"attention-sample-interval", "Machine", "STEPS",
       StrCat("Steps from one sample of attention statistics (GetStats, metrics) to the next; a "
              "sample costs 0.2 us for each key of one row, ",
              RangeAndDefault(engine.attention_sample_interval, limits::kAttentionSampleInterval),
              ": none"),
       AssignInt(&engine.attention_sample_interval, limits::kAttentionSampleInterval)});
  for (const BackendFlag& flag : BackendFlags()) {
    flags.push_back({flag.name, "Machine", flag.value_name, flag.help,
                     [&options, parse = flag.parse](const std::string& value) {
                       return parse(value, &options.backend);
                     },
                     /*is_switch=*/flag.value_name.empty()});
  }
  for (Flag& flag : MemoryFlags(options)) flags.push_back(std::move(flag));
  return flags;
}

// Names of a model, with commas between them.
AssignFlag AssignNames(std::vector<std::string>* target) {
  return [target](const std::string& value) {
    std::vector<std::string> names;
    for (const std::string& name : std::vector<std::string>(absl::StrSplit(value, ','))) {
      const bool is_plain = std::ranges::all_of(name, [](unsigned char c) {
        return absl::ascii_isalnum(c) ||
               std::string_view("._-:/@+").find(char(c)) != std::string_view::npos;
      });
      if (name.empty() || name.size() > kMaxModelNameBytes || !is_plain) {
        return absl::InvalidArgumentError(
            StrCat("it must be names such as org/model, with commas between them; a name has 1 to ",
                   kMaxModelNameBytes, " of letters, digits and . _ - : / @ +"));
      }
      if (std::ranges::count(names, name) > 0) {
        return absl::InvalidArgumentError(StrCat("it has the name ", name, " twice"));
      }
      names.push_back(name);
    }
    *target = std::move(names);
    return absl::OkStatus();
  };
}

AssignFlag AssignOtlpEndpoint(std::string* target) {
  return [target](const std::string& value) {
    const absl::Status status = ParseOtlpEndpoint(value).status();
    if (status.ok()) *target = value;
    return status;
  };
}

AssignFlag AssignRatio(double* target) {
  return [target](const std::string& value) {
    double ratio = -1;
    if (!absl::SimpleAtod(value, &ratio) || !(ratio >= 0 && ratio <= 1)) {
      return absl::InvalidArgumentError("it must be a number in [0, 1]");
    }
    *target = ratio;
    return absl::OkStatus();
  };
}

std::vector<Flag> ServerFlags(ServerOptions& options) {
  std::vector<std::string> levels = {"info", "warning", "error", "off"};
  return {
      {"listen", "Serving", "ADDRESS",
       "Address of the gRPC port, HOST:PORT or unix:PATH; port 0 selects a free port; default "
       "127.0.0.1:50051",
       AssignGrpcListen(&options.listen)},
      {"http-listen", "Serving", "HOST:PORT",
       "Address of the HTTP port (OpenAI-compatible API, metrics, probes); port 0 selects a free "
       "port, off opens none; default 127.0.0.1:8080",
       AssignListen(&options.http_listen, /*or_off=*/true)},
      {"served-model-name", "Serving", "NAMES",
       "Names that requests may give the model, separated by commas, such as org/model,other; the "
       "first one is in replies to requests that give none, and in GetInfo; default: the "
       "checkpoint's",
       AssignNames(&options.model.served_names)},
      {"allow-attention-override", "Serving", "",
       "Let requests set attention_override: another p or kind than the checkpoint's, for sweeps; "
       "default off",
       AssignBool(&options.model.allow_attention_override), /*is_switch=*/true},
      {"allow-steering", "Serving", "",
       "Let requests set steering: vectors that are added to the residual stream; default off",
       AssignBool(&options.model.allow_steering), /*is_switch=*/true},
      {"drain-timeout", "Serving", "TIME",
       "Time for running requests to finish after SIGTERM, [0, 1h]; default 30s",
       AssignDuration(&options.drain_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"step-timeout", "Serving", "TIME",
       "Maximum time of an engine step in one layer; a step that takes longer counts as stuck, and "
       "the server exits with code 3, [0, 1h], 0: no limit; default 1m",
       AssignDuration(&options.step_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"log-level", "Serving", "LEVEL",
       "Minimum level of log lines: info, warning, error or off; default info",
       AssignChoice(levels, [&options, levels](size_t i) { options.log_level = levels[i]; })},
      {"otlp-endpoint", "Serving", "URL",
       "OpenTelemetry collector that gets a trace of each call over OTLP/HTTP as JSON, such as "
       "http://127.0.0.1:4318; without a path: /v1/traces; default: none",
       AssignOtlpEndpoint(&options.otlp_endpoint)},
      {"otlp-sample", "Serving", "RATIO",
       "Part of the calls without a traceparent that are traced, [0, 1]; a call with one is traced "
       "if it says so; default 1",
       AssignRatio(&options.otlp_sample)},
  };
}

std::vector<Flag> ConnectionFlags(ServerOptions& options) {
  ConnectionOptions& connection = options.connection;
  return {
      IntFlag("max-calls", "Limits", "COUNT",
              "Calls at the same time, running and queued; further calls are rejected",
              &options.max_calls, limits::kMaxCalls),
      IntFlag("max-connections", "Limits", "COUNT",
              "Connections of each port at the same time; further ones are refused",
              &connection.max_connections, limits::kMaxConnections),
      IntFlag("max-connections-per-address", "Limits", "COUNT",
              "Connections of one IPv4 address or IPv6 /64 network on each port; 0, for ports "
              "behind a proxy: no limit",
              &connection.max_connections_per_address, limits::kMaxConnectionsPerAddress),
      {"handshake-timeout", "Limits", "TIME",
       "Time for a new connection's TLS handshake and HTTP/2 preface, [100ms, 5m]; default 10s",
       AssignDuration(&connection.handshake_timeout, absl::Milliseconds(100), absl::Minutes(5))},
      IntFlag("max-connection-calls", "Limits", "COUNT",
              "gRPC calls of one connection at the same time; further calls wait in the client",
              &connection.max_calls, limits::kMaxCalls),
      {"stream-buffer", "Limits", "BYTES",
       "Bytes of replies buffered for a slow client before its request pauses, with suffix K, M or "
       "G, [4K, 1G]; default 1M",
       AssignBytes(&options.stream.buffer_bytes, {int64_t{4} << 10, int64_t{1} << 30})},
      {"slow-client-timeout", "Limits", "TIME",
       "Time after which a client that reads nothing while its request waits, or less than "
       "--stream-buffer of a larger reply, is disconnected, [0, 1h], 0: no limit; default 1m",
       AssignDuration(&options.stream.client_timeout, absl::ZeroDuration(), absl::Hours(1))},
      {"sse-comment-interval", "Serving", "TIME",
       "Time without an event after which an HTTP stream gets a comment, so that no proxy takes it "
       "for dead while its request waits or its prompt is computed, [0, 1h], 0: none; default 15s",
       AssignDuration(&options.stream.comment_interval, absl::ZeroDuration(), absl::Hours(1))},
      {"keepalive-time", "Serving", "TIME",
       "Idle time after which a gRPC connection is pinged, [1s, 1h]; default 1m",
       AssignDuration(&connection.keepalive_time, absl::Seconds(1), absl::Hours(1))},
      {"keepalive-timeout", "Serving", "TIME",
       "Time to answer such a ping before the connection is closed, [1s, 1h]; default 20s",
       AssignDuration(&connection.keepalive_timeout, absl::Seconds(1), absl::Hours(1))},
  };
}

AssignFlag AssignOrigins(std::vector<std::string>* target) {
  return [target](const std::string& value) {
    std::vector<std::string> origins;
    for (const std::string& origin : std::vector<std::string>(absl::StrSplit(value, ','))) {
      if (const absl::Status status = CheckListedOrigin(origin); !status.ok()) {
        return absl::InvalidArgumentError(StrCat(
            "it must be * or origins such as https://chat.example.org, with commas between them: ",
            status.message()));
      }
      origins.push_back(origin);
    }
    *target = std::move(origins);
    return absl::OkStatus();
  };
}

std::vector<Flag> HttpFlags(ServerOptions& options) {
  return {
      {"http-cors-origins", "Security", "ORIGINS",
       "Origins of web pages that may call the HTTP port (CORS), and that its own page may call to "
       "show a second server; separated by commas, such as https://chat.example.org, "
       "https://*.example.org, http://localhost:* or app://obsidian.md, or * for all; default none",
       AssignOrigins(&options.http_cors_origins)},
      {"batch-dir", "Serving", "DIR",
       "Directory of this server alone for /v1/files and /v1/batches, which go on after a restart; "
       "default: off",
       AssignText(&options.batch_directory)},
      {"batch-max-bytes", "Limits", "BYTES",
       "Size of all files in --batch-dir, with suffix K, M or G, [1M, 2^50]; an API key has half "
       "of it; default 10G",
       AssignBytes(&options.batch_max_bytes, limits::kBatchBytes)},
      {"metrics-prefix", "Serving", "PREFIX",
       "Names of the metrics: lssar, or vllm for those of vLLM, with its labels, where it has the "
       "same metric (vllm:num_requests_running); default lssar",
       AssignChoice({"lssar", "vllm"}, [&options](size_t i) { options.vllm_metrics = i == 1; })},
      {"web-page", "Security", "on|off", "The web page at / of the HTTP port; default on",
       AssignChoice({"on", "off"}, [&options](size_t i) { options.web_page = i == 0; })},
  };
}

std::vector<Flag> SecurityFlags(ServerOptions& options) {
  return {
      {"tls-cert", "Security", "FILE",
       "PEM certificate chain of both ports, reloaded when it changes; default: no TLS",
       AssignText(&options.tls.certificate)},
      {"tls-key", "Security", "FILE", "PEM private key of --tls-cert, without a passphrase",
       AssignText(&options.tls.key)},
      {"tls-client-ca", "Security", "FILE",
       "PEM root certificates; clients must then present a certificate that one of them has "
       "signed, except for health checks; default: clients need none",
       AssignText(&options.tls.client_ca)},
      {"share-prefix-cache-between-keys", "Security", "",
       "Let requests of one API key reuse prefixes that another key's requests have computed: "
       "faster, but response times show what others have sent; default off",
       AssignBool(&options.share_prefix_cache_between_keys), /*is_switch=*/true},
      {"api-keys", "Security", "FILE",
       "TOML file with one section per API key (server/OPERATIONS.md), reloaded when it changes; "
       "default: no key required",
       AssignText(&options.api_keys)},
      IntFlag("client-max-sequences", "Security", "COUNT",
              "Sequences of one client at the same time, waiting or running: an API key that sets "
              "no max-sequences, or an address where there are no keys; 0: no limit",
              &options.client_limits.max_sequences, limits::kMaxClientSequences),
      IntFlag("client-max-queued", "Security", "COUNT",
              "Waiting requests of one client at the same time; 0: no limit",
              &options.client_limits.max_queued, limits::kMaxClientQueued),
      IntFlag("client-max-priority", "Security", "PRIORITY",
              "Highest priority that one client may ask for", &options.client_limits.max_priority,
              limits::kMaxClientPriority),
      {"trusted-proxies", "Security", "ADDRESSES",
       "Addresses and networks of proxies, separated by commas, such as 10.0.0.0/8, or unix: their "
       "x-forwarded-for says who the client is; default none",
       [&options](const std::string& value) {
         auto proxies = TrustedProxies::Parse(value);
         if (proxies.ok()) options.trusted_proxies = *std::move(proxies);
         return proxies.status();
       }},
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
    return absl::InvalidArgumentError("--tls-cert and --tls-key go together: set both or none");
  }
  return absl::OkStatus();
}

// With --speculative off all of them are set aside: that is what it says.
std::vector<FlagNeed> ModelNeeds(const ModelOptions& options) {
  const auto method = options.speculative_method;
  const bool is_off = method == SpeculativeMethod::kOff;
  const bool has_draft_model = !options.draft_directory.empty();
  const bool has_ngram = is_off || method == SpeculativeMethod::kNgram;
  return {
      {"draft-dtype", is_off || has_draft_model, "--draft-model DIR"},
      {"num-speculative-tokens", has_ngram || has_draft_model,
       "--speculative ngram or --draft-model DIR"},
      {"prompt-lookup-min", has_ngram, "--speculative ngram"},
      {"prompt-lookup-max", has_ngram, "--speculative ngram"},
  };
}

std::vector<FlagNeed> ServerNeeds(const ServerOptions& options) {
  const bool has_http = !options.http_listen.empty();
  const std::string http = "the HTTP port: leave --http-listen off out";
  const bool shares = options.share_prefix_cache_between_keys;
  return {
      // Who may connect to a Unix socket is a matter of its directory: it has no TLS.
      {"tls-cert", has_http || !IsUnixSocket(options.listen),
       "a TCP port, which --listen or --http-listen opens", /*allows_variable=*/true},
      {"tls-client-ca", options.tls.HasTls(), "--tls-cert and --tls-key"},
      {"otlp-sample", !options.otlp_endpoint.empty(), "--otlp-endpoint URL"},
      {"batch-max-bytes", !options.batch_directory.empty(), "--batch-dir DIR"},
      {"batch-dir", has_http, http},
      {"http-cors-origins", has_http, http, /*allows_variable=*/true},
      {"metrics-prefix", has_http || !options.vllm_metrics, http, /*allows_variable=*/true},
      {"sse-comment-interval", has_http, http, /*allows_variable=*/true},
      {"web-page", has_http || !options.web_page, http, /*allows_variable=*/true},
      {"share-prefix-cache-between-keys", !shares || !options.api_keys.empty(), "--api-keys FILE"},
      {"share-prefix-cache-between-keys", !shares || options.model.engine.enable_prefix_caching,
       "the prefix cache: leave --no-enable-prefix-caching out"},
  };
}

absl::Status CheckPromptLookup(const EngineOptions& options) {
  if (options.prompt_lookup_min <= options.prompt_lookup_max) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("--prompt-lookup-min is ", options.prompt_lookup_min,
                                           "; it must be at most --prompt-lookup-max, ",
                                           options.prompt_lookup_max));
}

std::vector<Flag> AllFlags(ServerOptions& options) {
  std::vector<Flag> flags = ModelFlags(options.model);
  for (auto* make_flags : {ServerFlags, ConnectionFlags, HttpFlags, SecurityFlags}) {
    for (Flag& flag : make_flags(options)) flags.push_back(std::move(flag));
  }
  return flags;
}

// What the clients and the CUDA backend read.
constexpr absl::string_view kOtherVariables[] = {"LSSAR_API_KEY", "LSSAR_CUDA_OVERLAP",
                                                 "LSSAR_HISTORY", "LSSAR_SERVER"};

// Parses the command line and the environment. Nullopt: continue.
std::optional<CommandLine> RunParser(CLI::App& app, std::vector<std::string> known_names, int argc,
                                     const char* const* argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    // CLI11 prints the value of a negated switch behind its name.
    return Print(absl::StrReplaceAll(app.help(), {{"{false}", ""}}));
  } catch (const CLI::CallForVersion&) {
    return Print(StrCat("lssar-server ", LSSAR_VERSION, "\n"));
  } catch (const CLI::ExtrasError&) {
    return Usage(DescribeUnknown(app.remaining(), known_names));
  } catch (const CLI::ParseError& error) {
    return Usage(DescribeError(error));
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<SpeculativeMethod> ChooseSpeculativeMethod(const ModelOptions& options) {
  const bool has_draft_model = !options.draft_directory.empty();
  const SpeculativeMethod method = options.speculative_method.value_or(
      has_draft_model ? SpeculativeMethod::kDraftModel : options.engine.speculative_method);
  if (method == SpeculativeMethod::kDraftModel && !has_draft_model) {
    return absl::InvalidArgumentError("--speculative draft-model needs --draft-model DIR");
  }
  if (method == SpeculativeMethod::kNgram && has_draft_model) {
    return absl::InvalidArgumentError(
        "--draft-model and --speculative ngram exclude each other: give one");
  }
  return method;
}

absl::Status CheckModelFlags(const ModelOptions& options,
                             const std::function<bool(const std::string& name)>& is_set) {
  return CheckNeeds(ModelNeeds(options), [&is_set](const std::string& name) {
    return is_set(name) ? FlagSource::kLineOrFile : FlagSource::kNobody;
  });
}

void AddModelFlags(CLI::App& app, ModelOptions& options) { AddFlags(app, ModelFlags(options)); }

std::vector<std::string> MisspeltVariables(const char* const* environment) {
  ServerOptions unused;
  std::vector<std::string> names = {"config"};
  for (const Flag& flag : AllFlags(unused)) names.push_back(flag.name);
  std::vector<std::string> sentences;
  for (; *environment != nullptr; ++environment) {
    absl::string_view name = *environment;
    name = name.substr(0, name.find('='));
    if (!absl::StartsWith(name, "LSSAR_") ||
        std::ranges::find(kOtherVariables, name) != std::end(kOtherVariables)) {
      continue;
    }
    const std::string flag =
        absl::StrReplaceAll(absl::AsciiStrToLower(absl::StripPrefix(name, "LSSAR_")), {{"_", "-"}});
    const std::string nearest = NearestName(flag, names);
    if (nearest.empty() || EnvironmentName(nearest) == name) continue;
    sentences.push_back(StrCat("the variable ", name,
                               " of the environment is not read; did you mean ",
                               EnvironmentName(nearest), "?"));
  }
  return sentences;
}

CommandLine ParseCommandLine(int argc, const char* const* argv) {
  CommandLine line;
  CLI::App app("Serves an LSSAR model over gRPC.", "lssar-server");
  const std::vector<Flag> flags = AllFlags(line.options);
  AddFlags(app, flags);

  std::string config_path;
  app.add_option("--config", config_path, "TOML file of flags: max-model-len = 8192")
      ->type_name("FILE")
      ->group("Other")
      ->envname(EnvironmentName("config"));
  app.add_flag(
         "--check-health", line.check_health,
         "Check whether the server on this machine that runs with the same flags is serving: exit "
         "code 0 or 1; needs no --model")
      ->group("Other");
  app.set_help_flag("--help,-h", "Print this help")->group("Other");
  app.set_version_flag("--version", LSSAR_VERSION, "Print the version")->group("Other");
  app.footer(std::string(kExamples));

  std::vector<std::string> known_names = {"check-health", "config", "help", "version"};
  for (const Flag& flag : flags) known_names.push_back(flag.name);
  if (auto stop = RunParser(app, std::move(known_names), argc, argv)) return *std::move(stop);
  std::vector<std::string> names_in_file;
  if (!config_path.empty()) {
    auto names = ApplyConfigFile(config_path, app, flags);
    if (!names.ok()) return Usage(StrCat("--config ", names.status().message()));
    names_in_file = *std::move(names);
  }
  const auto source_of = [&](const std::string& name) {
    if (std::ranges::count(names_in_file, name) > 0) return FlagSource::kLineOrFile;
    const CLI::Option& option = *app.get_option("--" + name);
    if (option.count() == 0) return FlagSource::kNobody;
    const char* const variable = std::getenv(option.get_envname().c_str());
    return variable != nullptr && option.results() == std::vector<std::string>{variable}
               ? FlagSource::kVariable
               : FlagSource::kLineOrFile;
  };
  if (line.options.model.directory.empty() && !line.check_health) {
    return Usage("--model DIR is missing; for a first try: --model models/zoo/lssar-6m");
  }
  // The probe of a server has its flags, and perhaps another port.
  const std::vector<FlagNeed> needs =
      line.check_health ? std::vector<FlagNeed>() : ServerNeeds(line.options);
  for (const absl::Status& status :
       {CheckTls(line.options.tls), CheckPromptLookup(line.options.model.engine),
        ChooseSpeculativeMethod(line.options.model).status(),
        CheckNeeds(ModelNeeds(line.options.model), source_of), CheckNeeds(needs, source_of)}) {
    if (!status.ok()) return Usage(std::string(status.message()));
  }
  return line;
}

}  // namespace lssar

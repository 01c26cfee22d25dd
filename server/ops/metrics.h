// The server's metrics, in Prometheus' text format and as numbers for GetStats.
#ifndef LSSAR_SERVER_OPS_METRICS_H_
#define LSSAR_SERVER_OPS_METRICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "runtime/engine.h"
#include "runtime/request.h"
#include "server/net/port_metrics.h"

namespace prometheus {
class Counter;
class Histogram;
class Registry;
}  // namespace prometheus

namespace lssar {

// "EOS", "STOP_STRING", ...: the label finished_reason of a Generate.
std::string FinishName(FinishReason finish);

// The kinds of calls that run on the engine.
enum class CallKind : uint8_t { kGenerate, kScore, kEmbed, kCapture };

// What metrics and spans call a kind.
struct CallKindNames {
  const char* finished;   // finished_reason of a successful call; Generate's is its finish reason
  const char* operation;  // gen_ai.operation.name; that of a chat is "chat"
};
// By CallKind.
inline constexpr std::array<CallKindNames, 4> kCallKindNames = {{{"", "text_completion"},
                                                                 {"SCORE", "score"},
                                                                 {"EMBED", "embeddings"},
                                                                 {"CAPTURE", "capture_attention"}}};

// How such a call ended.
struct CallEnd {
  CallKind kind = CallKind::kGenerate;
  absl::StatusCode code = absl::StatusCode::kOk;  // as the client receives it
  std::optional<FinishReason> finish = {};        // Generate: of the choice that finished last
  Clock::duration elapsed = {};                   // since the call arrived
  RequestStats stats = {};                        // Score: summed over the items
};

// Calls and the engine report events as they happen. Values that the engine keeps itself are read
// from EngineStats when the metrics are requested.
//
// Threads  any
// Cost     one uncontended lock and a search among 20 bucket bounds per event, cheap enough for the
//          engine's thread to report every token (tests/bench/metrics_bench.cc)
class Metrics final {
 public:
  Metrics();
  ~Metrics();

  void OnStep(int num_batched_tokens);
  // A request left the waiting queue. Each item of a Score call is one request.
  void OnAdmitted(const RequestStats& stats);
  // The first token of a Generate call. `elapsed`: since the call arrived.
  void OnFirstToken(Clock::duration elapsed);
  // `num_tokens` more tokens of one choice, `gap` after its previous token.
  void OnNextTokens(int num_tokens, Clock::duration gap);
  void OnEnd(const CallEnd& end);

  // The connections of one port; lives as long as this.
  PortMetrics& GrpcPort();
  PortMetrics& HttpPort();
  // Open connections of both ports.
  int64_t NumConnections() const;

  // Since the server's start.
  Clock::duration Uptime() const { return Clock::now() - started_at_; }
  // Successful calls by finish reason and failed calls by code; zero counts are left out.
  std::map<std::string, int64_t> NumFinished() const;
  std::map<std::string, int64_t> NumFailed() const;

  // Prometheus' text format 0.0.4, sorted by name, then by label. With a `vllm_model`, metrics that
  // vLLM has, too, have its names and labels, with this model_name.
  std::string Text(const EngineStats& engine, const std::string& vllm_model = "") const;

 private:
  using Counters = std::map<std::string, prometheus::Counter*>;
  class PortCounters;

  void AddPorts();
  void AddCounters();
  void AddHistograms();

  const Clock::time_point started_at_ = Clock::now();
  std::unique_ptr<prometheus::Registry> registry_;  // owns the metrics below
  Counters success_;                                // by finish reason
  Counters failure_;                                // by code
  prometheus::Histogram* time_to_first_token_;
  prometheus::Histogram* inter_token_latency_;
  prometheus::Histogram* e2e_request_latency_;
  prometheus::Histogram* request_queue_time_;
  prometheus::Histogram* request_prompt_tokens_;
  prometheus::Histogram* request_generation_tokens_;
  prometheus::Histogram* iteration_tokens_;
  std::unique_ptr<PortCounters> grpc_port_;
  std::unique_ptr<PortCounters> http_port_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_METRICS_H_

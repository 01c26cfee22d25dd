// Every metric of the server, in Prometheus' text format and as numbers for GetStats.
#ifndef LSSAR_SERVER_METRICS_H_
#define LSSAR_SERVER_METRICS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "runtime/engine.h"
#include "runtime/request.h"

namespace prometheus {
class Counter;
class Histogram;
class Registry;
}  // namespace prometheus

namespace lssar {

// "EOS", "STOP_STRING", "STOP_TOKEN", "LENGTH".
std::string FinishName(FinishReason finish);

// The calls that the engine works for.
enum class CallKind : uint8_t { kGenerate, kScore, kCapture };

// How one of them ended.
struct CallEnd {
  CallKind kind = CallKind::kGenerate;
  absl::StatusCode code = absl::StatusCode::kOk;  // as the client saw it
  std::optional<FinishReason> finish = {};        // of Generate's choice that ended last
  Clock::duration elapsed = {};                   // since the call came
  RequestStats stats = {};                        // over all items of a Score call
};

// What calls and the engine report, as it happens; what only the engine knows is read from its
// statistics when somebody asks.
//
// Threads  any
// Cost     a report is one uncontended lock and a search among 20 bounds: the engine's thread can
//          afford it for every token (tests/bench/metrics_bench.cc)
class Metrics final : public StepObserver {
 public:
  Metrics();
  ~Metrics() override;

  void OnStep(int num_rows) override;
  // A request left the queue for the engine; each item of a Score call is one.
  void OnAdmitted(const RequestStats& stats);
  // A Generate call's first token of any choice. `elapsed`: since the call came.
  void OnFirstToken(Clock::duration elapsed);
  // `num_tokens` more of one choice, `gap` after its last.
  void OnNextTokens(int num_tokens, Clock::duration gap);
  void OnEnd(const CallEnd& end);

  // Since the server's start.
  Clock::duration Uptime() const { return Clock::now() - started_at_; }
  // Calls that ended well by finish reason, the others by code; those without any are left out.
  std::map<std::string, int64_t> NumFinished() const;
  std::map<std::string, int64_t> NumFailed() const;

  // The page for Prometheus, format 0.0.4: families by name, then by label.
  std::string Text(const EngineStats& engine) const;

 private:
  using Counters = std::map<std::string, prometheus::Counter*>;

  void AddCounters();
  void AddHistograms();

  const Clock::time_point started_at_ = Clock::now();
  std::unique_ptr<prometheus::Registry> registry_;  // owns all of the following
  Counters success_;                                // by finish reason
  Counters failure_;                                // by code
  prometheus::Histogram* time_to_first_token_;
  prometheus::Histogram* inter_token_latency_;
  prometheus::Histogram* e2e_request_latency_;
  prometheus::Histogram* request_queue_time_;
  prometheus::Histogram* request_prompt_tokens_;
  prometheus::Histogram* request_generation_tokens_;
  prometheus::Histogram* iteration_tokens_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_METRICS_H_

// Metrics that describe the server, its process and its sampled attention, beside those of its
// calls (metrics.h).
#ifndef LSSAR_SERVER_OPS_SERVER_METRICS_H_
#define LSSAR_SERVER_OPS_SERVER_METRICS_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "runtime/attention_statistics.h"
#include "server/auth/access_control.h"
#include "server/batch/batch_store.h"
#include "server/ops/otlp_exporter.h"

namespace lssar {

// draining: calls are refused, running ones go on. failed: the engine has failed or is stuck.
enum class ServerPhase : uint8_t { kLoading, kServing, kDraining, kFailed };
inline constexpr std::array<std::string_view, 4> kPhaseNames = {"loading", "serving", "draining",
                                                                "failed"};

struct ServerStatus {
  ServerPhase phase = ServerPhase::kLoading;
  bool is_ready = false;  // what /readyz says
  int max_calls = 0;
  std::optional<absl::Time> certificate_end = {};  // nullopt: no TLS
  bool has_failed_reload = false;                  // ServedModels::HasFailedReload
  OtlpCounts traces = {};
  std::map<std::string, KeyCounts> keys = {};  // by name
  std::optional<BatchCounts> batches = {};     // nullopt: there are none here
  struct Model {
    std::string name, checkpoint_hash, attention, dtype, kv_cache_dtype, device;
    int max_model_len = 0, max_num_seqs = 0, max_queued_requests = 0;
    int64_t num_pages = 0;
    int page_size = 0;
  };
  std::optional<Model> model = {};  // nullopt: it is being loaded
};

// Prometheus' text format 0.0.4. The names with process_ are those of Prometheus' client libraries.
std::string ServerMetricsText(const ServerStatus& status);
std::string ProcessMetricsText();

// The sampled statistics (--attention-sample-interval) as counters
// lssar_attention_sample_*_total{layer,head}, whose ratios are means. Empty without samples: a
// server that does not sample has no such series.
std::string AttentionMetricsText(std::span<const HeadStatistics> sampled);

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_SERVER_METRICS_H_

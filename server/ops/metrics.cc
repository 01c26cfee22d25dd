#include "server/ops/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

namespace lssar {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Bounds = prometheus::Histogram::BucketBoundaries;

double Seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// 0.1 ms to 500 s, three bounds per decade.
Bounds TimeBounds() {
  return {1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2,
          0.5,  1,    2,    5,    10,   20,   50,   100,  200,  500};
}

// Powers of two up to `last`.
Bounds TokenBounds(int last) {
  Bounds bounds;
  for (int bound = 1; bound <= last; bound *= 2) bounds.push_back(bound);
  return bounds;
}

// A metric whose value the engine keeps.
struct EngineMetric {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const EngineStats&);
};

double PagesInUse(const EngineStats& stats) {
  if (stats.num_pages == 0) return 0;
  return 1 - double(stats.num_free_pages + stats.num_cached_pages) / stats.num_pages;
}

double DraftModelPagesInUse(const EngineStats& stats) {
  if (stats.num_draft_model_pages == 0) return 0;
  return 1 - double(stats.num_free_draft_model_pages) / stats.num_draft_model_pages;
}

constexpr EngineMetric kEngineMetrics[] = {
    {"lssar_num_requests_running", "Running requests.", MetricType::Gauge,
     [](const EngineStats& s) { return double(s.num_running); }},
    {"lssar_num_requests_waiting", "Requests in the waiting queue.", MetricType::Gauge,
     [](const EngineStats& s) { return double(s.num_waiting); }},
    {"lssar_kv_cache_usage_ratio",
     "Fraction of KV cache pages in use by requests. Pages that only the prefix cache uses count "
     "as "
     "free.",
     MetricType::Gauge, PagesInUse},
    {"lssar_prompt_tokens_total", "Prompt tokens computed.", MetricType::Counter,
     [](const EngineStats& s) { return double(s.num_prompt_tokens); }},
    {"lssar_generation_tokens_total", "Tokens generated.", MetricType::Counter,
     [](const EngineStats& s) { return double(s.num_generated_tokens); }},
    {"lssar_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
     MetricType::Counter, [](const EngineStats& s) { return double(s.num_prefix_cache_queries); }},
    {"lssar_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
     MetricType::Counter, [](const EngineStats& s) { return double(s.num_prefix_cache_hits); }},
    {"lssar_preemptions_total",
     "Preemptions: a sequence gave up its pages and is recomputed later.", MetricType::Counter,
     [](const EngineStats& s) { return double(s.num_preemptions); }},
    {"lssar_spec_decode_num_draft_tokens_total", "Speculative decoding: draft tokens computed.",
     MetricType::Counter, [](const EngineStats& s) { return double(s.num_draft_tokens); }},
    {"lssar_spec_decode_num_accepted_tokens_total",
     "Speculative decoding: draft tokens that became output. The others were rejected.",
     MetricType::Counter, [](const EngineStats& s) { return double(s.num_accepted_tokens); }},
    {"lssar_draft_model_kv_cache_usage_ratio",
     "Fraction of the draft model's KV cache pages in use; 0 without a draft model.",
     MetricType::Gauge, DraftModelPagesInUse},
    {"lssar_draft_model_failures_total",
     "Failed forwards of the draft model, and sequences whose draft logits were not finite. "
     "Requests are not affected.",
     MetricType::Counter, [](const EngineStats& s) { return double(s.num_draft_model_failures); }},
    {"lssar_attention_value_rows_total",
     "Value (V) rows within the attention of all computed tokens.", MetricType::Counter,
     [](const EngineStats& s) { return double(s.attention.num_value_rows); }},
    {"lssar_attention_value_rows_read_total",
     "Value (V) rows read, because their attention weight was not zero.", MetricType::Counter,
     [](const EngineStats& s) { return double(s.attention.num_value_rows_read); }},
};

MetricFamily ToFamily(const EngineMetric& metric, const EngineStats& stats) {
  ClientMetric value;
  if (metric.type == MetricType::Gauge) value.gauge.value = metric.value(stats);
  if (metric.type == MetricType::Counter) value.counter.value = metric.value(stats);
  return {.name = metric.name, .help = metric.help, .type = metric.type, .metric = {value}};
}

struct VllmName {
  std::string_view name;  // ours
  std::string_view vllm;
};
// Source  docs.vllm.ai, usage/metrics, of version 0.32
constexpr auto kVllmNames = std::to_array<VllmName>({
    {"lssar_num_requests_running", "vllm:num_requests_running"},
    {"lssar_num_requests_waiting", "vllm:num_requests_waiting"},
    {"lssar_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},  // of 1, as ours
    {"lssar_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"lssar_generation_tokens_total", "vllm:generation_tokens_total"},
    {"lssar_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
    {"lssar_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    {"lssar_preemptions_total", "vllm:num_preemptions_total"},
    {"lssar_spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"lssar_spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
    {"lssar_request_success_total", "vllm:request_success_total"},
    {"lssar_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"lssar_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"lssar_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"lssar_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"lssar_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"lssar_request_generation_tokens", "vllm:request_generation_tokens"},
    {"lssar_iteration_tokens", "vllm:iteration_tokens_total"},
});

// vLLM's finished_reason. Calls that generate nothing are "stop" in vLLM, too.
std::string VllmFinish(const std::string& finish) {
  return finish == FinishName(FinishReason::kLength) ? "length" : "stop";
}

// Gives the family the name and the labels that it has in vLLM, if it has any there.
void Rename(const std::string& model, MetricFamily* family) {
  const auto found = std::ranges::find(kVllmNames, family->name, &VllmName::name);
  if (found == kVllmNames.end()) return;
  family->name = std::string(found->vllm);
  std::vector<ClientMetric> series;
  for (ClientMetric& metric : family->metric) {
    for (ClientMetric::Label& label : metric.label) {
      if (label.name == "finished_reason") label.value = VllmFinish(label.value);
    }
    metric.label.insert(metric.label.begin(), {{"engine", "0"}, {"model_name", model}});
    const auto same = std::ranges::find(series, metric.label, &ClientMetric::label);
    if (same == series.end()) {
      series.push_back(std::move(metric));
    } else {
      same->counter.value += metric.counter.value;
    }
  }
  family->metric = std::move(series);
}

std::map<std::string, int64_t> NonZero(
    const std::map<std::string, prometheus::Counter*>& counters) {
  std::map<std::string, int64_t> counts;
  for (const auto& [label, counter] : counters) {
    if (const auto count = int64_t(counter->Value()); count > 0) counts[label] = count;
  }
  return counts;
}

// The label finished_reason of a successful call.
std::string LabelOf(const CallEnd& end) {
  if (end.kind == CallKind::kGenerate) return FinishName(end.finish.value());
  return kCallKindNames[size_t(end.kind)].finished;
}

}  // namespace

std::string FinishName(FinishReason finish) {
  switch (finish) {
    case FinishReason::kEos: return "EOS";
    case FinishReason::kStopString: return "STOP_STRING";
    case FinishReason::kStopId: return "STOP_TOKEN";
    case FinishReason::kLength: return "LENGTH";
    case FinishReason::kComplete: return "COMPLETE";
    case FinishReason::kDeadEnd: return "DEAD_END";
  }
  return "UNSPECIFIED";
}

class Metrics::PortCounters final : public PortMetrics {
 public:
  void OnOpened() override { open->Increment(); }
  void OnEnded() override { open->Decrement(); }
  void OnRejected(Rejection reason) override { refused.at(size_t(reason))->Increment(); }
  // Requires  the gRPC port's
  void OnViolation(Violation reason) override { closed.at(size_t(reason))->Increment(); }

  prometheus::Gauge* open = nullptr;
  std::array<prometheus::Counter*, kRejectionNames.size()> refused = {};
  std::array<prometheus::Counter*, kViolationNames.size()> closed = {};
};

Metrics::Metrics() : registry_(std::make_unique<prometheus::Registry>()) {
  AddCounters();
  AddHistograms();
  AddPorts();
}

// Creates the series of every label at startup: rate() needs the zero before the first increment.
void Metrics::AddCounters() {
  auto& success =
      prometheus::BuildCounter()
          .Name("lssar_request_success_total")
          .Help(
              "Successful Generate, Score, Embed and CaptureAttention calls, by the finish "
              "reason of the choice that finished last.")
          .Register(*registry_);
  std::vector<std::string> names;
  for (size_t kind = size_t(CallKind::kGenerate) + 1; kind < kCallKindNames.size(); ++kind) {
    names.emplace_back(kCallKindNames.at(kind).finished);
  }
  for (const FinishReason reason :
       {FinishReason::kEos, FinishReason::kStopString, FinishReason::kStopId, FinishReason::kLength,
        FinishReason::kComplete, FinishReason::kDeadEnd}) {
    names.push_back(FinishName(reason));
  }
  for (const std::string& name : names) {
    success_[name] = &success.Add({{"finished_reason", name}});
  }
  auto& failure =
      prometheus::BuildCounter()
          .Name("lssar_request_failure_total")
          .Help("Failed Generate, Score, Embed and CaptureAttention calls, by status code.")
          .Register(*registry_);
  for (int code = 1; code <= int(absl::StatusCode::kUnauthenticated); ++code) {
    const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
    failure_[name] = &failure.Add({{"code", name}});
  }
}

void Metrics::AddHistograms() {
  const auto add = [this](const char* name, const char* help, const Bounds& bounds) {
    auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_);
    return &family.Add({}, bounds);
  };
  time_to_first_token_ =
      add("lssar_time_to_first_token_seconds",
          "Time from the arrival of a Generate call to its first token.", TimeBounds());
  inter_token_latency_ = add("lssar_inter_token_latency_seconds",
                             "Time between two tokens of one choice.", TimeBounds());
  e2e_request_latency_ = add("lssar_e2e_request_latency_seconds",
                             "Time from arrival to end of successful calls.", TimeBounds());
  request_queue_time_ = add("lssar_request_queue_time_seconds",
                            "Time in the waiting queue of requests that were scheduled; an item "
                            "of a Score call is one request.",
                            TimeBounds());
  request_prompt_tokens_ = add("lssar_request_prompt_tokens", "Prompt tokens of successful calls.",
                               TokenBounds(1 << 20));
  request_generation_tokens_ =
      add("lssar_request_generation_tokens",
          "Generated tokens of successful Generate calls, over all choices.", TokenBounds(1 << 20));
  iteration_tokens_ =
      add("lssar_iteration_tokens", "Tokens computed in one engine step.", TokenBounds(1 << 14));
}

void Metrics::AddPorts() {
  auto& open = prometheus::BuildGauge()
                   .Name("lssar_connections")
                   .Help("Open connections, by port.")
                   .Register(*registry_);
  auto& refused = prometheus::BuildCounter()
                      .Name("lssar_connections_refused_total")
                      .Help("Connections that were closed when they were accepted, by reason.")
                      .Register(*registry_);
  auto& closed = prometheus::BuildCounter()
                     .Name("lssar_connections_closed_total")
                     .Help("Connections of the gRPC port that were closed for abuse, by reason.")
                     .Register(*registry_);
  const auto add = [&](const std::string& port) {
    auto counters = std::make_unique<PortCounters>();
    counters->open = &open.Add({{"port", port}});
    for (size_t i = 0; i < kRejectionNames.size(); ++i) {
      counters->refused.at(i) =
          &refused.Add({{"port", port}, {"reason", std::string(kRejectionNames.at(i))}});
    }
    return counters;
  };
  grpc_port_ = add("grpc");
  http_port_ = add("http");
  for (size_t i = 0; i < kViolationNames.size(); ++i) {
    grpc_port_->closed.at(i) = &closed.Add({{"reason", std::string(kViolationNames.at(i))}});
  }
}

PortMetrics& Metrics::GrpcPort() { return *grpc_port_; }

PortMetrics& Metrics::HttpPort() { return *http_port_; }

int64_t Metrics::NumConnections() const {
  return int64_t(grpc_port_->open->Value() + http_port_->open->Value());
}

Metrics::~Metrics() = default;

void Metrics::OnStep(int num_batched_tokens) { iteration_tokens_->Observe(num_batched_tokens); }

void Metrics::OnAdmitted(const RequestStats& stats) {
  request_queue_time_->Observe(double(stats.queue_us) * 1e-6);
}

void Metrics::OnFirstToken(Clock::duration elapsed) {
  time_to_first_token_->Observe(Seconds(elapsed));
}

void Metrics::OnNextTokens(int num_tokens, Clock::duration gap) {
  const double each = Seconds(gap) / num_tokens;
  for (int i = 0; i < num_tokens; ++i) inter_token_latency_->Observe(each);
}

void Metrics::OnEnd(const CallEnd& end) {
  if (end.code != absl::StatusCode::kOk) {
    failure_.at(absl::StatusCodeToString(end.code))->Increment();
    return;
  }
  success_.at(LabelOf(end))->Increment();
  e2e_request_latency_->Observe(Seconds(end.elapsed));
  request_prompt_tokens_->Observe(end.stats.num_prompt_tokens);
  if (end.kind == CallKind::kGenerate)
    request_generation_tokens_->Observe(end.stats.num_generated_tokens);
}

std::map<std::string, int64_t> Metrics::NumFinished() const { return NonZero(success_); }

std::map<std::string, int64_t> Metrics::NumFailed() const { return NonZero(failure_); }

std::string Metrics::Text(const EngineStats& engine, const std::string& vllm_model) const {
  std::vector<MetricFamily> families = registry_->Collect();
  for (const EngineMetric& metric : kEngineMetrics) families.push_back(ToFamily(metric, engine));
  if (!vllm_model.empty()) {
    for (MetricFamily& family : families) Rename(vllm_model, &family);
  }
  std::ranges::sort(families, {}, &MetricFamily::name);
  for (MetricFamily& family : families) std::ranges::sort(family.metric, {}, &ClientMetric::label);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace lssar

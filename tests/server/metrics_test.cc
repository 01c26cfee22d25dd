#include "server/ops/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "server/ops/server_metrics.h"

namespace lssar {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// The printed value of one series.
std::string ValueOf(const std::string& text, const std::string& series) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return line.substr(series.size() + 1);
  }
  return "none";
}

std::string ReadText(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Names, types, help, labels and buckets, on which dashboards and alerts depend.
TEST(MetricsTest, TheInitialPageMatchesTheGoldenFile) {
  EXPECT_EQ(Metrics().Text(EngineStats()), ReadText("tests/server/metrics_golden.txt"));
}

TEST(ServerMetricsTest, ThePageMatchesTheGoldenFile) {
  const ServerStatus status = {
      .phase = ServerPhase::kDraining,
      .is_ready = true,
      .max_calls = 1024,
      .certificate_end = absl::FromUnixSeconds(2'000'000'000),
      .has_failed_reload = true,
      .traces = {.num_exported = 70, .num_dropped = 5},
      .keys = {{"alice", {.num_calls = 3, .num_refused = 1, .num_tokens = 500}}, {"bob", {}}},
      .batches = BatchCounts{.num_batches = {1, 2, 3, 4, 5, 6},
                             .num_waiting = 70,
                             .num_completed = 80,
                             .num_failed = 9},
      .model = ServerStatus::Model{.name = "lssar-6m",
                                   .checkpoint_hash = "0123456789abcdef",
                                   .attention = "lssar p=15",
                                   .dtype = "fp32",
                                   .kv_cache_dtype = "fp16",
                                   .device = "cpu",
                                   .max_model_len = 16384,
                                   .max_num_seqs = 64,
                                   .max_queued_requests = 32,
                                   .num_pages = 1000,
                                   .page_size = 64}};
  std::string golden = ReadText("tests/server/server_metrics_golden.txt");
  const std::string version = "VERSION";
  ASSERT_NE(golden.find(version), golden.npos);
  golden.replace(golden.find(version), version.size(), LSSAR_VERSION);
  EXPECT_EQ(ServerMetricsText(status), golden);
}

TEST(ServerMetricsTest, WhileLoadingThereIsNoModel) {
  const std::string text = ServerMetricsText({});
  EXPECT_EQ(ValueOf(text, "lssar_state{state=\"loading\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_state{state=\"serving\"}"), "0");
  EXPECT_EQ(ValueOf(text, "lssar_ready"), "0");
  EXPECT_EQ(ValueOf(text, "lssar_last_reload_successful"), "1");
  for (const char* absent : {"lssar_max_model_len", "lssar_tls_certificate_end_timestamp_seconds",
                             "lssar_batch_rows{state=\"waiting\"}"}) {
    EXPECT_EQ(ValueOf(text, absent), "none");
  }
}

TEST(ServerMetricsTest, TheProcessIsThisOne) {
  const std::string text = ProcessMetricsText();
  const auto value = [&text](const char* name) { return std::stod(ValueOf(text, name)); };
  EXPECT_GT(value("process_cpu_seconds_total"), 0);
  EXPECT_GE(value("process_open_fds"), 3);
  EXPECT_GE(value("process_max_fds"), value("process_open_fds"));
  EXPECT_GT(value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value("process_virtual_memory_bytes"), value("process_resident_memory_bytes"));
  const double now = double(absl::ToUnixSeconds(absl::Now()));
  EXPECT_GT(value("process_start_time_seconds"), now - 24 * 3600);
  EXPECT_LE(value("process_start_time_seconds"), now + 2);
}

TEST(MetricsTest, EngineMetricsComeFromEngineStats) {
  EngineStats stats;
  stats.num_running = 3;
  stats.num_waiting = 2;
  stats.num_pages = 100;
  stats.num_free_pages = 20;
  stats.num_cached_pages = 30;
  stats.num_prompt_tokens = 1000;
  stats.num_generated_tokens = int64_t{1} << 40;
  stats.num_preemptions = 4;
  stats.num_prefix_cache_queries = 800;
  stats.num_prefix_cache_hits = 640;
  stats.num_draft_tokens = 70;
  stats.num_accepted_tokens = 60;
  stats.num_draft_model_pages = 40;
  stats.num_free_draft_model_pages = 30;
  stats.num_draft_model_failures = 2;
  stats.attention = {.num_value_rows = 5000, .num_value_rows_read = 600};
  const std::string text = Metrics().Text(stats);
  EXPECT_EQ(ValueOf(text, "lssar_num_requests_running"), "3");
  EXPECT_EQ(ValueOf(text, "lssar_num_requests_waiting"), "2");
  EXPECT_EQ(ValueOf(text, "lssar_kv_cache_usage_ratio"), "0.5");
  EXPECT_EQ(ValueOf(text, "lssar_prompt_tokens_total"), "1000");
  EXPECT_EQ(ValueOf(text, "lssar_generation_tokens_total"), "1099511627776");
  EXPECT_EQ(ValueOf(text, "lssar_preemptions_total"), "4");
  EXPECT_EQ(ValueOf(text, "lssar_prefix_cache_queries_total"), "800");
  EXPECT_EQ(ValueOf(text, "lssar_prefix_cache_hits_total"), "640");
  EXPECT_EQ(ValueOf(text, "lssar_spec_decode_num_draft_tokens_total"), "70");
  EXPECT_EQ(ValueOf(text, "lssar_spec_decode_num_accepted_tokens_total"), "60");
  EXPECT_EQ(ValueOf(text, "lssar_draft_model_kv_cache_usage_ratio"), "0.25");
  EXPECT_EQ(ValueOf(text, "lssar_draft_model_failures_total"), "2");
  EXPECT_EQ(ValueOf(text, "lssar_attention_value_rows_total"), "5000");
  EXPECT_EQ(ValueOf(text, "lssar_attention_value_rows_read_total"), "600");
}

TEST(MetricsTest, NamesAndLabelsOfVllm) {
  Metrics metrics;
  for (const FinishReason finish :
       {FinishReason::kEos, FinishReason::kStopString, FinishReason::kLength}) {
    metrics.OnEnd({.finish = finish});
  }
  metrics.OnStep(3);
  EngineStats stats;
  stats.num_running = 2;
  const std::string text = metrics.Text(stats, "org/model");
  const std::string labels = "engine=\"0\",model_name=\"org/model\"";
  EXPECT_EQ(ValueOf(text, "vllm:num_requests_running{" + labels + "}"), "2");
  EXPECT_EQ(ValueOf(text, "vllm:request_success_total{" + labels + ",finished_reason=\"stop\"}"),
            "2");
  EXPECT_EQ(ValueOf(text, "vllm:request_success_total{" + labels + ",finished_reason=\"length\"}"),
            "1");
  EXPECT_EQ(ValueOf(text, "vllm:iteration_tokens_total_count{" + labels + "}"), "1");
  EXPECT_EQ(text.find("lssar_num_requests_running"), std::string::npos);
  // Without a counterpart.
  EXPECT_EQ(ValueOf(text, "lssar_draft_model_failures_total"), "0");
  EXPECT_EQ(ValueOf(text, "lssar_connections{port=\"http\"}"), "0");
}

TEST(MetricsTest, EventsAreCountedInTheirBuckets) {
  Metrics metrics;
  metrics.OnStep(1);
  metrics.OnStep(17);
  metrics.OnAdmitted({.queue_us = 250});
  metrics.OnFirstToken(milliseconds(30));
  metrics.OnNextTokens(1, microseconds(90));
  metrics.OnNextTokens(4, milliseconds(12));  // 3 ms each
  metrics.OnEnd({.finish = FinishReason::kLength,
                 .elapsed = seconds(3),
                 .stats = {.num_prompt_tokens = 100, .num_generated_tokens = 6}});
  const std::string text = metrics.Text(EngineStats());
  EXPECT_EQ(ValueOf(text, "lssar_iteration_tokens_bucket{le=\"1\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_iteration_tokens_bucket{le=\"16\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_iteration_tokens_bucket{le=\"32\"}"), "2");
  EXPECT_EQ(ValueOf(text, "lssar_iteration_tokens_sum"), "18");
  EXPECT_EQ(ValueOf(text, "lssar_request_queue_time_seconds_bucket{le=\"0.0002\"}"), "0");
  EXPECT_EQ(ValueOf(text, "lssar_request_queue_time_seconds_bucket{le=\"0.0005\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_time_to_first_token_seconds_bucket{le=\"0.02\"}"), "0");
  EXPECT_EQ(ValueOf(text, "lssar_time_to_first_token_seconds_bucket{le=\"0.05\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_inter_token_latency_seconds_bucket{le=\"0.0001\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_inter_token_latency_seconds_bucket{le=\"0.002\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_inter_token_latency_seconds_bucket{le=\"0.005\"}"), "5");
  EXPECT_EQ(ValueOf(text, "lssar_e2e_request_latency_seconds_sum"), "3");
  EXPECT_EQ(ValueOf(text, "lssar_request_prompt_tokens_bucket{le=\"128\"}"), "1");
  EXPECT_EQ(ValueOf(text, "lssar_request_generation_tokens_sum"), "6");
}

TEST(MetricsTest, EachCallCountsAsSuccessOrFailure) {
  Metrics metrics;
  EXPECT_THAT(metrics.NumFinished(), IsEmpty());
  EXPECT_THAT(metrics.NumFailed(), IsEmpty());
  metrics.OnEnd({.finish = FinishReason::kEos});
  metrics.OnEnd({.finish = FinishReason::kEos});
  metrics.OnEnd({.finish = FinishReason::kStopId});
  metrics.OnEnd({.kind = CallKind::kScore});
  metrics.OnEnd({.kind = CallKind::kCapture});
  metrics.OnEnd({.code = absl::StatusCode::kCancelled, .finish = FinishReason::kEos});
  EXPECT_THAT(metrics.NumFinished(), ElementsAre(Pair("CAPTURE", 1), Pair("EOS", 2),
                                                 Pair("SCORE", 1), Pair("STOP_TOKEN", 1)));
  EXPECT_THAT(metrics.NumFailed(), ElementsAre(Pair("CANCELLED", 1)));
  const std::string text = metrics.Text(EngineStats());
  EXPECT_EQ(ValueOf(text, "lssar_request_success_total{finished_reason=\"EOS\"}"), "2");
  EXPECT_EQ(ValueOf(text, "lssar_request_failure_total{code=\"CANCELLED\"}"), "1");
  // Only successful calls are observed.
  EXPECT_EQ(ValueOf(text, "lssar_e2e_request_latency_seconds_count"), "5");
  EXPECT_EQ(ValueOf(text, "lssar_request_prompt_tokens_count"), "5");
  EXPECT_EQ(ValueOf(text, "lssar_request_generation_tokens_count"), "3");
}

}  // namespace
}  // namespace lssar

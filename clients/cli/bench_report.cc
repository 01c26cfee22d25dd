#include "clients/cli/bench_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/str_cat.h"
#include "clients/cli/table.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

Json LatencyToJson(const LatencyDistribution& latency) {
  if (latency.count == 0) return {};
  return {{"mean", latency.mean}, {"p50", latency.p50}, {"p90", latency.p90},
          {"p99", latency.p99},   {"max", latency.max}, {"count", latency.count}};
}

Json FailuresToJson(const LoadSummary& summary) {
  Json failures = Json::object();
  for (const auto& [code, latency] : summary.failures) failures[code] = LatencyToJson(latency);
  return failures;
}

std::string FormatLoad(double load) { return absl::StrFormat("%g", load); }

// Four significant digits.
std::string FormatMillis(double ms) {
  if (ms >= 1000) return absl::StrFormat("%.0f", ms);
  return absl::StrFormat(ms >= 100 ? "%.1f" : ms >= 10 ? "%.2f" : "%.3f", ms);
}

std::string RenderThroughput(const BenchReport& report) {
  using enum Table::Align;
  Table table({{LoadName(report), kRight},
               {"completed", kRight},
               {"failed", kRight},
               {"requests/s", kRight},
               {"good/s", kRight},
               {"output tokens/s", kRight},
               {"all tokens/s", kRight},
               {"cached", kRight}});
  for (const BenchPoint& point : report.points) {
    const LoadSummary& summary = point.summary;
    const int64_t num_prompt_tokens = std::max<int64_t>(1, summary.num_prompt_tokens);
    table.AddRow(
        {FormatLoad(point.load), StrCat(summary.num_completed), StrCat(summary.NumFailed()),
         absl::StrFormat("%.2f", summary.PerSecond(summary.num_completed)),
         report.has_targets ? absl::StrFormat("%.2f", summary.PerSecond(summary.num_good))
                            : std::string("-"),
         absl::StrFormat("%.1f", summary.PerSecond(summary.num_output_tokens)),
         absl::StrFormat("%.1f",
                         summary.PerSecond(summary.num_prompt_tokens + summary.num_output_tokens)),
         absl::StrFormat("%.0f%%",
                         100.0 * double(summary.num_cached_tokens) / double(num_prompt_tokens))});
  }
  return table.Render();
}

void AddLatencyRow(const BenchPoint& point, const std::string& name,
                   const LatencyDistribution& latency, Table* table) {
  if (latency.count == 0) return;
  table->AddRow({FormatLoad(point.load), name, FormatMillis(latency.mean),
                 FormatMillis(latency.p50), FormatMillis(latency.p90), FormatMillis(latency.p99),
                 FormatMillis(latency.max)});
}

std::string RenderLatencies(const BenchReport& report) {
  using enum Table::Align;
  Table table({{LoadName(report), kRight},
               {"milliseconds"},
               {"mean", kRight},
               {"p50", kRight},
               {"p90", kRight},
               {"p99", kRight},
               {"max", kRight}});
  for (const BenchPoint& point : report.points) {
    AddLatencyRow(point, "first token (TTFT)", point.summary.ttft, &table);
    AddLatencyRow(point, "per output token (TPOT)", point.summary.tpot, &table);
    AddLatencyRow(point, "between tokens (ITL)", point.summary.itl, &table);
    AddLatencyRow(point, "to the end (E2E)", point.summary.e2e, &table);
    for (const auto& [code, latency] : point.summary.failures) {
      AddLatencyRow(point, StrCat(latency.count, " x ", code), latency, &table);
    }
  }
  return table.Render();
}

std::string Repeat(const std::string& text, int count) {
  std::string repeated;
  for (int i = 0; i < count; ++i) repeated += text;
  return repeated;
}

std::string RenderLatencyBars(const BenchReport& report, const std::string& title,
                              LatencyDistribution LoadSummary::*latency_of,
                              const Terminal& terminal) {
  constexpr int kChartColumns = 50;
  const std::string full = terminal.is_tty ? "█" : "#";
  const std::string light = terminal.is_tty ? "░" : "-";
  double most = 0;
  for (const BenchPoint& point : report.points) {
    most = std::max(most, (point.summary.*latency_of).p99);
  }
  if (!(most > 0)) return "";
  std::string out = StrCat(title, " by ", LoadName(report), ": ", full, " p50, ", light,
                           " to p99, milliseconds\n");
  for (const BenchPoint& point : report.points) {
    const LatencyDistribution& latency = point.summary.*latency_of;
    const int num_full = int(std::lround(latency.p50 / most * kChartColumns));
    const int num_all = int(std::lround(latency.p99 / most * kChartColumns));
    absl::StrAppendFormat(&out, "%8s %s%s %s, %s\n", FormatLoad(point.load), Repeat(full, num_full),
                          Repeat(light, num_all - num_full), FormatMillis(latency.p50),
                          FormatMillis(latency.p99));
  }
  return out;
}

}  // namespace

std::string LoadName(const BenchReport& report) {
  return report.is_open_loop ? "rate" : "concurrency";
}

Json PointsToJson(const BenchReport& report) {
  Json points = Json::array();
  for (const BenchPoint& point : report.points) {
    const LoadSummary& summary = point.summary;
    const int64_t num_tokens = summary.num_prompt_tokens + summary.num_output_tokens;
    points.push_back({{LoadName(report), point.load},
                      {"duration_s", summary.duration_s},
                      {"num_completed", summary.num_completed},
                      {"num_failed", summary.NumFailed()},
                      {"num_prompt_tokens", summary.num_prompt_tokens},
                      {"num_cached_tokens", summary.num_cached_tokens},
                      {"num_output_tokens", summary.num_output_tokens},
                      {"requests_per_s", summary.PerSecond(summary.num_completed)},
                      {"good_requests_per_s",
                       report.has_targets ? Json(summary.PerSecond(summary.num_good)) : Json()},
                      {"output_tokens_per_s", summary.PerSecond(summary.num_output_tokens)},
                      {"all_tokens_per_s", summary.PerSecond(num_tokens)},
                      {"ttft_ms", LatencyToJson(summary.ttft)},
                      {"tpot_ms", LatencyToJson(summary.tpot)},
                      {"itl_ms", LatencyToJson(summary.itl)},
                      {"gap_ms", LatencyToJson(summary.gap)},
                      {"e2e_ms", LatencyToJson(summary.e2e)},
                      {"lag_ms", LatencyToJson(summary.lag)},
                      {"failures", FailuresToJson(summary)}});
  }
  return points;
}

std::string RenderReport(const BenchReport& report) {
  return StrCat(RenderThroughput(report), "\n", RenderLatencies(report));
}

std::string RenderBars(const BenchReport& report, const Terminal& terminal) {
  return StrCat(RenderLatencyBars(report, "First token (TTFT)", &LoadSummary::ttft, terminal),
                RenderLatencyBars(report, "Between tokens (ITL)", &LoadSummary::itl, terminal));
}

}  // namespace lssar::cli

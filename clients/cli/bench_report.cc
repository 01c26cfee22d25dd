#include "clients/cli/bench_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "clients/cli/table.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"

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
  constexpr int kBarColumns = 50;
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
    const int num_full = int(std::lround(latency.p50 / most * kBarColumns));
    const int num_all = int(std::lround(latency.p99 / most * kBarColumns));
    absl::StrAppendFormat(&out, "%8s %s%s %s, %s\n", FormatLoad(point.load), Repeat(full, num_full),
                          Repeat(light, num_all - num_full), FormatMillis(latency.p50),
                          FormatMillis(latency.p99));
  }
  return out;
}

// Pixels.
constexpr double kPanelWidth = 240;
constexpr double kPanelHeight = 180;
constexpr double kPanelStep = 320;
constexpr double kLeft = 64;
constexpr double kTop = 40;
constexpr double kHeight = 290;

constexpr char kInk[] = "#334155";
constexpr char kGrid[] = "#cbd5e1";

struct Series {
  const char* name;
  double LatencyDistribution::*value;
  const char* colour;
};
constexpr std::array<Series, 3> kSeries = {{{"p50", &LatencyDistribution::p50, "#2563eb"},
                                            {"p90", &LatencyDistribution::p90, "#d97706"},
                                            {"p99", &LatencyDistribution::p99, "#dc2626"}}};

std::string Text(double x, double y, const std::string& what, const char* anchor) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"12\" fill=\"%s\">%s</text>\n", x,
      y, anchor, kInk, what);
}

// The smallest of 1, 2 or 5 times a power of ten of which four reach `most`.
double TickStep(double most) {
  const double decade = std::pow(10, std::floor(std::log10(most / 4)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (4 * factor * decade >= most) return factor * decade;
  }
  return 10 * decade;
}

class Panel {
 public:
  Panel(const BenchReport& report, double left, LatencyDistribution LoadSummary::*latency)
      : left_(left) {
    double most = 0;
    for (const BenchPoint& point : report.points) {
      if ((point.summary.*latency).count == 0) continue;
      points_.push_back({point.load, point.summary.*latency});
      most = std::max(most, (point.summary.*latency).p99);
      most_load_ = std::max(most_load_, point.load);
    }
    tick_ = TickStep(std::max(most, 1e-3));
  }

  std::string Render(const std::string& title, const std::string& load_title) const {
    std::string svg = Text(left_ + kPanelWidth / 2, kTop - 16, title, "middle");
    for (int i = 0; i <= 4; ++i) {
      const double y = Y(i * tick_);
      absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fh%.1f\" stroke=\"%s\"/>\n", left_, y,
                            kPanelWidth, kGrid);
      svg += Text(left_ - 8, y + 4, absl::StrFormat("%g", i * tick_), "end");
    }
    for (const Point& point : points_) {
      svg += Text(X(point.load), kTop + kPanelHeight + 18, absl::StrFormat("%g", point.load),
                  "middle");
    }
    svg += Text(left_ + kPanelWidth / 2, kTop + kPanelHeight + 40, load_title, "middle");
    for (const Series& series : kSeries) svg += Line(series);
    return svg;
  }

 private:
  struct Point {
    double load = 0;
    LatencyDistribution latency;
  };

  double X(double load) const { return left_ + load / most_load_ * kPanelWidth; }
  double Y(double ms) const { return kTop + (1 - ms / (4 * tick_)) * kPanelHeight; }

  std::string Line(const Series& series) const {
    std::string path;
    std::string dots;
    for (const Point& point : points_) {
      const double x = X(point.load);
      const double y = Y(point.latency.*series.value);
      absl::StrAppendFormat(&path, "%c%.1f %.1f", path.empty() ? 'M' : 'L', x, y);
      absl::StrAppendFormat(&dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x, y,
                            series.colour);
    }
    return absl::StrFormat("<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n%s",
                           path, series.colour, dots);
  }

  const double left_;
  double most_load_ = 0;
  double tick_ = 1;
  std::vector<Point> points_;
};

std::string Legend() {
  std::string svg;
  double x = kLeft;
  for (const Series& series : kSeries) {
    absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fh20\" stroke=\"%s\" stroke-width=\"2\"/>\n", x,
                          kHeight - 16, series.colour);
    svg += Text(x + 26, kHeight - 12, series.name, "start");
    x += 72;
  }
  return svg;
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

std::string RenderSvg(const BenchReport& report) {
  const bool has_samples = std::ranges::any_of(
      report.points, [](const BenchPoint& point) { return point.summary.num_completed > 0; });
  LSSAR_CHECK(has_samples);
  const std::string load_title = report.is_open_loop ? "requests per second" : "requests in flight";
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kLeft + 3 * kPanelStep - 48, kHeight);
  double left = kLeft;
  for (const auto& [title, latency] :
       {std::pair("first token (TTFT), ms", &LoadSummary::ttft),
        std::pair("between tokens (ITL), ms", &LoadSummary::itl),
        std::pair("to the last token (E2E), ms", &LoadSummary::e2e)}) {
    svg += Panel(report, left, latency).Render(title, load_title);
    left += kPanelStep;
  }
  return StrCat(svg, Legend(), "</svg>\n");
}

}  // namespace lssar::cli

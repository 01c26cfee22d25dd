#include "clients/cli/bench_plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

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

// The smallest of 1, 2, 5, 10, 20, ... (and their parts) that four of make at least `most`.
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

std::string RenderSvg(const BenchReport& report) {
  const bool has_samples = std::ranges::any_of(
      report.points, [](const BenchPoint& point) { return point.summary.num_completed > 0; });
  LSSAR_CHECK(has_samples);
  const std::string load_title =
      report.is_open_loop ? "requests a second" : "requests at the same time";
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

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file.fail()) return absl::PermissionDeniedError(StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace lssar::cli

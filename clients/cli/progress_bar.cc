#include "clients/cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace lssar::cli {
namespace {

constexpr int kBarColumns = 30;

std::string FormatDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return absl::StrCat(whole, " s");
  return absl::StrFormat("%d:%02d min", whole / 60, whole % 60);
}

}  // namespace

std::string RenderProgress(absl::string_view label, double share, absl::string_view note,
                           double elapsed_seconds) {
  const int num_full = static_cast<int>(share * kBarColumns);
  std::string bar(static_cast<size_t>(num_full), '=');
  if (num_full < kBarColumns) bar += '>';
  bar.resize(kBarColumns, ' ');
  std::string line =
      absl::StrFormat("%s [%s] %3d%%  %s", label, bar, static_cast<int>(share * 100), note);
  if (share > 0 && share < 1) {
    absl::StrAppend(&line, "  ", FormatDuration(elapsed_seconds * (1 - share) / share), " left");
  }
  return line;
}

ProgressBar::ProgressBar(std::string label, int64_t total)
    : label_(std::move(label)), total_(total) {
  LSSAR_CHECK(total > 0);
}

void ProgressBar::Hide() {
  if (is_shown_) std::fputs("\r\x1b[K", stderr);
  is_shown_ = false;
}

void ProgressBar::Advance(int64_t amount, absl::string_view note) {
  done_ = std::min(total_, done_ + amount);
  if (!StderrTerminal().is_tty) return;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  if (!is_shown_ && elapsed.count() < 1.0) return;
  is_shown_ = true;
  const double share = static_cast<double>(done_) / static_cast<double>(total_);
  const std::string line = RenderProgress(label_, share, note, elapsed.count());
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
}

}  // namespace lssar::cli

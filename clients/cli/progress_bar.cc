#include "clients/cli/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

constexpr int kBarColumns = 30;
constexpr std::chrono::milliseconds kFirstPause{1000};
constexpr std::chrono::milliseconds kPause{200};

std::string FormatDuration(double seconds) {
  const auto whole = int64_t(std::ceil(seconds));
  if (whole < 60) return StrCat(whole, " s");
  return absl::StrFormat("%d:%02d min", whole / 60, whole % 60);
}

}  // namespace

std::string RenderProgress(absl::string_view label, double share, absl::string_view note,
                           double elapsed_seconds) {
  const int num_full = int(share * kBarColumns);
  std::string bar(size_t(num_full), '=');
  if (num_full < kBarColumns) bar += '>';
  bar.resize(kBarColumns, ' ');
  std::string line = absl::StrFormat("%s [%s] %3d%%  %s", label, bar, int(share * 100), note);
  if (share > 0 && share < 1) {
    line += StrCat("  ", FormatDuration(elapsed_seconds * (1 - share) / share), " left");
  }
  return line;
}

ProgressBar::ProgressBar(std::string label, int64_t total)
    : label_(std::move(label)), total_(total) {
  LSSAR_CHECK(total >= 0);
  if (StderrTerminal().is_tty) thread_ = std::thread([this] { DrawRepeatedly(); });
}

ProgressBar::~ProgressBar() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    Erase();
  }
  ended_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void ProgressBar::Advance(int64_t amount, absl::string_view note) {
  const std::lock_guard lock(mutex_);
  done_ += amount;
  if (total_ != kUnknownTotal) done_ = std::min(total_, done_);
  note_ = std::string(note);
  is_hidden_ = false;
}

void ProgressBar::Hide() {
  const std::lock_guard lock(mutex_);
  is_hidden_ = true;
  Erase();
}

void ProgressBar::DrawRepeatedly() {
  std::unique_lock lock(mutex_);
  auto pause = kFirstPause;
  while (!ended_.wait_for(lock, pause, [this] { return has_ended_; })) {
    if (!is_hidden_) Draw();
    pause = kPause;
  }
}

void ProgressBar::Draw() {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const std::string line =
      total_ == kUnknownTotal
          ? StrCat(label_, "  ", note_, "  ", FormatDuration(elapsed.count()))
          : RenderProgress(label_, double(done_) / double(total_), note_, elapsed.count());
  std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
  std::fflush(stderr);
  is_drawn_ = true;
}

void ProgressBar::Erase() {
  if (is_drawn_) std::fputs("\r\x1b[K", stderr);
  is_drawn_ = false;
}

}  // namespace lssar::cli

// A progress bar on stderr for work that takes over a second; nothing if stderr is no terminal.
#ifndef LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_
#define LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"

namespace lssar::cli {

class ProgressBar {
 public:
  // For work whose size is not known: the note alone is shown.
  static constexpr int64_t kUnknownTotal = 0;

  // `total`: in any unit, > 0 or kUnknownTotal.
  ProgressBar(std::string label, int64_t total);
  // Erases the bar.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Adds `amount` to the work done; `note` is shown at the right of the bar ("12/50").
  // Threads  any
  void Advance(int64_t amount, absl::string_view note);

  // Erases the bar until the next Advance, so that results can be printed.
  void Hide();

 private:
  // Redraws until the end, because the time left changes even without progress.
  void DrawRepeatedly();
  void Draw();   // Requires  mutex_ is held
  void Erase();  // Requires  mutex_ is held

  const std::string label_;
  const int64_t total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // guards the members below
  std::condition_variable ended_;
  bool has_ended_ = false;
  bool is_hidden_ = false;
  bool is_drawn_ = false;
  int64_t done_ = 0;
  std::string note_;
  std::thread thread_;  // joinable on a terminal only
};

// "label [=====>    ]  50%  12/50  3 s left". `share` in [0, 1].
std::string RenderProgress(absl::string_view label, double share, absl::string_view note,
                           double elapsed_seconds);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_

// A bar on stderr for work of over a second; nothing when stderr is no terminal.
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
  // `total` in whatever unit the work is best measured by; > 0.
  ProgressBar(std::string label, int64_t total);
  // Takes the bar off the screen.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Adds `amount` to what is done; `note` stands at the bar's right ("12/50"). Threads: any.
  void Advance(int64_t amount, absl::string_view note);

  // Takes the bar off the screen until the next Advance, so that results can be printed.
  void Hide();

 private:
  // Until the end: the time left moves on while nothing advances.
  void DrawNowAndThen();
  void Draw();   // Requires  mutex_ is held
  void Erase();  // Requires  mutex_ is held

  const std::string label_;
  const int64_t total_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  bool has_ended_ = false;
  bool is_hidden_ = false;
  bool is_drawn_ = false;
  int64_t done_ = 0;
  std::string note_;
  std::thread thread_;  // joinable on a terminal only
};

// "label [=====>    ]  50%  12/50  3 s left"; what ProgressBar draws. `share` in [0, 1].
std::string RenderProgress(absl::string_view label, double share, absl::string_view note,
                           double elapsed_seconds);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_

// A bar on stderr for work of over a second; nothing when stderr is no terminal.
#ifndef LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_
#define LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {

class ProgressBar {
 public:
  // `total` in whatever unit the work is best measured by; > 0.
  ProgressBar(std::string label, int64_t total);
  ~ProgressBar() { Hide(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Adds `amount` to what is done; `note` stands at the bar's right ("12/50").
  // Threads  one at a time
  void Advance(int64_t amount, absl::string_view note);

  // Takes the bar off the screen until the next Advance, so that results can be printed.
  void Hide();

 private:
  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool is_shown_ = false;
};

// "label [=====>    ]  50%  12/50  3 s left"; what ProgressBar draws. `share` in [0, 1].
std::string RenderProgress(absl::string_view label, double share, absl::string_view note,
                           double elapsed_seconds);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PROGRESS_BAR_H_

#include "clients/cli/rolling_score.h"

#include <algorithm>

#include "clients/cli/score_call.h"
#include "kernels/check.h"

namespace lssar::cli {
namespace {

// Windows of one call: enough to keep the engine's batch full.
constexpr size_t kWindowsPerCall = 32;

v1::ScoreItem ItemOf(const std::vector<int32_t>& ids, const RollingWindow& window) {
  const auto begin = ids.begin();
  v1::ScoreItem item;
  item.mutable_context()->mutable_tokens()->mutable_ids()->Add(begin + window.first,
                                                               begin + window.scored);
  item.add_continuations()->mutable_tokens()->mutable_ids()->Add(begin + window.scored,
                                                                 begin + window.end);
  return item;
}

}  // namespace

std::vector<RollingWindow> RollingWindows(int64_t num_ids, int window, int stride) {
  LSSAR_CHECK(window >= 2 && stride >= 1 && stride < window);
  std::vector<RollingWindow> windows;
  for (int64_t scored = 1; scored < num_ids;) {
    const int64_t end = std::min(num_ids, windows.empty() ? int64_t{window} : scored + stride);
    windows.push_back({std::max(int64_t{0}, end - window), scored, end});
    scored = end;
  }
  return windows;
}

absl::StatusOr<RollingScore> RunRollingScore(v1::Inference::StubInterface* stub,
                                             const std::vector<int32_t>& ids,
                                             const RollingOptions& options, Interrupt* interrupt,
                                             const std::function<void(int)>& on_tokens) {
  const std::vector<RollingWindow> windows =
      RollingWindows(static_cast<int64_t>(ids.size()), options.window, options.stride);
  RollingScore sum{.num_windows = static_cast<int64_t>(windows.size())};
  for (size_t first = 0; first < windows.size(); first += kWindowsPerCall) {
    v1::ScoreRequest request;
    FillSharing(options.sharing, &request);
    const size_t end = std::min(windows.size(), first + kWindowsPerCall);
    for (size_t i = first; i < end; ++i) *request.add_items() = ItemOf(ids, windows[i]);
    const auto scored = RunScore(stub, request, interrupt, [&](const v1::ContinuationScore& score) {
      on_tokens(score.num_tokens());
    });
    if (!scored.ok()) return scored.status();
    for (const auto& item : *scored) {  // in order: the same sum however they came
      sum.num_tokens += item[0].score.num_tokens();
      sum.num_bytes += item[0].score.num_bytes();
      sum.logprob += item[0].score.logprob();
    }
  }
  return sum;
}

}  // namespace lssar::cli

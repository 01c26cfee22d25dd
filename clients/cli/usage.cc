#include "clients/cli/usage.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

// Optimal string alignment distance.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string NearestMatch(absl::string_view word, const std::vector<std::string>& candidates) {
  size_t least = std::max<size_t>(2, word.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag, absl::string_view list,
                                             int least, int most) {
  std::vector<int> counts;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    absl::string_view digits = absl::StripAsciiWhitespace(entry);
    const bool has_suffix = absl::ConsumeSuffix(&digits, "K") || absl::ConsumeSuffix(&digits, "k");
    int32_t number = 0;
    const bool is_number = absl::SimpleAtoi(digits, &number) && number <= most;
    const int64_t count = int64_t{number} * (has_suffix ? 1024 : 1);
    if (!is_number || count < least || count > most) {
      return absl::InvalidArgumentError(StrCat(flag, ": '", entry, "' is not a whole number from ",
                                               least, " to ", most, " (2K is 2048)"));
    }
    counts.push_back(static_cast<int>(count));
  }
  return counts;
}

absl::StatusOr<std::vector<int>> ParsePlaces(absl::string_view flag, absl::string_view list,
                                             int count) {
  const auto place = [count](absl::string_view digits) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(digits, &number) || number < -count || number >= count) return -1;
    return number < 0 ? number + count : number;
  };
  std::vector<int> places;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    const std::vector<absl::string_view> ends = absl::StrSplit(entry, absl::MaxSplits("..", 1));
    const int first = entry == "all" ? 0 : place(ends.front());
    const int last = entry == "all" ? count - 1 : place(ends.back());
    if (first < 0 || last < first) {
      return absl::InvalidArgumentError(
          StrCat(flag, ": '", entry, "' is none of ", count,
                 "; give places from 0 on, -1 for the last, ranges as 4..7, or all"));
    }
    for (int i = first; i <= last; ++i) places.push_back(i);
  }
  return places;
}

absl::Status CheckServedContext(absl::string_view flag, int num_tokens, int max_model_len) {
  if (num_tokens <= max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(flag, ": ", num_tokens,
                                           " is over the served context of ", max_model_len,
                                           " tokens (--max-model-len)"));
}

std::string FormatCount(int count) {
  if (count >= 1024 && count % 1024 == 0) return StrCat(count / 1024, "K");
  return StrCat(count);
}

}  // namespace lssar::cli

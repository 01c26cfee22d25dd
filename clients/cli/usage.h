// What the user meant: nearest names, and numbers as people write them.
#ifndef LSSAR_CLIENTS_CLI_USAGE_H_
#define LSSAR_CLIENTS_CLI_USAGE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lssar::cli {

// The candidate with the fewest letters inserted, deleted, replaced or swapped with their
// neighbour; empty when none is within a third of the word's length (at least 2).
std::string NearestMatch(absl::string_view word, const std::vector<std::string>& candidates);

// "1024,2K,16k" -> {1024, 2048, 16384}: K is 1024.
// Errors  INVALID_ARGUMENT: not a list of whole numbers in [least, most]; names `flag` and the
// entry
absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag, absl::string_view list,
                                             int least, int most);

// "0,4..6,-1" of 8 -> {0, 4, 5, 6, 7}: a negative one counts from the end; "all" is every one.
// Errors  INVALID_ARGUMENT: an entry that is none of [-count, count), or a range that falls; names
//         `flag` and the entry
absl::StatusOr<std::vector<int>> ParsePlaces(absl::string_view flag, absl::string_view list,
                                             int count);

// Errors  INVALID_ARGUMENT: more tokens than the server takes; names `flag` and both numbers
absl::Status CheckServedContext(absl::string_view flag, int num_tokens, int max_model_len);

// 16384 -> "16K", 1000 -> "1000".
std::string FormatCount(int count);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_USAGE_H_

// Reads what users type: names that are almost right, lists of numbers, lists of indices.
#ifndef LSSAR_CLIENTS_CLI_USAGE_H_
#define LSSAR_CLIENTS_CLI_USAGE_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lssar::cli {

// Tokens that a flag may ask for; what a server takes is its max_model_len.
inline constexpr int kMaxLength = 1 << 20;

// The candidate that `word` is probably a typing error of: the first letters are equal and at most
// about a third of the letters differ. Empty: none. Leading dashes are not counted.
std::string NearestMatch(absl::string_view word, const std::vector<std::string>& candidates);

// What to use instead of the unknown flag `flag`, as the end of a sentence: "; did you mean
// '--max-tokens'?". Knows the names that vLLM, llama.cpp and earlier versions give to our flags.
// Empty: nothing is near. `known`: the command's flags ("--seed") and positional names ("prompt").
std::string SuggestFlag(absl::string_view flag, const std::vector<std::string>& known);

// "1024,2K,16k" -> {1024, 2048, 16384}: K is 1024.
// Errors  INVALID_ARGUMENT: not a list of whole numbers in [least, most]; names `flag` and the
//         entry
absl::StatusOr<std::vector<int>> ParseCounts(absl::string_view flag, absl::string_view list,
                                             int least, int most);

// "0.5,3" -> {0.5, 3}.
// Errors  INVALID_ARGUMENT: `is_in_range` refuses an entry, or it is no number: names `flag`, the
//         entry and what it is instead, `problem`
absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view flag, absl::string_view list,
                                                 absl::FunctionRef<bool(double)> is_in_range,
                                                 absl::string_view problem);

// "0,4..6,-1" of 8 -> {0, 4, 5, 6, 7}: a negative index counts from the end; "all" is every index.
// Errors  INVALID_ARGUMENT: an entry outside [-count, count), or a range that falls; names `flag`
//         and the entry
absl::StatusOr<std::vector<int>> ParseIndices(absl::string_view flag, absl::string_view list,
                                              int count);

// Errors  INVALID_ARGUMENT: more tokens than the server takes; names `flag` and both numbers
absl::Status CheckServedContext(absl::string_view flag, int num_tokens, int max_model_len);

// 16384 -> "16K", 1000 -> "1000".
std::string FormatCount(int count);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_USAGE_H_

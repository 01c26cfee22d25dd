#include "clients/cli/usage.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/str_cat.h"
#include "server/config/flags.h"

namespace lssar::cli {
namespace {

absl::string_view WithoutDashes(absl::string_view flag) {
  while (absl::ConsumePrefix(&flag, "-")) {
  }
  return flag;
}

struct Synonym {
  absl::string_view foreign;
  absl::string_view ours;  // "prompt" is the argument
};

// Names of vLLM, llama.cpp, Hugging Face and of earlier versions of this program.
constexpr Synonym kSynonyms[] = {
    {"-p", "prompt"},
    {"--prompt", "prompt"},
    {"-f", "--prompt-file"},
    {"--file", "--prompt-file"},
    {"-n", "--max-tokens"},
    {"--n-predict", "--max-tokens"},
    {"--predict", "--max-tokens"},
    {"--max-new-tokens", "--max-tokens"},
    {"--max-completion-tokens", "--max-tokens"},
    {"-c", "--max-model-len"},
    {"--ctx-size", "--max-model-len"},
    {"--context-length", "--max-model-len"},
    {"--temp", "--temperature"},
    {"--repeat-penalty", "--repetition-penalty"},
    {"-s", "--seed"},
    {"--num-return-sequences", "--n"},
    {"--best-of", "--n"},
    {"--n-probs", "--logprobs"},
    {"--top-logprobs", "--logprobs"},
    {"--token-ids", "--ids"},
    {"--stop-id", "--stop-token-id"},
    {"--stop-token-ids", "--stop-token-id"},
    {"--allow-id", "--allowed-token-id"},
    {"--allowed-token-ids", "--allowed-token-id"},
    {"--ban-id", "--banned-token-id"},
    {"--special", "--show-special-tokens"},
    {"--no-prefix-cache", "--no-prefix-caching"},
    {"--no-enable-prefix-caching", "--no-prefix-caching"},
    {"--window", "--max-length"},
    {"--max-seq-length", "--max-length"},
    {"--concurrency", "--max-concurrency"},
    {"--rates", "--request-rate"},
    {"--rate", "--request-rate"},
    {"--requests", "--num-prompts"},
    {"--num-requests", "--num-prompts"},
    {"--input", "--random-input-len"},
    {"--input-len", "--random-input-len"},
    {"--output", "--random-output-len"},
    {"--output-len", "--random-output-len"},
    {"--shared-prefix", "--random-prefix-len"},
    {"--prompts", "--dataset-path"},
    {"--host", "--server"},
    {"--port", "--server"},
    {"--url", "--server"},
    {"--base-url", "--server"},
    {"--listen", "--server"},
    {"-m", "--model"},
    {"--model-path", "--model"},
    {"-t", "--threads"},
    {"-ngl", "--device"},
    {"--n-gpu-layers", "--device"},
    {"--cache-type-k", "--kv-cache-dtype"},
    {"--cache-type-v", "--kv-cache-dtype"},
};

}  // namespace

std::string NearestMatch(absl::string_view word, const std::vector<std::string>& candidates) {
  const absl::string_view letters = WithoutDashes(word);
  std::vector<std::string> same_start;
  for (const std::string& candidate : candidates) {
    const absl::string_view name = WithoutDashes(candidate);
    if (!letters.empty() && !name.empty() && letters[0] == name[0]) {
      same_start.emplace_back(name.data(), name.size());
    }
  }
  const std::string nearest = NearestName(std::string(letters.data(), letters.size()), same_start);
  for (const std::string& candidate : candidates) {
    if (!nearest.empty() && WithoutDashes(candidate) == absl::string_view(nearest)) {
      return candidate;
    }
  }
  return "";
}

std::string SuggestFlag(absl::string_view flag, const std::vector<std::string>& known) {
  for (const Synonym& synonym : kSynonyms) {
    if (synonym.foreign != flag) continue;
    if (std::ranges::none_of(known, [&](const auto& name) { return name == synonym.ours; })) break;
    if (synonym.ours == "prompt") return "; give the prompt as an argument, without a flag";
    return StrCat("; did you mean '", synonym.ours, "'?");
  }
  const std::string nearest = NearestMatch(flag, known);
  return nearest.empty() ? "" : StrCat("; did you mean '", nearest, "'?");
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
    counts.push_back(int(count));
  }
  return counts;
}

absl::StatusOr<std::vector<double>> ParseNumbers(absl::string_view flag, absl::string_view list,
                                                 absl::FunctionRef<bool(double)> is_in_range,
                                                 absl::string_view problem) {
  std::vector<double> numbers;
  for (const absl::string_view entry : absl::StrSplit(list, ',')) {
    double number = 0;
    // NaN is in no range.
    if (!absl::SimpleAtod(entry, &number) || !is_in_range(number)) {
      return absl::InvalidArgumentError(StrCat(flag, ": '", entry, "' is ", problem));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<int>> ParseIndices(absl::string_view flag, absl::string_view list,
                                              int count) {
  const auto parse = [count](absl::string_view digits) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(digits, &number) || number < -count || number >= count) return -1;
    return number < 0 ? number + count : number;
  };
  std::vector<int> indices;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    const std::vector<absl::string_view> ends = absl::StrSplit(entry, absl::MaxSplits("..", 1));
    const int first = entry == "all" ? 0 : parse(ends.front());
    const int last = entry == "all" ? count - 1 : parse(ends.back());
    if (first < 0 || last < first) {
      return absl::InvalidArgumentError(
          StrCat(flag, ": '", entry, "' is not an index of ", count,
                 "; give indices from 0, -1 for the last, ranges such as 4..7, or all"));
    }
    for (int i = first; i <= last; ++i) indices.push_back(i);
  }
  return indices;
}

absl::Status CheckServedContext(absl::string_view flag, int num_tokens, int max_model_len) {
  if (num_tokens <= max_model_len) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(flag, ": ", num_tokens,
                                           " is more than the served context of ", max_model_len,
                                           " tokens (--max-model-len)"));
}

std::string FormatCount(int count) {
  if (count >= 1024 && count % 1024 == 0) return StrCat(count / 1024, "K");
  return StrCat(count);
}

}  // namespace lssar::cli

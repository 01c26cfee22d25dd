#include "clients/cli/bench_workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/usage.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {
namespace {

constexpr double kMaxSigma = 4;

absl::Status BadLength(absl::string_view flag, absl::string_view text) {
  return absl::InvalidArgumentError(
      StrCat(flag, ": '", text,
             "' is not fixed:N, uniform:A,B or lognormal:MEAN,SIGMA with lengths from 1 to ",
             kMaxLength, " and SIGMA from 0 to ", kMaxSigma));
}

absl::Status BadLine(int line_number, absl::string_view sentence) {
  return absl::InvalidArgumentError(StrCat("line ", line_number, ": ", sentence));
}

absl::StatusOr<BenchPrompt> ParseLine(absl::string_view line, int line_number) {
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadLine(line_number, "not a JSON object {\"prompt\": text, ...}");
  BenchPrompt prompt;
  for (const auto& [field, value] : json.items()) {
    if (field == "prompt") {
      if (!value.is_string()) return BadLine(line_number, "\"prompt\" must be a string");
      prompt.text = value.get<std::string>();
    } else if (field == "max_tokens") {
      const int64_t count = value.is_number_integer() ? value.get<int64_t>() : 0;
      if (count < 1 || count > std::numeric_limits<int32_t>::max()) {
        return BadLine(line_number, "\"max_tokens\" must be a whole number from 1 on");
      }
      prompt.max_tokens = int(count);
    } else {
      return BadLine(line_number, StrCat("\"", field, "\": only prompt and max_tokens are known"));
    }
  }
  if (prompt.text.empty()) return BadLine(line_number, "\"prompt\" is missing or empty");
  return prompt;
}

// A separate generator for each request and for the shared prefix.
std::mt19937_64 MakeGenerator(uint64_t seed, int64_t idx) {
  const auto position = uint64_t(idx);
  std::seed_seq words = {uint32_t(seed), uint32_t(seed >> 32), uint32_t(position),
                         uint32_t(position >> 32)};
  return std::mt19937_64(words);
}

constexpr int64_t kPrefixIdx = -1;

}  // namespace

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view flag,
                                                             absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  LengthDistribution lengths;
  lengths.text_ = std::string(text);
  if (parts.first == "lognormal") {
    const std::vector<absl::string_view> numbers = absl::StrSplit(parts.second, ',');
    double mean = 0;
    double sigma = 0;
    if (numbers.size() != 2 || !absl::SimpleAtod(numbers[0], &mean) ||
        !absl::SimpleAtod(numbers[1], &sigma) || !(mean >= 1 && mean <= kMaxLength) ||
        !(sigma >= 0 && sigma <= kMaxSigma)) {
      return BadLength(flag, text);
    }
    lengths.mu_ = std::log(mean) - sigma * sigma / 2;
    lengths.sigma_ = sigma;
    return lengths;
  }
  const bool is_plain = text.find(':') == absl::string_view::npos;
  const auto counts = ParseCounts(flag, is_plain ? parts.first : parts.second, 1, kMaxLength);
  if (!counts.ok()) return BadLength(flag, text);
  const bool is_fixed = (is_plain || parts.first == "fixed") && counts->size() == 1;
  const bool is_uniform =
      parts.first == "uniform" && counts->size() == 2 && counts->front() <= counts->back();
  if (!is_fixed && !is_uniform) return BadLength(flag, text);
  lengths.low_ = counts->front();
  lengths.high_ = counts->back();
  return lengths;
}

int LengthDistribution::Draw(std::mt19937_64* random) const {
  if (!sigma_.has_value()) return std::uniform_int_distribution<int>(low_, high_)(*random);
  const double drawn = std::lognormal_distribution<double>(mu_, *sigma_)(*random);
  return int(std::clamp(std::round(drawn), 1.0, double(kMaxLength)));
}

std::optional<int> LengthDistribution::Longest() const {
  if (sigma_.has_value()) return std::nullopt;
  return high_;
}

absl::StatusOr<std::vector<BenchPrompt>> ParseBenchPrompts(absl::string_view lines) {
  std::vector<BenchPrompt> prompts;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    ASSIGN_OR_RETURN(BenchPrompt prompt, ParseLine(line, line_number));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError("no prompt: the file is empty");
  return prompts;
}

absl::StatusOr<BenchWorkload> BenchWorkload::Make(WorkloadOptions options,
                                                  const v1::GetInfoReply& served) {
  const bool is_random = options.prompts.empty();
  const int64_t input = is_random ? options.input.Longest().value_or(1) : 1;
  const int64_t shared = is_random ? options.num_prefix_tokens : 0;
  const int64_t output = options.output.Longest().value_or(1);
  if (shared + input + output > served.max_model_len()) {
    return absl::InvalidArgumentError(
        StrCat("a prefix of ", shared, ", a prompt of ", input, " and an output of ", output,
               " tokens are more than the served context of ", served.max_model_len()));
  }
  BenchWorkload workload(std::move(options), served);
  if (workload.ids_.empty()) {
    return absl::FailedPreconditionError("the server reports no vocabulary for random prompts");
  }
  return workload;
}

BenchWorkload::BenchWorkload(WorkloadOptions options, const v1::GetInfoReply& served)
    : options_(std::move(options)), max_model_len_(served.max_model_len()) {
  if (served.has_bos_id()) bos_id_ = served.bos_id();
  for (int id = 0; id < served.vocab_size(); ++id) {
    const bool is_special = (served.has_bos_id() && id == served.bos_id()) ||
                            (served.has_eos_id() && id == served.eos_id());
    if (!is_special) ids_.push_back(id);
  }
}

v1::GenerateRequest BenchWorkload::Request(int64_t idx) const {
  std::mt19937_64 random = MakeGenerator(options_.seed, idx);
  v1::GenerateRequest request;
  if (options_.prompts.empty()) {
    FillRandomPrompt(&random, &request);
  } else {
    const BenchPrompt& prompt = options_.prompts[size_t(idx) % options_.prompts.size()];
    request.set_text(prompt.text);
    request.set_max_tokens(prompt.max_tokens.value_or(options_.output.Draw(&random)));
  }
  request.mutable_sampling()->set_temperature(options_.temperature);
  request.mutable_sampling()->set_seed(uint64_t(idx));
  request.set_ignore_eos(options_.ignore_eos);
  request.set_stream_interval(options_.stream_interval);
  request.set_use_prefix_cache(options_.use_prefix_cache);
  return request;
}

void BenchWorkload::FillRandomPrompt(std::mt19937_64* random, v1::GenerateRequest* request) const {
  const bool is_shared = std::bernoulli_distribution(options_.prefix_fraction)(*random);
  const int num_shared = is_shared ? options_.num_prefix_tokens : 0;
  int num_input = options_.input.Draw(random);
  int num_output = options_.output.Draw(random);
  // Only lognormal lengths can be too long (Make).
  const int max_tokens = max_model_len_ - num_shared;
  num_output =
      std::min(num_output, max_tokens - (options_.input.Longest().has_value() ? num_input : 1));
  num_input = std::min(num_input, max_tokens - num_output);
  request->set_max_tokens(num_output);

  v1::TokenIds* tokens = request->mutable_tokens();
  if (num_shared > 0) {
    std::mt19937_64 shared = MakeGenerator(options_.seed, kPrefixIdx);
    AddRandomIds(num_shared, &shared, tokens);
  }
  AddRandomIds(num_input, random, tokens);
  if (bos_id_.has_value()) tokens->set_ids(0, *bos_id_);
}

void BenchWorkload::AddRandomIds(int count, std::mt19937_64* random, v1::TokenIds* tokens) const {
  std::uniform_int_distribution<size_t> index(0, ids_.size() - 1);
  for (int i = 0; i < count; ++i) tokens->add_ids(ids_[index(*random)]);
}

}  // namespace lssar::cli

#include "clients/cli/bench_workload.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "kernels/str_cat.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {
namespace {

using Json = nlohmann::json;

absl::Status BadLine(int line_number, absl::string_view sentence) {
  return absl::InvalidArgumentError(StrCat("line ", line_number, ": ", sentence));
}

absl::StatusOr<BenchPrompt> ParseLine(absl::string_view line, int line_number) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadLine(line_number, "not a JSON object {\"prompt\": text, ...}");
  BenchPrompt prompt;
  for (const auto& [field, value] : json.items()) {
    if (field == "prompt") {
      if (!value.is_string()) return BadLine(line_number, "\"prompt\" must be a text");
      prompt.text = value.get<std::string>();
    } else if (field == "max_tokens") {
      const int64_t count = value.is_number_integer() ? value.get<int64_t>() : 0;
      if (count < 1 || count > std::numeric_limits<int32_t>::max()) {
        return BadLine(line_number, "\"max_tokens\" must be a whole number from 1 on");
      }
      prompt.max_tokens = static_cast<int>(count);
    } else {
      return BadLine(line_number, StrCat("\"", field, "\": only prompt and max_tokens are known"));
    }
  }
  if (prompt.text.empty()) return BadLine(line_number, "\"prompt\" is missing or empty");
  return prompt;
}

// A generator of its own for each request and for what they share.
std::mt19937_64 RandomOf(uint64_t seed, int64_t idx) {
  const auto place = static_cast<uint64_t>(idx);
  std::seed_seq words = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32)};
  return std::mt19937_64(words);
}

constexpr int64_t kSharedIdx = -1;

}  // namespace

absl::StatusOr<std::vector<BenchPrompt>> ParseBenchPrompts(absl::string_view lines) {
  std::vector<BenchPrompt> prompts;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(lines, '\n')) {
    ++line_number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<BenchPrompt> prompt = ParseLine(line, line_number);
    if (!prompt.ok()) return prompt.status();
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) return absl::InvalidArgumentError("no prompt: the file is empty");
  return prompts;
}

absl::StatusOr<BenchWorkload> BenchWorkload::Make(WorkloadOptions options,
                                                  const v1::GetInfoReply& served) {
  const bool is_random = options.prompts.empty();
  const int64_t input = is_random ? options.input.Longest().value_or(1) : 1;
  const int64_t shared = is_random ? options.num_shared_tokens : 0;
  const int64_t output = options.output.Longest().value_or(1);
  if (shared + input + output > served.max_model_len()) {
    return absl::InvalidArgumentError(
        StrCat("a prompt of ", shared, " shared and ", input, " own tokens and an output of ",
               output, " are over the served context of ", served.max_model_len()));
  }
  BenchWorkload workload(std::move(options), served);
  if (workload.ids_.empty()) {
    return absl::FailedPreconditionError("the server names no vocabulary to draw tokens from");
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
  std::mt19937_64 random = RandomOf(options_.seed, idx);
  v1::GenerateRequest request;
  if (options_.prompts.empty()) {
    FillRandomPrompt(&random, &request);
  } else {
    const BenchPrompt& prompt =
        options_.prompts[static_cast<size_t>(idx) % options_.prompts.size()];
    request.set_text(prompt.text);
    request.set_max_tokens(prompt.max_tokens.value_or(options_.output.Draw(&random)));
  }
  request.mutable_sampling()->set_temperature(options_.temperature);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(idx));
  request.set_ignore_eos(options_.ignore_eos);
  request.set_stream_interval(options_.stream_interval);
  request.set_use_prefix_cache(options_.use_prefix_cache);
  return request;
}

void BenchWorkload::FillRandomPrompt(std::mt19937_64* random, v1::GenerateRequest* request) const {
  const bool is_shared = std::bernoulli_distribution(options_.shared_fraction)(*random);
  const int num_shared = is_shared ? options_.num_shared_tokens : 0;
  int num_input = options_.input.Draw(random);
  int num_output = options_.output.Draw(random);
  // Only lognormal lengths can be too long (Make).
  const int room = max_model_len_ - num_shared;
  num_output = std::min(num_output, room - (options_.input.Longest().has_value() ? num_input : 1));
  num_input = std::min(num_input, room - num_output);
  request->set_max_tokens(num_output);

  v1::TokenIds* tokens = request->mutable_tokens();
  if (num_shared > 0) {
    std::mt19937_64 shared = RandomOf(options_.seed, kSharedIdx);
    AddRandomIds(num_shared, &shared, tokens);
  }
  AddRandomIds(num_input, random, tokens);
  if (bos_id_.has_value()) tokens->set_ids(0, *bos_id_);
}

void BenchWorkload::AddRandomIds(int count, std::mt19937_64* random, v1::TokenIds* tokens) const {
  std::uniform_int_distribution<size_t> place(0, ids_.size() - 1);
  for (int i = 0; i < count; ++i) tokens->add_ids(ids_[place(*random)]);
}

}  // namespace lssar::cli

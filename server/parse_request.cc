#include "server/parse_request.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "runtime/limits.h"
#include "server/fields.h"
#include "server/parse_prompt.h"
#include "server/parse_sharing.h"
#include "server/served_model.h"

namespace lssar {
namespace {

// Whether allowed_token_ids and banned_token_ids together leave nothing to sample.
bool LeavesNoId(const SamplingParams& params, int vocab_size) {
  const std::set<int32_t> banned(params.banned_ids.begin(), params.banned_ids.end());
  if (params.allowed_ids.empty()) return banned.size() == size_t(vocab_size);
  return std::all_of(params.allowed_ids.begin(), params.allowed_ids.end(),
                     [&](int32_t id) { return banned.contains(id); });
}

absl::Status ReadTokenSets(const v1::Sampling& message, int vocab_size, SamplingParams& params) {
  RETURN_IF_ERROR(CheckCount("sampling.logit_bias", size_t(message.logit_bias_size()), 0,
                             limits::kMaxLogitBiases));
  for (const auto& [id, bias] : message.logit_bias()) {
    RETURN_IF_ERROR(CheckId("sampling.logit_bias id", id, vocab_size));
    RETURN_IF_ERROR(CheckRange(StrCat("sampling.logit_bias[", id, "]"), bias,
                               -limits::kMaxLogitBias, limits::kMaxLogitBias));
    params.logit_bias.emplace_back(id, bias);
  }
  std::sort(params.logit_bias.begin(), params.logit_bias.end());

  const auto read_ids = [&](const std::string& field, const auto& ids,
                            std::vector<int32_t>& target) -> absl::Status {
    RETURN_IF_ERROR(CheckCount(field, size_t(ids.size()), 0, size_t(vocab_size)));
    auto checked = CheckIds(field, ids, vocab_size);
    if (checked.ok()) target = *std::move(checked);
    return checked.status();
  };
  RETURN_IF_ERROR(
      read_ids("sampling.allowed_token_ids", message.allowed_token_ids(), params.allowed_ids));
  RETURN_IF_ERROR(
      read_ids("sampling.banned_token_ids", message.banned_token_ids(), params.banned_ids));
  if (LeavesNoId(params, vocab_size)) {
    return absl::InvalidArgumentError(StrCat(
        "sampling.banned_token_ids has ", params.banned_ids.size(),
        " entries and leaves no id to sample; at least one id must be allowed and not banned"));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::Sampling& message, const ParseContext& context,
                          SamplingParams& params) {
  const int vocab_size = context.checkpoint->config.vocab_size;
  if (message.has_temperature()) params.temperature = message.temperature();
  if (message.has_top_k()) params.top_k = message.top_k();
  if (message.has_top_p()) params.top_p = message.top_p();
  if (message.has_min_p()) params.min_p = message.min_p();
  if (message.has_repetition_penalty()) params.repetition_penalty = message.repetition_penalty();
  if (message.has_presence_penalty()) params.presence_penalty = message.presence_penalty();
  if (message.has_frequency_penalty()) params.frequency_penalty = message.frequency_penalty();
  params.seed = message.has_seed() ? message.seed() : context.default_seed;

  RETURN_IF_ERROR(
      CheckRange("sampling.temperature", params.temperature, 0.0f, limits::kMaxTemperature));
  RETURN_IF_ERROR(CheckRange("sampling.top_k", params.top_k, 0, vocab_size));
  RETURN_IF_ERROR(CheckRangeAbove("sampling.top_p", params.top_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", params.min_p, 0.0f, 1.0f));
  RETURN_IF_ERROR(CheckRangeAbove("sampling.repetition_penalty", params.repetition_penalty, 0.0f,
                                  limits::kMaxRepetitionPenalty));
  RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", params.presence_penalty,
                             -limits::kMaxPenalty, limits::kMaxPenalty));
  RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", params.frequency_penalty,
                             -limits::kMaxPenalty, limits::kMaxPenalty));
  return ReadTokenSets(message, vocab_size, params);
}

// max_tokens and min_tokens, against what the prompt leaves of the context.
absl::Status ReadLengths(const v1::GenerateRequest& message, size_t num_prompt_tokens,
                         int max_model_len, GenerateParams& params) {
  if (num_prompt_tokens >= size_t(max_model_len)) {
    return absl::InvalidArgumentError(
        StrCat("the prompt has ", num_prompt_tokens, " tokens; max_model_len is ", max_model_len,
               " tokens, prompt and at least one new token together"));
  }
  const int room = max_model_len - static_cast<int>(num_prompt_tokens);
  params.max_tokens =
      message.has_max_tokens() ? message.max_tokens() : std::min(limits::kDefaultMaxTokens, room);
  if (params.max_tokens < 1 || params.max_tokens > room) {
    return Refuse("max_tokens", params.max_tokens,
                  StrCat("in [1, ", room, "]: max_model_len ", max_model_len, " - ",
                         num_prompt_tokens, " prompt tokens"));
  }
  params.min_tokens = message.min_tokens();
  return CheckRange("min_tokens", params.min_tokens, 0, params.max_tokens);
}

absl::Status ReadStops(const v1::GenerateRequest& message, int vocab_size, GenerateParams& params) {
  RETURN_IF_ERROR(
      CheckCount("stop_strings", size_t(message.stop_strings_size()), 0, limits::kMaxStopStrings));
  for (int i = 0; i < message.stop_strings_size(); ++i) {
    const std::string& text = message.stop_strings(i);
    const std::string field = StrCat("stop_strings[", i, "]");
    RETURN_IF_ERROR(CheckText(field, text));
    RETURN_IF_ERROR(CheckBytes(field, text.size(), 1, limits::kMaxStopStringBytes));
    params.stop_strings.push_back(text);
  }
  RETURN_IF_ERROR(
      CheckCount("stop_token_ids", size_t(message.stop_token_ids_size()), 0, limits::kMaxStopIds));
  auto ids = CheckIds("stop_token_ids", message.stop_token_ids(), vocab_size);
  if (ids.ok()) params.stop_ids = *std::move(ids);
  return ids.status();
}

absl::Status ReadOutputs(const v1::GenerateRequest& message, GenerateParams& params,
                         ParsedGenerate& call) {
  if (message.has_n()) params.num_choices = message.n();
  RETURN_IF_ERROR(CheckRange("n", params.num_choices, 1, limits::kMaxChoices));
  if (message.has_logprobs()) {
    params.num_logprobs = message.logprobs();
    RETURN_IF_ERROR(CheckRange("logprobs", params.num_logprobs, 0, limits::kMaxLogprobs));
  }
  if (message.has_prompt_logprobs()) {
    params.num_prompt_logprobs = message.prompt_logprobs();
    RETURN_IF_ERROR(
        CheckRange("prompt_logprobs", params.num_prompt_logprobs, 0, limits::kMaxLogprobs));
  }
  params.ignore_eos = message.ignore_eos();
  if (message.has_stream_interval()) call.stream_interval = message.stream_interval();
  return CheckRange("stream_interval", call.stream_interval, 1, limits::kMaxStreamInterval);
}

}  // namespace

ParseContext ContextOf(const ServedModel& model, uint64_t default_seed) {
  return {.checkpoint = &model.GetCheckpoint(),
          .max_model_len = model.MaxModelLen(),
          .default_seed = default_seed};
}

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  ParsedGenerate call;
  GenerateParams params;
  // What is cheap to check comes before the prompt is tokenised.
  RETURN_IF_ERROR(ReadSampling(message.sampling(), context, params.sampling));
  RETURN_IF_ERROR(ReadStops(message, checkpoint.config.vocab_size, params));
  RETURN_IF_ERROR(ReadOutputs(message, params, call));
  RETURN_IF_ERROR(ReadSharing(message, call.request));
  auto prompt = ReadPrompt(message, checkpoint);
  if (!prompt.ok()) return prompt.status();
  RETURN_IF_ERROR(ReadLengths(message, prompt->ids.size(), context.max_model_len, params));

  for (std::string& stop : prompt->stop_strings) params.stop_strings.push_back(std::move(stop));
  if (message.echo()) {
    if (message.prompt_case() != v1::GenerateRequest::kTokens) {
      call.echo = std::move(prompt->text);
    } else if (checkpoint.tokenizer != nullptr) {
      call.echo = Decode(*checkpoint.tokenizer, prompt->ids);
    }
  }
  call.request.prompt = std::move(prompt->ids);
  call.request.generate = std::move(params);
  return call;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  std::vector<int32_t> bos = BosOf(checkpoint);
  if (message.has_add_bos()) {
    bos.clear();
    if (message.add_bos()) {
      if (!checkpoint.config.bos_id) {
        return absl::FailedPreconditionError(
            StrCat("add_bos is true; checkpoint ", checkpoint.name, " has no BOS"));
      }
      bos = {*checkpoint.config.bos_id};
    }
  }
  if (message.text().size() > limits::kMaxTokenizeBytes) {
    return absl::InvalidArgumentError(StrCat("text has ", message.text().size(),
                                             " bytes; it must have at most ",
                                             limits::kMaxTokenizeBytes));
  }
  return EncodeField("text", message.text(), checkpoint.tokenizer.get(), bos);
}

absl::StatusOr<std::vector<int32_t>> ParseDetokenize(const v1::DetokenizeRequest& message,
                                                     const ParseContext& context) {
  if (context.checkpoint->tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("checkpoint ", context.checkpoint->name, " has no tokenizer"));
  }
  RETURN_IF_ERROR(CheckCount("ids", size_t(message.ids_size()), 0, limits::kMaxDetokenizeIds));
  return CheckIds("ids", message.ids(), context.checkpoint->config.vocab_size);
}

}  // namespace lssar

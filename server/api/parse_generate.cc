#include "base/error_details.h"
#include "server/api/parse_parts.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/ending_ids.h"
#include "runtime/limits.h"
#include "runtime/token_masks.h"
#include "server/api/fields.h"
#include "server/api/grammar_cache.h"
#include "server/api/sampling_fields.h"

namespace lssar {
namespace {

// Adds the ids of each word, as it is and with a space before it: one id to `banned_ids`, several
// to `sequences`. A tokenizer that adds a space to a text has the second in the place of the first:
// there the first is what follows a line's end.
// Source  vLLM, SamplingParams.update_from_tokenizer: the form with a space counts where it has as
//         many ids as the other and begins with another. It has no third one.
absl::Status ReadBadWords(const v1::Sampling& message, const ParseContext& context,
                          std::vector<int32_t>* banned_ids,
                          std::vector<std::vector<int32_t>>* sequences) {
  RETURN_IF_ERROR(
      CheckCount("sampling.bad_words", size_t(message.bad_words_size()), 0, limits::kMaxBadWords));
  std::vector<int32_t> line_end;
  if (context.checkpoint->tokenizer->AddsDummyPrefix()) {
    ASSIGN_OR_RETURN(line_end, EncodeField("sampling.bad_words", "\n", context, {}));
  }
  for (int i = 0; i < message.bad_words_size(); ++i) {
    const std::string field = StrCat("sampling.bad_words[", i, "]");
    const std::string& word = message.bad_words(i);
    RETURN_IF_ERROR(CheckBytes(field, word.size(), 1, limits::kMaxBadWordBytes));
    const std::string stripped = word.substr(std::min(word.find_first_not_of(kSpace), word.size()));
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeField(field, stripped, context, {}));
    ASSIGN_OR_RETURN(std::vector<int32_t> spaced, EncodeField(field, " " + stripped, context, {}));
    if (ids.empty()) return FieldError(field, "has no token; it must have text");
    std::vector<std::vector<int32_t>> forms = {ids};
    if (spaced.size() == ids.size() && spaced.front() != ids.front()) forms.push_back(spaced);
    if (!line_end.empty()) {
      ASSIGN_OR_RETURN(const std::vector<int32_t> line,
                       EncodeField(field, "\n" + stripped, context, {}));
      const auto [end, begin] = std::ranges::mismatch(line_end, line);
      if (end == line_end.end() && begin != line.end()) forms.emplace_back(begin, line.end());
    }
    for (std::vector<int32_t>& form : forms) {
      if (form.size() == 1) {
        banned_ids->push_back(form.front());
      } else {
        sequences->push_back(std::move(form));
      }
    }
  }
  return absl::OkStatus();
}

// True if allowed_token_ids and banned_token_ids leave no id below `num_token_ids` to sample. Ids
// of padding may be banned too: stop_token_ids may have them.
bool LeavesNoId(const SamplingParams& params, int num_token_ids) {
  const std::set<int32_t> banned(params.banned_ids.begin(), params.banned_ids.end());
  if (params.allowed_ids.empty()) {
    const auto num_banned = std::distance(banned.begin(), banned.lower_bound(num_token_ids));
    return num_banned == num_token_ids;
  }
  return std::all_of(params.allowed_ids.begin(), params.allowed_ids.end(),
                     [&](int32_t id) { return banned.contains(id); });
}

// All ids that may be banned at once.
SamplingParams WithSequenceEnds(const GenerateParams& params) {
  SamplingParams sampling = params.sampling;
  for (const auto& sequence : params.banned_sequences) {
    sampling.banned_ids.push_back(sequence.back());
  }
  return sampling;
}

absl::Status ReadTokenSets(const v1::Sampling& message, const ParseContext& context, int vocab_size,
                           GenerateParams* generate) {
  SamplingParams* const params = &generate->sampling;
  RETURN_IF_ERROR(CheckCount("sampling.logit_bias", size_t(message.logit_bias_size()), 0,
                             limits::kMaxLogitBiases));
  for (const auto& [id, bias] : message.logit_bias()) {
    if (id < 0 || id >= vocab_size) {
      return FieldError("sampling.logit_bias",
                        StrCat("id is ", id, "; it must be in [0, ", vocab_size, ")"));
    }
    RETURN_IF_ERROR(CheckRange(StrCat("sampling.logit_bias[", id, "]"), bias,
                               -limits::kMaxLogitBias, limits::kMaxLogitBias));
    params->logit_bias.emplace_back(id, bias);
  }
  std::sort(params->logit_bias.begin(), params->logit_bias.end());

  const auto read_ids = [&](const std::string& field, const auto& ids,
                            std::vector<int32_t>* target) -> absl::Status {
    RETURN_IF_ERROR(CheckCount(field, size_t(ids.size()), 0, size_t(vocab_size)));
    ASSIGN_OR_RETURN(*target, CheckIds(field, ids, vocab_size));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(
      read_ids("sampling.allowed_token_ids", message.allowed_token_ids(), &params->allowed_ids));
  RETURN_IF_ERROR(
      read_ids("sampling.banned_token_ids", message.banned_token_ids(), &params->banned_ids));
  if (LeavesNoId(*params, vocab_size)) {
    return FieldError(
        "sampling.banned_token_ids",
        StrCat("has ", params->banned_ids.size(),
               " entries and leaves no id to sample; at least one id must be allowed and not "
               "banned"));
  }
  if (message.bad_words().empty()) return absl::OkStatus();
  RETURN_IF_ERROR(ReadBadWords(message, context, &params->banned_ids, &generate->banned_sequences));
  if (LeavesNoId(WithSequenceEnds(*generate), vocab_size)) {
    return FieldError("sampling.bad_words",
                      StrCat("has ", message.bad_words_size(),
                             " entries, whose last tokens leave no id to sample"));
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const v1::Sampling& message, const ParseContext& context,
                          GenerateParams* generate) {
  SamplingParams* const params = &generate->sampling;
  const int vocab_size = context.checkpoint->config.NumTokenIds();  // padding is never sampled
  params->seed = message.has_seed() ? message.seed() : context.default_seed;
  RETURN_IF_ERROR(ReadSamplingFields(message, vocab_size, params));
  return ReadTokenSets(message, context, vocab_size, generate);
}

// max_tokens where a request has none. A rotary base that depends on the length is that of all the
// tokens that the model may read. A short chat that may fill the context would have the base of the
// longest text, so the default ends where the base of the prompt and a usual answer does. The last
// new token is not read.
int DefaultMaxTokens(const ParseContext& context, int num_prompt_tokens, int max_new_tokens) {
  const int most = std::min(context.default_max_tokens, max_new_tokens);
  const int usual = std::min(most, limits::kDefaultMaxTokens);
  const int num_read = num_prompt_tokens + usual - 1;
  const int longest = LongestAtRopeBase(context.checkpoint->config, num_read);
  return usual + std::min(most - usual, longest - num_read);
}

// Checks max_tokens and min_tokens against the context length left after the prompt.
absl::Status ReadLengths(const v1::GenerateRequest& message, size_t num_prompt_tokens,
                         const ParseContext& context, GenerateParams* params) {
  const int max_model_len = context.max_model_len;
  // A prompt that is only scored may fill the context.
  const int max_prompt_tokens = context.only_prompt ? max_model_len : max_model_len - 1;
  if (num_prompt_tokens > size_t(max_prompt_tokens)) {
    const std::string limit = context.only_prompt ? StrCat("max_model_len ", max_model_len)
                                                  : StrCat(max_prompt_tokens, ": max_model_len ",
                                                           max_model_len, " less one new token");
    return ContextLengthError(
        "prompt", StrCat("has ", num_prompt_tokens, " tokens; it must have at most ", limit),
        max_model_len, "the prompt");
  }
  const int max_new_tokens = max_prompt_tokens + 1 - int(num_prompt_tokens);
  params->max_tokens = message.has_max_tokens()
                           ? message.max_tokens()
                           : DefaultMaxTokens(context, int(num_prompt_tokens), max_new_tokens);
  const int least = context.only_prompt ? 0 : 1;
  if (params->max_tokens < least || params->max_tokens > max_new_tokens) {
    const std::string range = StrCat("in [", least, ", ", max_new_tokens, "]: max_model_len ",
                                     max_model_len, " - ", num_prompt_tokens, " prompt tokens");
    if (params->max_tokens < least) return ValueError("max_tokens", params->max_tokens, range);
    return ContextLengthError(
        "max_tokens", StrCat("is ", params->max_tokens, "; it must be ", range), max_model_len);
  }
  params->min_tokens = message.min_tokens();
  return CheckRange("min_tokens", params->min_tokens, 0, params->max_tokens);
}

// Before min_tokens an id must be left that does not end the text.
absl::Status CheckEarlyIds(const ModelConfig& config, const GenerateParams& params) {
  if (params.min_tokens == 0) return absl::OkStatus();
  SamplingParams early = WithSequenceEnds(params);
  for (const int32_t id : EndingIds(params, config)) early.banned_ids.push_back(id);
  if (!LeavesNoId(early, config.NumTokenIds())) return absl::OkStatus();
  return ValueError("min_tokens", params.min_tokens,
                    "0 where each id that may be sampled ends the text");
}

absl::Status ReadStops(const v1::GenerateRequest& message, int vocab_size, GenerateParams* params) {
  RETURN_IF_ERROR(
      CheckCount("stop_strings", size_t(message.stop_strings_size()), 0, limits::kMaxStopStrings));
  for (int i = 0; i < message.stop_strings_size(); ++i) {
    const std::string& text = message.stop_strings(i);
    const std::string field = StrCat("stop_strings[", i, "]");
    RETURN_IF_ERROR(CheckText(field, text));
    RETURN_IF_ERROR(CheckBytes(field, text.size(), 1, limits::kMaxStopStringBytes));
    params->stop_strings.push_back(text);
  }
  RETURN_IF_ERROR(
      CheckCount("stop_token_ids", size_t(message.stop_token_ids_size()), 0, limits::kMaxStopIds));
  ASSIGN_OR_RETURN(params->stop_ids,
                   CheckIds("stop_token_ids", message.stop_token_ids(), vocab_size));
  return absl::OkStatus();
}

// A stop string that is a special token has no text in the output: its id stops.
void MoveSpecialStops(const Checkpoint& checkpoint, GenerateParams* params) {
  if (checkpoint.tokenizer == nullptr) return;
  for (const std::string& text : params->stop_strings) {
    const std::optional<int32_t> id = checkpoint.tokenizer->FindSpecialToken(text);
    const bool is_new = id && std::ranges::count(params->stop_ids, *id) == 0;
    if (is_new) params->stop_ids.push_back(*id);
  }
}

struct Constraint {
  std::string field;
  GrammarSource source;
};

absl::StatusOr<Constraint> ReadSource(const v1::GenerateRequest& message) {
  using Kind = GrammarSource::Kind;
  switch (message.constraint_case()) {
    case v1::GenerateRequest::kJsonObject:
      if (!message.json_object())
        return FieldError("json_object", "is false; it must be true or left out");
      return Constraint{"json_object", JsonObjectSource()};
    case v1::GenerateRequest::kJsonSchema:
      return Constraint{"json_schema", {.kind = Kind::kJsonSchema, .text = message.json_schema()}};
    case v1::GenerateRequest::kJsonSchemaOrText:
      return Constraint{"json_schema_or_text",
                        {.kind = Kind::kJsonSchemaOrText, .text = message.json_schema_or_text()}};
    case v1::GenerateRequest::kRegex:
      return Constraint{"regex", {.kind = Kind::kRegex, .text = message.regex()}};
    case v1::GenerateRequest::kGrammar:
      return Constraint{"grammar", {.kind = Kind::kEbnf, .text = message.grammar()}};
    case v1::GenerateRequest::kChoice: {
      const auto& texts = message.choice().texts();
      RETURN_IF_ERROR(CheckCount("choice", size_t(texts.size()), 1, limits::kMaxConstraintChoices));
      for (int i = 0; i < texts.size(); ++i) {
        RETURN_IF_ERROR(CheckText(StrCat("choice[", i, "]"), texts[i]));
      }
      const std::vector<std::string> choices(texts.begin(), texts.end());
      return Constraint{"choice", ChoiceSource(choices)};
    }
    case v1::GenerateRequest::CONSTRAINT_NOT_SET: break;
  }
  return Constraint{};
}

// Requires  `params` has all that says which ids may be sampled, and which end the text
absl::Status ReadConstraint(const v1::GenerateRequest& message, const ParseContext& context,
                            GenerateParams* params) {
  ASSIGN_OR_RETURN(const Constraint constraint, ReadSource(message));
  const std::string& field = constraint.field;
  if (field.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckText(field, constraint.source.text));
  const Checkpoint& checkpoint = *context.checkpoint;
  if (checkpoint.tokenizer == nullptr) {
    return UnmetField(
        field, "is set, and this checkpoint has no tokenizer, so a text cannot be constrained");
  }
  if (context.grammars == nullptr) {
    return absl::UnimplementedError(StrCat(field, ": there are no constraints here"));
  }
  auto grammar = context.grammars->Get(constraint.source, context.should_stop, context.tenant,
                                       context.workers);
  if (absl::IsInvalidArgument(grammar.status()) || absl::IsDeadlineExceeded(grammar.status())) {
    const absl::string_view problem = grammar.status().message();
    return FieldError(field, std::string_view(problem.data(), problem.size()));
  }
  if (!grammar.ok()) return WithPrefix(StrCat(field, ": "), grammar.status());
  params->grammar = *std::move(grammar);
  TokenMasks masks(params->grammar, checkpoint.config.NumTokenIds(),
                   EndingIds(*params, checkpoint.config));
  const std::optional<FinishReason> finish =
      masks.After({}, {}, params->min_tokens == 0, params->sampling).finish;
  if (finish != FinishReason::kDeadEnd) return absl::OkStatus();
  return FieldError(field, "allows no first token that may be sampled");
}

absl::Status ReadOutputs(const v1::GenerateRequest& message, const ParseContext& context,
                         GenerateParams* params, ParsedGenerate* call) {
  if (message.has_n()) params->num_choices = message.n();
  RETURN_IF_ERROR(CheckRange("n", params->num_choices, 1, context.max_choices));
  const int max_logprobs = MaxLogprobs(context.checkpoint->config);
  if (message.has_logprobs()) {
    params->num_logprobs = message.logprobs();
    RETURN_IF_ERROR(CheckRange("logprobs", params->num_logprobs, 0, max_logprobs));
  }
  if (message.has_prompt_logprobs()) {
    params->num_prompt_logprobs = message.prompt_logprobs();
    RETURN_IF_ERROR(CheckRange("prompt_logprobs", params->num_prompt_logprobs, 0, max_logprobs));
  }
  if (message.has_speculative_tokens()) {
    params->speculative_tokens = message.speculative_tokens();
    constexpr limits::Range<int> kRange = limits::kMaxSpeculativeTokens;
    RETURN_IF_ERROR(
        CheckRange("speculative_tokens", params->speculative_tokens, kRange.min, kRange.max));
  }
  params->ignore_eos = message.ignore_eos();
  params->includes_stop = message.include_stop_str_in_output();
  if (message.has_skip_special_tokens()) {
    params->skips_special_tokens = message.skip_special_tokens();
  }
  if (message.has_stream_interval()) call->stream_interval = message.stream_interval();
  return CheckRange("stream_interval", call->stream_interval, 1, limits::kMaxStreamInterval);
}

}  // namespace

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  ParsedGenerate parsed;
  GenerateParams params;
  // Cheap checks first: tokenization is the expensive part.
  RETURN_IF_ERROR(ReadSampling(message.sampling(), context, &params));
  RETURN_IF_ERROR(ReadStops(message, checkpoint.config.vocab_size, &params));
  RETURN_IF_ERROR(ReadOutputs(message, context, &params, &parsed));
  RETURN_IF_ERROR(ReadScheduling(message, context, &parsed.request));
  ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(message, context));
  RETURN_IF_ERROR(ReadLengths(message, prompt.ids.size(), context, &params));

  if (!params.ignore_eos) {
    for (std::string& stop : prompt.stop_strings) params.stop_strings.push_back(std::move(stop));
  }
  MoveSpecialStops(checkpoint, &params);
  RETURN_IF_ERROR(CheckEarlyIds(checkpoint.config, params));
  RETURN_IF_ERROR(ReadConstraint(message, context, &params));
  if (message.echo()) {
    if (message.prompt_case() != v1::GenerateRequest::kTokens) {
      parsed.echo = std::move(prompt.text);
    } else if (checkpoint.tokenizer != nullptr) {
      parsed.echo = Decode(*checkpoint.tokenizer, prompt.ids);
    }
  }
  parsed.request.prompt = std::move(prompt.ids);
  parsed.request.params = std::move(params);
  return parsed;
}

}  // namespace lssar

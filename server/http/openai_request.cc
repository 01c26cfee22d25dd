#include "server/http/openai_request.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/fields.h"
#include "server/api/parse_request.h"
#include "server/api/sampling_fields.h"
#include "server/config/limits.h"
#include "server/http/body_fields.h"
#include "server/http/http_error.h"
#include "server/http/request_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPrompts = limits::kMaxScoreItems;
// OpenAI's default.
constexpr int kDefaultCompletionTokens = 16;

// All that is generated is returned.
absl::Status CheckBestOf(const BodyFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> best_of, fields.Int("best_of"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> n, fields.Int("n"));
  if (!best_of || *best_of == n.value_or(1)) return absl::OkStatus();
  return FieldError("best_of", StrCat("is ", *best_of,
                                      "; this server returns all that it generates, so it must be "
                                      "equal to n or left out"));
}

// The two names of one limit say the same.
absl::Status CheckSameTokens(std::optional<int32_t> max_tokens,
                             std::optional<int32_t> max_completion_tokens) {
  if (!max_tokens || max_completion_tokens.value_or(*max_tokens) == *max_tokens) {
    return absl::OkStatus();
  }
  return FieldError("max_completion_tokens",
                    StrCat("is ", *max_completion_tokens, "; it must be max_tokens ", *max_tokens,
                           " or left out"));
}

absl::Status ReadLogitBias(const Json& biases, v1::Sampling* sampling) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(biases, "logit_bias"));
  for (const auto& [key, value] : biases.items()) {
    int32_t id = 0;
    // Written in one way alone: "5" and "05" would be two values for one id.
    if (!absl::SimpleAtoi(key, &id) || StrCat(id) != key) {
      return FieldError("logit_bias",
                        StrCat("has the key ", Quote(key), "; it must be a token id"));
    }
    ASSIGN_OR_RETURN(const double bias, ReadNumber(fields.Name(key), value));
    RETURN_IF_ERROR(CheckRange<double>(StrCat("logit_bias[", key, "]"), bias,
                                       -limits::kMaxLogitBias, limits::kMaxLogitBias));
    (*sampling->mutable_logit_bias())[id] = float(bias);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const BodyFields& fields, v1::Sampling* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    if (const auto* number = std::get_if<SamplingValue<float>>(&field.value)) {
      ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(field.name));
      if (!value) continue;
      // Before fp32 makes another number of it.
      const auto check = field.excludes_low ? CheckRangeAbove<double> : CheckRange<double>;
      RETURN_IF_ERROR(check(std::string(field.name), *value, number->low, number->high));
      auto narrow = float(*value);
      // A number above an end that is excluded is above it in fp32, too.
      if (field.excludes_low && *value > double{number->low}) {
        narrow = std::max(narrow, std::nextafter(number->low, number->high));
      }
      (sampling->*number->set)(narrow);
    } else {
      const auto& integer = std::get<SamplingValue<int32_t>>(field.value);
      ASSIGN_OR_RETURN(const std::optional<int32_t> value, fields.Int32(field.name));
      if (!value || (*value == -1 && field.has_minus_one)) continue;
      if (*value < integer.low && field.has_minus_one) {
        return ValueError(std::string(field.name), *value,
                          StrCat("at least ", integer.low, ", or -1 for the default"));
      }
      (sampling->*integer.set)(*value);
    }
  }
  if (const Json* seed = fields.Find("seed"); seed != nullptr && seed->is_number_unsigned()) {
    sampling->set_seed(seed->get<uint64_t>());
  } else if (seed != nullptr) {
    ASSIGN_OR_RETURN(const int64_t value, ReadInt("seed", *seed));
    sampling->set_seed(uint64_t(value));
  }
  if (const Json* biases = fields.Find("logit_bias")) {
    RETURN_IF_ERROR(ReadLogitBias(*biases, sampling));
  }
  if (const Json* allowed = fields.Find("allowed_token_ids")) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("allowed_token_ids", *allowed));
    if (ids.empty()) return FieldError("allowed_token_ids", "is empty; leave it out");
    sampling->mutable_allowed_token_ids()->Assign(ids.begin(), ids.end());
  }
  if (const Json* banned = fields.Find("banned_token_ids")) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("banned_token_ids", *banned));
    sampling->mutable_banned_token_ids()->Assign(ids.begin(), ids.end());
  }
  if (const Json* words = fields.Find("bad_words")) {
    ASSIGN_OR_RETURN(const auto texts, ReadStrings("bad_words", *words));
    sampling->mutable_bad_words()->Assign(texts.begin(), texts.end());
  }
  return absl::OkStatus();
}

absl::Status ReadStop(const BodyFields& fields, v1::GenerateRequest* request) {
  const Json* stop = fields.Find("stop");
  if (stop != nullptr && stop->is_string()) {
    request->add_stop_strings(stop->get<std::string>());
  } else if (stop != nullptr && !stop->is_array()) {
    return FieldError("stop",
                      StrCat("is ", TypeName(*stop), "; it must be a string or a list of strings"));
  } else if (stop != nullptr) {
    for (size_t i = 0; i < stop->size(); ++i) {
      ASSIGN_OR_RETURN(std::string text, ReadString(StrCat("stop[", i, "]"), (*stop)[i]));
      request->add_stop_strings(std::move(text));
    }
  }
  if (const Json* ids = fields.Find("stop_token_ids")) {
    ASSIGN_OR_RETURN(const auto values, ReadIds("stop_token_ids", *ids));
    request->mutable_stop_token_ids()->Assign(values.begin(), values.end());
  }
  return absl::OkStatus();
}

// Gives each element of a list, as `read` reads it, to `append`. Only an error has a name.
template <typename Read, typename Append>
absl::Status ReadElements(const std::string& field, const Json& list, const Read& read,
                          const Append& append) {
  for (size_t i = 0; i < list.size(); ++i) {
    const auto element = read({}, list[i]);
    if (!element.ok()) return read(StrCat(field, "[", i, "]"), list[i]).status();
    append(*element);
  }
  return absl::OkStatus();
}

// A list of integers; unset: empty.
template <typename Integers>
absl::Status ReadIntegers(const BodyFields& fields, std::string_view name, Integers* list) {
  const Json* value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_array()) {
    return FieldError(name, StrCat("is ", TypeName(*value), "; it must be a list of integers"));
  }
  return ReadElements(std::string(name), *value, ReadInt32,
                      [list](int32_t entry) { list->Add(entry); });
}

// Appends a list of numbers; not there: nothing.
template <typename Numbers>
absl::Status ReadNumbers(const BodyFields& fields, std::string_view name, Numbers* list) {
  const Json* value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  const std::string field = fields.Name(name);
  if (!value->is_array()) {
    return FieldError(field, StrCat("is ", TypeName(*value), "; it must be a list of numbers"));
  }
  if (value->empty()) return FieldError(field, "is empty; leave it out");
  return ReadElements(field, *value, ReadNumber, [list](double number) { list->Add(number); });
}

// An unknown field could mean another function.
absl::Status CheckClosed(const Json& object, const std::string& field,
                         std::span<const std::string_view> names) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::count(names, name) > 0) continue;
    return FieldError(field, StrCat("has a field ", Quote(name), "; it may have ", StrJoin(names)));
  }
  return absl::OkStatus();
}

// The fields of v1::AttentionOverride and v1::AttentionPower.
template <typename Message>
absl::Status ReadPower(const BodyFields& fields, Message* message) {
  ASSIGN_OR_RETURN(const std::optional<double> p, fields.Number("p"));
  if (p) message->set_p(*p);
  RETURN_IF_ERROR(ReadNumbers(fields, "p_by_layer", message->mutable_p_by_layer()));
  return ReadNumbers(fields, "p_by_head", message->mutable_p_by_head());
}

// {"p": 5, "kind": "lssar", "p_by_length": [{"min_keys": 256, "p": 3}]}. The objects are closed.
absl::Status ReadAttentionOverride(const Json& object, v1::AttentionOverride* message) {
  const std::string field = "attention_override";
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(object, field));
  constexpr std::array<std::string_view, 6> kNames = {"p",          "kind",      "phi",
                                                      "p_by_layer", "p_by_head", "p_by_length"};
  RETURN_IF_ERROR(CheckClosed(object, field, kNames));
  RETURN_IF_ERROR(ReadPower(fields, message));
  if (const Json* steps = fields.Find("p_by_length")) {
    const std::string name = fields.Name("p_by_length");
    if (!steps->is_array()) {
      return FieldError(name, StrCat("is ", TypeName(*steps), "; it must be a list of objects"));
    }
    if (steps->empty()) return FieldError(name, "is empty; leave it out");
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string entry = StrCat(name, "[", i, "]");
      ASSIGN_OR_RETURN(const BodyFields step, BodyFields::Of((*steps)[i], entry));
      constexpr std::array<std::string_view, 4> kStepNames = {"min_keys", "p", "p_by_layer",
                                                              "p_by_head"};
      RETURN_IF_ERROR(CheckClosed((*steps)[i], entry, kStepNames));
      v1::AttentionPower& power = *message->add_p_by_length();
      ASSIGN_OR_RETURN(const std::optional<int32_t> min_keys, step.Int32("min_keys"));
      if (!min_keys) return FieldError(entry + ".min_keys", "is missing");
      power.set_min_keys(*min_keys);
      RETURN_IF_ERROR(ReadPower(step, &power));
    }
  }
  ASSIGN_OR_RETURN(std::optional<std::string> kind, fields.String("kind"));
  if (kind) message->set_kind(*std::move(kind));
  ASSIGN_OR_RETURN(std::optional<std::string> phi, fields.String("phi"));
  if (phi) message->set_phi(*std::move(phi));
  return absl::OkStatus();
}

// [{"layer": 3, "vector": [...], "scale": 1.5, "first_position": 10}]. The objects are closed.
template <typename Vectors>
absl::Status ReadSteering(const Json& list, Vectors* vectors) {
  if (!list.is_array()) {
    return FieldError("steering", StrCat("is ", TypeName(list), "; it must be a list of objects"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = StrCat("steering[", i, "]");
    ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(list[i], field));
    constexpr std::array<std::string_view, 4> kNames = {"layer", "vector", "scale",
                                                        "first_position"};
    RETURN_IF_ERROR(CheckClosed(list[i], field, kNames));
    v1::Steering& message = *vectors->Add();
    ASSIGN_OR_RETURN(const std::optional<int32_t> layer, fields.Int32("layer"));
    if (!layer) return FieldError(field + ".layer", "is missing");
    message.set_layer(*layer);
    ASSIGN_OR_RETURN(const std::optional<int32_t> first, fields.Int32("first_position"));
    message.set_first_position(first.value_or(0));
    ASSIGN_OR_RETURN(const std::optional<double> scale, fields.Number("scale"));
    if (scale) message.set_scale(float(*scale));
    const Json* vector = fields.Find("vector");
    if (vector == nullptr || !vector->is_array()) {
      return FieldError(field + ".vector", vector == nullptr ? "is missing; it must be a list"
                                                             : "must be a list of numbers");
    }
    RETURN_IF_ERROR(ReadElements(field + ".vector", *vector, ReadNumber,
                                 [&message](double number) { message.add_vector(float(number)); }));
  }
  return absl::OkStatus();
}

// Fields of how a request is scheduled, and of what must answer it. `Message`:
// GenerateRequest, ScoreRequest, EmbedRequest or CaptureAttentionRequest.
template <typename Message>
absl::Status ReadSchedulingFields(const BodyFields& fields, Message* message) {
  if (const Json* change = fields.Find("attention_override")) {
    RETURN_IF_ERROR(ReadAttentionOverride(*change, message->mutable_attention_override()));
  }
  if (const Json* steering = fields.Find("steering")) {
    RETURN_IF_ERROR(ReadSteering(*steering, message->mutable_steering()));
  }
  ASSIGN_OR_RETURN(std::optional<std::string> hash, fields.String("checkpoint_hash"));
  if (hash) message->set_checkpoint_hash(*std::move(hash));
  ASSIGN_OR_RETURN(const std::optional<int64_t> priority, fields.Int("priority"));
  if (priority) {
    RETURN_IF_ERROR(
        CheckRange<int64_t>("priority", *priority, -limits::kMaxPriority, limits::kMaxPriority));
    // vLLM: the lowest value runs first. In lssar.v1 the highest does.
    message->set_priority(-int32_t(*priority));
  }
  ASSIGN_OR_RETURN(std::optional<std::string> salt, fields.String("cache_salt"));
  if (salt) message->set_cache_salt(*std::move(salt));
  ASSIGN_OR_RETURN(const std::optional<bool> cache, fields.Bool("use_prefix_cache"));
  if (cache) message->set_use_prefix_cache(*cache);
  return absl::OkStatus();
}

absl::Status ReadStream(const BodyFields& fields, CompletionRequest* request) {
  ASSIGN_OR_RETURN(const std::optional<bool> stream, fields.Bool("stream"));
  request->stream = stream.value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!request->stream) {
    return FieldError("stream_options", "is set; it may be set only where stream is true");
  }
  ASSIGN_OR_RETURN(const BodyFields option_fields, BodyFields::Of(*options, "stream_options"));
  RETURN_IF_ERROR(CheckFields(kStreamOptions, option_fields));
  ASSIGN_OR_RETURN(const std::optional<bool> usage, option_fields.Bool("include_usage"));
  ASSIGN_OR_RETURN(const std::optional<bool> continuous,
                   option_fields.Bool("continuous_usage_stats"));
  request->include_usage = usage.value_or(false);
  request->continuous_usage = request->include_usage && continuous.value_or(false);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGenerateFields(const BodyFields& fields, CompletionRequest* request,
                                v1::GenerateRequest* shared) {
  RETURN_IF_ERROR(CheckBestOf(fields));
  RETURN_IF_ERROR(ReadStream(fields, request));
  RETURN_IF_ERROR(ReadSampling(fields, shared->mutable_sampling()));
  RETURN_IF_ERROR(ReadStop(fields, shared));
  ASSIGN_OR_RETURN(request->constraint, ReadConstraint(fields, shared));
  RETURN_IF_ERROR(ReadSchedulingFields(fields, shared));
  ASSIGN_OR_RETURN(const std::optional<int32_t> n, fields.Int32("n"));
  if (n) shared->set_n(*n);
  ASSIGN_OR_RETURN(const std::optional<int32_t> min_tokens, fields.Int32("min_tokens"));
  if (min_tokens) shared->set_min_tokens(*min_tokens);
  ASSIGN_OR_RETURN(const std::optional<bool> ignore_eos, fields.Bool("ignore_eos"));
  if (ignore_eos) shared->set_ignore_eos(*ignore_eos);
  ASSIGN_OR_RETURN(const std::optional<bool> with_stop, fields.Bool("include_stop_str_in_output"));
  if (with_stop) shared->set_include_stop_str_in_output(*with_stop);
  ASSIGN_OR_RETURN(const std::optional<bool> skip_special, fields.Bool("skip_special_tokens"));
  if (skip_special) shared->set_skip_special_tokens(*skip_special);
  ASSIGN_OR_RETURN(const std::optional<int32_t> draft, fields.Int32("speculative_tokens"));
  if (draft) shared->set_speculative_tokens(*draft);
  ASSIGN_OR_RETURN(const std::optional<int32_t> interval, fields.Int32("stream_interval"));
  if (interval) shared->set_stream_interval(*interval);
  ASSIGN_OR_RETURN(const std::optional<int32_t> logprobs, fields.Int32("prompt_logprobs"));
  if (logprobs) {
    if (request->stream) {
      return FieldError("prompt_logprobs", "is set; it is not available where stream is true");
    }
    request->num_prompt_logprobs = *logprobs;
    shared->set_prompt_logprobs(request->num_prompt_logprobs);
  }
  ASSIGN_OR_RETURN(const std::optional<bool> as_ids, fields.Bool("return_tokens_as_token_ids"));
  request->tokens_as_ids = as_ids.value_or(false);
  return absl::OkStatus();
}

namespace {

// `shared` with a prompt.
absl::StatusOr<v1::GenerateRequest> WithText(const v1::GenerateRequest& shared,
                                             const std::string& field, std::string text,
                                             bool add_special_tokens, const ParseContext& context) {
  v1::GenerateRequest request = shared;
  if (add_special_tokens) {
    request.set_text(std::move(text));
    return request;
  }
  if (text.empty()) return FieldError(field, "is empty; it must have at least one character");
  ASSIGN_OR_RETURN(const auto ids, EncodeField(field, text, context, {}));
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

v1::GenerateRequest WithIds(const v1::GenerateRequest& shared, const std::vector<int32_t>& ids) {
  v1::GenerateRequest request = shared;
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

absl::Status ReadPrompts(const BodyFields& fields, const v1::GenerateRequest& shared,
                         const ParseContext& context, CompletionRequest* request) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return FieldError("prompt", "is missing");
  ASSIGN_OR_RETURN(const std::optional<bool> special, fields.Bool("add_special_tokens"));
  const bool add_special_tokens = special.value_or(true);
  const auto add_text = [&](const std::string& field, const Json& text) -> absl::Status {
    ASSIGN_OR_RETURN(v1::GenerateRequest one,
                     WithText(shared, field, text.get<std::string>(), add_special_tokens, context));
    request->prompts.push_back(std::move(one));
    return absl::OkStatus();
  };
  if (prompt->is_string()) return add_text("prompt", *prompt);
  if (!prompt->is_array()) {
    return FieldError("prompt", StrCat("is ", TypeName(*prompt),
                                       "; it must be a string, a list of strings, a list of token "
                                       "ids or a list of lists of token ids"));
  }
  if (prompt->empty()) return FieldError("prompt", "is an empty list; it must have an entry");
  if (prompt->front().is_number()) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("prompt", *prompt));
    request->prompts.push_back(WithIds(shared, ids));
    return absl::OkStatus();
  }
  if (prompt->size() > kMaxPrompts) {
    return FieldError("prompt",
                      StrCat("has ", prompt->size(), " entries; it may have ", kMaxPrompts));
  }
  // Each prompt becomes a request with its own copy of the other fields.
  const size_t num_bytes = shared.ByteSizeLong() * prompt->size();
  if (num_bytes > limits::kMaxMessageBytes) {
    return FieldError("prompt", StrCat("has ", prompt->size(), " entries, and the other fields ",
                                       shared.ByteSizeLong(), " bytes for each; they may have ",
                                       limits::kMaxMessageBytes, " together"));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const std::string field = StrCat("prompt[", i, "]");
    const Json& one = (*prompt)[i];
    if (one.is_string() && prompt->front().is_string()) {
      RETURN_IF_ERROR(add_text(field, one));
    } else if (one.is_array() && prompt->front().is_array()) {
      ASSIGN_OR_RETURN(const auto ids, ReadIds(field, one));
      request->prompts.push_back(WithIds(shared, ids));
    } else {
      return FieldError(field,
                        StrCat("is ", TypeName(one), "; all entries of prompt must be ",
                               prompt->front().is_array() ? "lists of token ids" : "strings"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::TextOrTokens> ReadTextOrTokens(const std::string& field, const Json& value) {
  v1::TextOrTokens text;
  if (value.is_string()) {
    text.set_text(value.get<std::string>());
  } else if (value.is_array()) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds(field, value));
    text.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  } else {
    return FieldError(
        field, StrCat("is ", TypeName(value), "; it must be a string or a list of token ids"));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadContent(const std::string& field, const Json& content,
                                        std::span<const std::string_view> types) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(
        field, StrCat("is ", TypeName(content), "; it must be a string or a list of text parts"));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    ASSIGN_OR_RETURN(const BodyFields part, BodyFields::Of(content[i], StrCat(field, "[", i, "]")));
    ASSIGN_OR_RETURN(const std::optional<std::string> type, part.String("type"));
    ASSIGN_OR_RETURN(std::optional<std::string> part_text, part.String("text"));
    if (!type || std::ranges::count(types, *type) == 0 || !part_text) {
      return FieldError(StrCat(field, "[", i, "]"),
                        "is no text part; this server's models read text alone");
    }
    RETURN_IF_ERROR(CheckFields(kContentPart, part));
    text += *part_text;
  }
  return text;
}

absl::StatusOr<std::string> ReadModelName(const Json& body, std::span<const std::string> names) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  ASSIGN_OR_RETURN(std::optional<std::string> model, fields.String("model"));
  if (!model) return names.front();
  if (std::ranges::count(names, *model) == 0) return ModelNotFound(*model, names);
  return *std::move(model);
}

absl::StatusOr<CompletionRequest> ReadCompletion(const Json& body, const ParseContext& context) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kCompletionBody, fields));
  CompletionRequest request;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &request, &shared));

  ASSIGN_OR_RETURN(const std::optional<bool> echo, fields.Bool("echo"));
  request.echo = echo.value_or(false);
  shared.set_echo(request.echo);
  ASSIGN_OR_RETURN(const std::optional<int32_t> logprobs, fields.Int32("logprobs"));
  if (logprobs) {
    request.num_logprobs = *logprobs;
    shared.set_logprobs(request.num_logprobs);
    if (request.echo) {
      shared.set_prompt_logprobs(std::max(request.num_logprobs, request.num_prompt_logprobs));
    }
  }
  ASSIGN_OR_RETURN(std::optional<int32_t> max_tokens, fields.Int32("max_tokens"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> newer_name, fields.Int32("max_completion_tokens"));
  RETURN_IF_ERROR(CheckSameTokens(max_tokens, newer_name));
  if (!max_tokens) max_tokens = newer_name;
  if (newer_name) request.max_tokens_field = "max_completion_tokens";
  if (max_tokens && *max_tokens < 0) {
    return FieldError(request.max_tokens_field,
                      StrCat("is ", *max_tokens, "; it must not be negative"));
  }
  request.max_tokens = max_tokens.value_or(kDefaultCompletionTokens);
  if (request.max_tokens == 0 && shared.min_tokens() != 0) {
    return ValueError("min_tokens", shared.min_tokens(),
                      StrCat("0 where ", request.max_tokens_field, " is 0"));
  }
  // Nothing is sampled where it is 0, but all fields are checked.
  if (max_tokens) shared.set_max_tokens(std::max(1, request.max_tokens));
  const Json* prompt = fields.Find("prompt");
  const bool is_list =
      prompt != nullptr && prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  RETURN_IF_ERROR(CheckConstraintBytes(request.constraint, shared, is_list ? prompt->size() : 1));
  RETURN_IF_ERROR(ReadPrompts(fields, shared, context, &request));
  return request;
}

void AddBosForLmEval(const ParseContext& context, CompletionRequest* request) {
  const Checkpoint& checkpoint = *context.checkpoint;
  const std::optional<int32_t> bos = checkpoint.config.bos_id;
  const std::optional<int32_t> prefix = bos ? bos : checkpoint.config.eos_id;
  if (request->echo && request->num_logprobs >= 0 && request->max_tokens == 1) {
    request->max_tokens = 0;
  }
  for (v1::GenerateRequest& prompt : request->prompts) {
    request->has_added_bos.push_back(false);
    if (!prompt.has_tokens()) continue;
    auto& ids = *prompt.mutable_tokens()->mutable_ids();
    if (ids.empty()) {
      if (prefix) ids.Add(*prefix);
      continue;
    }
    const int64_t length = int64_t{ids.size()} + 1 + request->max_tokens;
    if (!checkpoint.add_bos || !bos || ids.Get(0) == *bos || length > context.max_model_len) {
      continue;
    }
    ids.Add(*bos);
    std::rotate(ids.begin(), ids.end() - 1, ids.end());
    request->has_added_bos.back() = true;
  }
}

absl::StatusOr<CompletionRequest> ReadChatCompletion(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kChatBody, fields));
  CompletionRequest request;
  v1::GenerateRequest shared;
  RETURN_IF_ERROR(ReadGenerateFields(fields, &request, &shared));

  ASSIGN_OR_RETURN(const std::optional<bool> logprobs, fields.Bool("logprobs"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> top, fields.Int32("top_logprobs"));
  if (top && !logprobs.value_or(false)) {
    return FieldError("top_logprobs", "is set; it may be set only where logprobs is true");
  }
  if (logprobs.value_or(false)) {
    request.num_logprobs = top.value_or(0);
    shared.set_logprobs(request.num_logprobs);
  }

  ASSIGN_OR_RETURN(const std::optional<int32_t> max_tokens, fields.Int32("max_tokens"));
  ASSIGN_OR_RETURN(const std::optional<int32_t> newer_name, fields.Int32("max_completion_tokens"));
  RETURN_IF_ERROR(CheckSameTokens(max_tokens, newer_name));
  RETURN_IF_ERROR(newer_name ? SetChatTokens("max_completion_tokens", newer_name, &request, &shared)
                             : SetChatTokens("max_tokens", max_tokens, &request, &shared));

  const Json* messages = fields.Find("messages");
  if (messages == nullptr) return FieldError("messages", "is missing");
  ASSIGN_OR_RETURN(*shared.mutable_chat(), ReadChatMessages(*messages));
  RETURN_IF_ERROR(ReadChatEnd(fields, shared.mutable_chat()));
  request.prompts.push_back(std::move(shared));
  return request;
}

absl::Status SetChatTokens(const std::string& field, std::optional<int32_t> max_tokens,
                           CompletionRequest* request, v1::GenerateRequest* shared) {
  request->is_chat = true;
  request->max_tokens = std::numeric_limits<int>::max();
  request->max_tokens_field = field;
  if (!max_tokens) return absl::OkStatus();
  if (*max_tokens < 1) {
    return FieldError(field, StrCat("is ", *max_tokens, "; it must be at least 1"));
  }
  request->max_tokens = *max_tokens;
  shared->set_max_tokens(request->max_tokens);
  return absl::OkStatus();
}

absl::Status ReadChatEnd(const BodyFields& fields, v1::Chat* chat) {
  ASSIGN_OR_RETURN(const std::optional<bool> prompt, fields.Bool("add_generation_prompt"));
  if (prompt) chat->set_add_generation_prompt(*prompt);
  ASSIGN_OR_RETURN(const std::optional<bool> continues, fields.Bool("continue_final_message"));
  if (continues) chat->set_continue_final_message(*continues);
  return absl::OkStatus();
}

absl::StatusOr<v1::Chat> ReadChatMessages(const Json& messages) {
  if (!messages.is_array()) {
    return FieldError("messages", StrCat("is ", TypeName(messages), "; it must be a list"));
  }
  v1::Chat chat;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string field = StrCat("messages[", i, "]");
    ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(messages[i], field));
    ASSIGN_OR_RETURN(std::optional<std::string> role, fields.String("role"));
    if (!role) return FieldError(field + ".role", "is missing");
    RETURN_IF_ERROR(CheckFields(kMessage, fields));
    if (*role == "developer") role = "system";  // OpenAI's newer name for it
    const Json* content = fields.Find("content");
    if (content == nullptr) return FieldError(field + ".content", "is missing");
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role(*std::move(role));
    ASSIGN_OR_RETURN(*message.mutable_content(),
                     ReadContent(field + ".content", *content, kTextParts));
  }
  return chat;
}

absl::StatusOr<v1::ScoreRequest> ReadScore(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kScoreBody, fields));
  v1::ScoreRequest request;
  RETURN_IF_ERROR(ReadSchedulingFields(fields, &request));
  ASSIGN_OR_RETURN(const std::optional<int64_t> logprobs, fields.Int("logprobs"));
  if (logprobs && (*logprobs < 0 || *logprobs > limits::kMaxLogprobs)) {
    return FieldError("logprobs",
                      StrCat("is ", *logprobs, "; it must be in [0, ", limits::kMaxLogprobs, "]"));
  }
  if (logprobs) {
    request.set_per_token(true);
    request.set_top_logprobs(int32_t(*logprobs));
  }
  RETURN_IF_ERROR(ReadIntegers(fields, "logprob_token_ids", request.mutable_logprob_token_ids()));
  const Json* items = fields.Find("items");
  if (items == nullptr) return FieldError("items", "is missing");
  if (!items->is_array()) {
    return FieldError("items", StrCat("is ", TypeName(*items), "; it must be a list"));
  }
  for (size_t i = 0; i < items->size(); ++i) {
    const std::string field = StrCat("items[", i, "]");
    ASSIGN_OR_RETURN(const BodyFields item_fields, BodyFields::Of((*items)[i], field));
    RETURN_IF_ERROR(CheckFields(kScoreItem, item_fields));
    v1::ScoreItem& item = *request.add_items();
    if (const Json* context = item_fields.Find("context")) {
      ASSIGN_OR_RETURN(*item.mutable_context(), ReadTextOrTokens(field + ".context", *context));
    }
    const Json* continuations = item_fields.Find("continuations");
    if (continuations == nullptr) return FieldError(field + ".continuations", "is missing");
    if (!continuations->is_array()) {
      return FieldError(field + ".continuations",
                        StrCat("is ", TypeName(*continuations),
                               "; it must be a list of strings or of lists of token ids"));
    }
    for (size_t k = 0; k < continuations->size(); ++k) {
      ASSIGN_OR_RETURN(
          *item.add_continuations(),
          ReadTextOrTokens(StrCat(field, ".continuations[", k, "]"), (*continuations)[k]));
    }
  }
  return request;
}

absl::StatusOr<EmbeddingRequest> ReadEmbedding(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kEmbeddingBody, fields));
  EmbeddingRequest request;
  RETURN_IF_ERROR(ReadSchedulingFields(fields, &request.message));
  ASSIGN_OR_RETURN(const std::optional<std::string> format, fields.String("encoding_format"));
  if (format && *format != "float" && *format != "base64") {
    return FieldError("encoding_format",
                      StrCat("is ", Quote(*format), "; it must be \"float\" or \"base64\""));
  }
  request.is_base64 = format == "base64";
  ASSIGN_OR_RETURN(const std::optional<std::string> pooling, fields.String("pooling"));
  if (!pooling || *pooling == "last") {
    request.message.set_pooling(v1::POOLING_LAST);
  } else if (*pooling == "mean") {
    request.message.set_pooling(v1::POOLING_MEAN);
  } else if (*pooling == "token") {
    request.message.set_pooling(v1::POOLING_TOKEN);
  } else {
    return FieldError(
        "pooling", StrCat("is ", Quote(*pooling), "; it must be \"last\", \"mean\" or \"token\""));
  }
  ASSIGN_OR_RETURN(const std::optional<bool> normalize, fields.Bool("normalize"));
  request.message.set_normalize(normalize.value_or(false));
  ASSIGN_OR_RETURN(const std::optional<bool> apply_head, fields.Bool("apply_head"));
  request.message.set_apply_head(apply_head.value_or(false));
  RETURN_IF_ERROR(ReadIntegers(fields, "layers", request.message.mutable_layers()));
  RETURN_IF_ERROR(ReadIntegers(fields, "positions", request.message.mutable_positions()));
  if (request.message.pooling() == v1::POOLING_LAST && !request.message.positions().empty()) {
    return FieldError("positions", "is set; it may be set where pooling is \"mean\" or \"token\"");
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> dtype, fields.String("embed_dtype"));
  if (dtype && *dtype != "float32" && *dtype != "float16") {
    return FieldError("embed_dtype",
                      StrCat("is ", Quote(*dtype), "; it must be \"float32\" or \"float16\""));
  }
  if (dtype == "float16") request.message.set_dtype("fp16");
  const Json* input = fields.Find("input");
  if (input == nullptr) return FieldError("input", "is missing");
  request.is_list = input->is_array() && !input->empty() && !input->front().is_number();
  if (!request.is_list) {
    ASSIGN_OR_RETURN(*request.message.add_inputs(), ReadTextOrTokens("input", *input));
    return request;
  }
  for (size_t i = 0; i < input->size(); ++i) {
    ASSIGN_OR_RETURN(*request.message.add_inputs(),
                     ReadTextOrTokens(StrCat("input[", i, "]"), (*input)[i]));
  }
  return request;
}

absl::StatusOr<AttentionRequest> ReadAttention(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kAttentionBody, fields));
  AttentionRequest request;
  v1::CaptureAttentionRequest& message = request.message;
  RETURN_IF_ERROR(ReadSchedulingFields(fields, &message));
  const Json* prompt = fields.Find("prompt");
  const Json* messages = fields.Find("messages");
  if ((prompt == nullptr) == (messages == nullptr)) {
    return FieldError("prompt", prompt == nullptr ? "is missing; send prompt or messages"
                                                  : "and messages are both there; send one");
  }
  if (messages != nullptr) {
    ASSIGN_OR_RETURN(*message.mutable_chat(), ReadChatMessages(*messages));
  } else {
    ASSIGN_OR_RETURN(v1::TextOrTokens text, ReadTextOrTokens("prompt", *prompt));
    if (text.has_text()) {
      message.set_text(std::move(*text.mutable_text()));
    } else {
      *message.mutable_tokens() = std::move(*text.mutable_tokens());
    }
  }
  RETURN_IF_ERROR(ReadIntegers(fields, "layers", message.mutable_layers()));
  RETURN_IF_ERROR(ReadIntegers(fields, "heads", message.mutable_heads()));
  RETURN_IF_ERROR(ReadIntegers(fields, "rows", message.mutable_rows()));
  ASSIGN_OR_RETURN(const std::optional<int32_t> top_k, fields.Int32("top_k"));
  if (top_k) message.set_top_k(*top_k);
  ASSIGN_OR_RETURN(const std::optional<bool> statistics, fields.Bool("statistics"));
  if (statistics) message.set_statistics(*statistics);
  ASSIGN_OR_RETURN(const std::optional<bool> stream, fields.Bool("stream"));
  request.stream = stream.value_or(false);
  return request;
}

FieldNames PromptNames(const std::string& field) {
  return {{"chat.add_generation_prompt", "add_generation_prompt"},
          {"chat.messages", field},
          {"chat", field},
          {"prompt", field},
          {"tokens.ids", field},
          {"text", field}};
}

FieldNames GenerateNames(const CompletionRequest& request, const std::string& prompt_field) {
  FieldNames names = PromptNames(prompt_field);
  names.push_back({"stop_strings", "stop"});
  names.push_back({"max_tokens", request.max_tokens_field});
  if (request.is_chat) names.push_back({"logprobs", "top_logprobs"});
  for (const char* const v1 : {"json_object", "json_schema", "regex", "grammar", "choice"}) {
    names.push_back({v1, request.constraint.name});
  }
  return names;
}

absl::Status WithHttpNames(const absl::Status& status, const FieldNames& names) {
  const FieldProblem field = FieldProblemOf(status);
  if (field.path.empty()) return status;
  std::string path = field.path;
  constexpr std::string_view kSampling = "sampling.", kIds = ".tokens.ids", kText = ".text";
  if (path.starts_with(kSampling)) path.erase(0, kSampling.size());
  for (const auto& [v1, http] : names) {
    if (!path.starts_with(v1)) continue;
    const std::string rest = path.substr(v1.size());
    if (!rest.empty() && rest[0] != '.' && rest[0] != '[') continue;  // a longer name
    path = http + rest;
    break;
  }
  if (const size_t ids = path.find(kIds); ids != std::string::npos) path.erase(ids, kIds.size());
  if (path.ends_with(kText)) path.resize(path.size() - kText.size());
  return WithFieldPath(status, path);
}

}  // namespace lssar

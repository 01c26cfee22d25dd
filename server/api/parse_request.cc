#include "server/api/parse_request.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/field_error.h"
#include "base/quote.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/two_planes.h"
#include "models/attention_override.h"
#include "runtime/ending_ids.h"
#include "runtime/limits.h"
#include "runtime/token_masks.h"
#include "server/api/fields.h"
#include "server/api/grammar_cache.h"
#include "server/api/sampling_fields.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

// What templates trim.
constexpr std::string_view kSpace = " \t\n\v\f\r";
// Messages of a chat. Each takes microseconds of its template, which cannot be stopped.
constexpr size_t kMaxChatMessages = size_t{1} << 16;
// Bytes of a chat template's own error, which may repeat what a message says.
constexpr size_t kMaxTemplateErrorBytes = 200;

// Requires  the checkpoint has a tokenizer
size_t MaxTextBytes(const ParseContext& context) {
  if (context.max_text_bytes > 0) return context.max_text_bytes;
  return size_t(context.max_model_len) * size_t(context.checkpoint->tokenizer->MaxPieceBytes());
}

// Without a tokenizer any text is refused later.
absl::Status CheckTextBytes(const std::string& field, size_t num_bytes,
                            const ParseContext& context) {
  if (context.checkpoint->tokenizer == nullptr) return absl::OkStatus();
  const size_t most = MaxTextBytes(context);
  if (num_bytes <= most) return absl::OkStatus();
  const std::string reason =
      context.max_text_bytes > 0
          ? std::string()
          : StrCat(": max_model_len ", context.max_model_len, " tokens of at most ",
                   context.checkpoint->tokenizer->MaxPieceBytes(), " bytes");
  return FieldError(field,
                    StrCat("has ", num_bytes, " bytes; it must have at most ", most, reason));
}

// Prompts: text, token ids or a chat.

struct Prompt {
  std::vector<int32_t> ids;               // >= 1
  std::string text;                       // empty if the prompt came as ids
  std::vector<std::string> stop_strings;  // those of the chat template
};

// The ids that precede a text: BOS or nothing.
std::vector<int32_t> BosOf(const Checkpoint& checkpoint) {
  if (!checkpoint.add_bos || !checkpoint.config.bos_id) return {};
  return {*checkpoint.config.bos_id};
}

absl::StatusOr<Prompt> ReadText(const std::string& text, const ParseContext& context) {
  if (text.empty()) {
    return FieldError("text", "is empty; it must have at least one character");
  }
  ASSIGN_OR_RETURN(auto ids, EncodeField("text", text, context, BosOf(*context.checkpoint)));
  return Prompt{.ids = std::move(ids), .text = text, .stop_strings = {}};
}

absl::StatusOr<Prompt> ReadTokens(const v1::TokenIds& tokens, const Checkpoint& checkpoint) {
  if (tokens.ids().empty()) {
    return FieldError("tokens.ids", "is empty; it must have at least one id");
  }
  ASSIGN_OR_RETURN(auto ids, CheckIds("tokens.ids", tokens.ids(), checkpoint.config.vocab_size));
  return Prompt{.ids = std::move(ids), .text = {}, .stop_strings = {}};
}

// What the template writes: `text` up to the end of the last message's content, which a template
// may trim. `render`: messages -> StatusOr of their text.
template <typename Render>
absl::Status CutBehindLastMessage(std::vector<ChatMessage> messages, const Render& render,
                                  std::string* text) {
  // Stands behind the content in a second text. No template writes it.
  constexpr std::string_view kEndMark = "lssar:end-of-content";
  const std::string content = messages.back().content;
  const size_t first = std::min(content.find_first_not_of(kSpace), content.size());
  const size_t last = content.find_last_not_of(kSpace);  // npos: there is no text
  const std::string_view trimmed = std::string_view(content).substr(first, last + 1 - first);
  if (trimmed.empty()) {
    return FieldError("chat.messages",
                      "ends with a message without text; continue_final_message needs some");
  }
  messages.back().content = StrCat(content.substr(0, last + 1), kEndMark);
  ASSIGN_OR_RETURN(const std::string marked, render(messages));
  size_t end = marked.rfind(kEndMark);
  const std::string_view front = std::string_view(marked).substr(0, end);
  if (end == std::string::npos || !front.ends_with(trimmed) || !text->starts_with(front)) {
    return FieldError("chat.messages",
                      "ends with a message whose content the chat template changes, so that it "
                      "cannot be continued (continue_final_message)");
  }
  // White space at the content's end is kept where the template has kept it.
  const std::string_view tail = std::string_view(content).substr(last + 1);
  if (std::string_view(*text).substr(end).starts_with(tail)) end += tail.size();
  text->resize(end);
  return absl::OkStatus();
}

absl::StatusOr<Prompt> ReadChat(const v1::Chat& chat, const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  if (!checkpoint.chat_template) {
    return UnmetField("chat", StrCat("is set, and checkpoint ", checkpoint.name,
                                     " has no chat template; send text"));
  }
  if (chat.messages().empty()) {
    return FieldError("chat.messages", "is empty; it must have at least one message");
  }
  RETURN_IF_ERROR(CheckCount("chat.messages", size_t(chat.messages_size()), 1, kMaxChatMessages));
  // The template repeats every content, as far as is known.
  size_t num_bytes = 0;
  for (const v1::ChatMessage& message : chat.messages()) num_bytes += message.content().size();
  RETURN_IF_ERROR(CheckTextBytes("chat.messages", num_bytes, context));
  std::vector<ChatMessage> messages;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const auto& [role, content] = std::tie(chat.messages(i).role(), chat.messages(i).content());
    const std::string field = StrCat("chat.messages[", i, "]");
    RETURN_IF_ERROR(CheckText(field + ".role", role));
    if (role != "user" && role != "assistant" && role != "system") {
      return ValueError(field + ".role", Quote(role), "\"user\", \"assistant\" or \"system\"");
    }
    RETURN_IF_ERROR(CheckText(field + ".content", content));
    messages.push_back({.role = role, .content = content});
  }
  if (chat.continue_final_message() && chat.add_generation_prompt()) {
    return FieldError("chat.add_generation_prompt",
                      "is true; it must be false where continue_final_message is true");
  }
  const bool adds_prompt = chat.has_add_generation_prompt() ? chat.add_generation_prompt()
                                                            : !chat.continue_final_message();
  const auto render = [&](const std::vector<ChatMessage>& rendered) -> absl::StatusOr<std::string> {
    auto text = checkpoint.chat_template->Render(rendered, adds_prompt, checkpoint.bos_token,
                                                 checkpoint.eos_token);
    if (text.ok()) return text;
    const std::string_view reason(text.status().message().data(), text.status().message().size());
    return RefusedField("chat", Shorten(reason, kMaxTemplateErrorBytes));
  };
  ASSIGN_OR_RETURN(std::string text, render(messages));
  if (chat.continue_final_message()) {
    RETURN_IF_ERROR(CutBehindLastMessage(std::move(messages), render, &text));
  }
  ASSIGN_OR_RETURN(auto ids, EncodeField("chat", text, context, {}));
  // A template may write BOS itself, and a role table says all that is written.
  const std::vector<int32_t> bos = context.add_bos ? BosOf(checkpoint) : std::vector<int32_t>();
  const bool needs_bos = !bos.empty() && !checkpoint.chat_template->IsRoleTable() &&
                         (ids.empty() || ids.front() != bos.front());
  if (needs_bos) ids.insert(ids.begin(), bos.begin(), bos.end());
  return Prompt{
      .ids = std::move(ids), .text = std::move(text), .stop_strings = checkpoint.chat_stop_strings};
}

// `Message`: v1::GenerateRequest or v1::CaptureAttentionRequest.
template <typename Message>
absl::StatusOr<Prompt> ReadPrompt(const Message& message, const ParseContext& context) {
  if (message.has_text()) return ReadText(message.text(), context);
  if (message.has_tokens()) return ReadTokens(message.tokens(), *context.checkpoint);
  if (message.has_chat()) return ReadChat(message.chat(), context);
  return FieldError("prompt", "is not set; it must be one of text, tokens, chat");
}

// Fields that Generate, Score and CaptureAttention have in common.

// `Message`: v1::AttentionOverride or v1::AttentionPower.
template <typename Message>
PowerChange ReadPower(const Message& message) {
  PowerChange power{.by_layer = {message.p_by_layer().begin(), message.p_by_layer().end()},
                    .by_head = {message.p_by_head().begin(), message.p_by_head().end()}};
  if (message.has_p()) power.p = message.p();
  return power;
}

absl::Status ReadAttentionOverride(const v1::AttentionOverride& message,
                                   const ParseContext& context, Request* request) {
  if (!context.allow_attention_override) {
    return UnmetField("attention_override",
                      "is set, and this server does not allow it "
                      "(lssar-server --allow-attention-override)");
  }
  const ModelConfig& config = context.checkpoint->config;
  PowerChange power = ReadPower(message);
  AttentionChange change{.p = power.p,
                         .kind = message.kind(),
                         .phi = message.phi(),
                         .p_by_layer = std::move(power.by_layer),
                         .p_by_head = std::move(power.by_head)};
  for (const v1::AttentionPower& step : message.p_by_length()) {
    change.p_by_length.push_back({.min_keys = step.min_keys(), .power = ReadPower(step)});
  }
  ASSIGN_OR_RETURN(std::vector<AttentionSpec> layers, ChangeAttention(config, change));
  if (IsSameAttention(layers, config.attention)) return absl::OkStatus();
  for (const AttentionSpec& spec : layers) {
    const absl::Status status = CheckKvType(spec, context.kv_cache_dtype);
    if (status.ok()) continue;
    return absl::Status(status.code(), StrCat("attention_override: ", status.message(),
                                              " (lssar-server --kv-cache-dtype)"));
  }
  if (context.backend != nullptr) {
    const auto has_steps = [](const AttentionSpec& spec) { return !spec.steps.empty(); };
    std::vector<Feature> needed = {Feature::kAttentionOverride};
    if (std::ranges::any_of(layers, has_steps)) needed.push_back(Feature::kPowerSteps);
    RETURN_IF_ERROR(CheckFeatures(*context.backend, needed));
    for (const AttentionSpec& spec : layers) {
      const absl::Status status = context.backend->CheckAttention(spec);
      if (status.ok()) continue;
      return absl::Status(status.code(), StrCat("attention_override: ", status.message()));
    }
  }
  std::string name = DescribeAttention(layers);
  request->attention = AttentionOverride{.layers = std::move(layers), .name = std::move(name)};
  return absl::OkStatus();
}

// A client that pinned a checkpoint must not get the results of another one.
absl::Status CheckCheckpoint(std::string_view hash, const Checkpoint& checkpoint) {
  if (hash.empty() || hash == checkpoint.hash) return absl::OkStatus();
  return UnmetField("checkpoint_hash", StrCat("is ", Quote(hash), "; this server serves ",
                                              checkpoint.name, ", ", Quote(checkpoint.hash)));
}

// After the request's attention.
absl::Status ReadSteering(const google::protobuf::RepeatedPtrField<v1::Steering>& messages,
                          const ParseContext& context, Request* request) {
  if (messages.empty()) return absl::OkStatus();
  if (!context.allow_steering) {
    return UnmetField("steering",
                      "is set, and this server does not allow it (lssar-server --allow-steering)");
  }
  RETURN_IF_ERROR(CheckCount("steering", size_t(messages.size()), 0, limits::kMaxSteeringVectors));
  const ModelConfig& config = context.checkpoint->config;
  auto steering = std::make_shared<Steering>();
  Sha256 hash_of_all;
  for (int i = 0; i < messages.size(); ++i) {
    const v1::Steering& message = messages[i];
    const std::string field = StrCat("steering[", i, "]");
    RETURN_IF_ERROR(CheckRange(field + ".layer", message.layer(), 0, config.num_hidden_layers));
    RETURN_IF_ERROR(CheckRange(field + ".first_position", message.first_position(), 0,
                               limits::kMaxModelLen.max));
    if (message.vector_size() != config.hidden_size) {
      return FieldError(field + ".vector",
                        StrCat("has ", message.vector_size(),
                               " numbers; it must have hidden_size = ", config.hidden_size));
    }
    const float scale = message.has_scale() ? message.scale() : 1.0f;
    RETURN_IF_ERROR(
        CheckRange(field + ".scale", scale, -limits::kMaxSteering, limits::kMaxSteering));
    SteeringVector vector = {.layer = message.layer(), .first_position = message.first_position()};
    for (int k = 0; k < message.vector_size(); ++k) {
      const float value = scale * message.vector(k);
      if (!(std::fabs(value) <= limits::kMaxSteering)) {
        return FieldError(StrCat(field, ".vector[", k, "]"),
                          StrCat("times scale is ", value, "; it must be in [-1e6, 1e6]"));
      }
      vector.values.push_back(value);
    }
    static_assert(std::endian::native == std::endian::little);
    Sha256 hash;
    hash.Add({reinterpret_cast<const char*>(message.vector().data()),
              size_t(message.vector_size()) * sizeof(float)});
    if (i > 0) steering->description += "; ";
    steering->description += StrCat("layer ", message.layer(), " from position ",
                                    message.first_position(), ": ", scale, " x ", hash.ShortHex());
    const std::string where = StrCat(message.layer(), "/", message.first_position(), "/");
    hash_of_all.Add(where);
    hash_of_all.Add({reinterpret_cast<const char*>(vector.values.data()),
                     vector.values.size() * sizeof(float)});
    steering->vectors.push_back(std::move(vector));
  }
  steering->name = StrCat(FunctionName(*request), "/steering ", hash_of_all.Hex());
  request->steering = std::move(steering);
  return absl::OkStatus();
}

// `Message`: v1::GenerateRequest, v1::ScoreRequest, v1::EmbedRequest or
// v1::CaptureAttentionRequest.
template <typename Message>
absl::Status ReadSharing(const Message& message, const ParseContext& context, Request* request) {
  RETURN_IF_ERROR(CheckCheckpoint(message.checkpoint_hash(), *context.checkpoint));
  if (message.has_attention_override()) {
    RETURN_IF_ERROR(ReadAttentionOverride(message.attention_override(), context, request));
  }
  RETURN_IF_ERROR(ReadSteering(message.steering(), context, request));
  request->priority = message.priority();
  if (message.has_use_prefix_cache()) request->use_prefix_cache = message.use_prefix_cache();
  request->cache_salt = message.cache_salt();
  RETURN_IF_ERROR(
      CheckRange("priority", request->priority, -limits::kMaxPriority, limits::kMaxPriority));
  RETURN_IF_ERROR(CheckText("cache_salt", request->cache_salt));
  return CheckBytes("cache_salt", request->cache_salt.size(), 0, limits::kMaxCacheSaltBytes);
}

// Generate.

// Adds the ids of each word, as it is and with a space before it: one id to `banned_ids`, several
// to `sequences`.
// Source  vLLM, SamplingParams.update_from_tokenizer: the second form counts where it has as many
//         ids as the first and begins with another
absl::Status ReadBadWords(const v1::Sampling& message, const ParseContext& context,
                          std::vector<int32_t>* banned_ids,
                          std::vector<std::vector<int32_t>>* sequences) {
  RETURN_IF_ERROR(
      CheckCount("sampling.bad_words", size_t(message.bad_words_size()), 0, limits::kMaxBadWords));
  for (int i = 0; i < message.bad_words_size(); ++i) {
    const std::string field = StrCat("sampling.bad_words[", i, "]");
    const std::string& word = message.bad_words(i);
    RETURN_IF_ERROR(CheckBytes(field, word.size(), 1, limits::kMaxBadWordBytes));
    const std::string stripped = word.substr(std::min(word.find_first_not_of(kSpace), word.size()));
    ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeField(field, stripped, context, {}));
    ASSIGN_OR_RETURN(std::vector<int32_t> spaced, EncodeField(field, " " + stripped, context, {}));
    if (ids.empty()) return FieldError(field, "has no token; it must have text");
    const bool is_other = spaced.size() == ids.size() && spaced.front() != ids.front();
    for (std::vector<int32_t>* form : {&ids, &spaced}) {
      if (form == &spaced && !is_other) continue;
      if (form->size() == 1) {
        banned_ids->push_back(form->front());
      } else {
        sequences->push_back(std::move(*form));
      }
    }
  }
  return absl::OkStatus();
}

// True if allowed_token_ids and banned_token_ids leave no id to sample.
bool LeavesNoId(const SamplingParams& params, int vocab_size) {
  const std::set<int32_t> banned(params.banned_ids.begin(), params.banned_ids.end());
  if (params.allowed_ids.empty()) return banned.size() == size_t(vocab_size);
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
    return FieldError("prompt",
                      StrCat("has ", num_prompt_tokens, " tokens; it must have at most ", limit),
                      "the prompt");
  }
  const int max_new_tokens = max_prompt_tokens + 1 - int(num_prompt_tokens);
  params->max_tokens = message.has_max_tokens()
                           ? message.max_tokens()
                           : std::min(context.default_max_tokens, max_new_tokens);
  if (params->max_tokens < 1 || params->max_tokens > max_new_tokens) {
    return ValueError("max_tokens", params->max_tokens,
                      StrCat("in [1, ", max_new_tokens, "]: max_model_len ", max_model_len, " - ",
                             num_prompt_tokens, " prompt tokens"));
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
  auto grammar = context.grammars->Get(constraint.source, context.should_stop, context.workers);
  if (absl::IsInvalidArgument(grammar.status()) || absl::IsDeadlineExceeded(grammar.status())) {
    const absl::string_view problem = grammar.status().message();
    return FieldError(field, std::string_view(problem.data(), problem.size()));
  }
  if (!grammar.ok()) {
    absl::Status status(grammar.status().code(), StrCat(field, ": ", grammar.status().message()));
    grammar.status().ForEachPayload([&status](absl::string_view url, const absl::Cord& payload) {
      status.SetPayload(url, payload);  // RetryAfter
    });
    return status;
  }
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
  if (message.has_logprobs()) {
    params->num_logprobs = message.logprobs();
    RETURN_IF_ERROR(CheckRange("logprobs", params->num_logprobs, 0, limits::kMaxLogprobs));
  }
  if (message.has_prompt_logprobs()) {
    params->num_prompt_logprobs = message.prompt_logprobs();
    RETURN_IF_ERROR(
        CheckRange("prompt_logprobs", params->num_prompt_logprobs, 0, limits::kMaxLogprobs));
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

// Score.

// Bytes of white space at the end of `text`, as Python's str.rstrip() defines it:
// lm-evaluation-harness moves these from the context to the continuation.
size_t TrailingSpace(std::string_view text) {
  static constexpr std::array<std::string_view, 19> kWide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
      "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  constexpr std::string_view kNarrow = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
  size_t end = text.size();
  for (bool found = true; found && end > 0;) {
    found = kNarrow.find(text[end - 1]) != std::string_view::npos;
    if (found) --end;
    for (size_t i = 0; i < kWide.size() && !found; ++i) {
      found = text.substr(0, end).ends_with(kWide[i]);
      if (found) end -= kWide[i].size();
    }
  }
  return text.size() - end;
}

class ItemReader {
 public:
  ItemReader(const v1::ScoreItem& item, int index, const ParseContext& context)
      : item_(item),
        field_(StrCat("items[", index, "]")),
        parse_(context),
        checkpoint_(*context.checkpoint),
        max_model_len_(context.max_model_len) {}

  // Adds to `num_repeat_bytes`, of limits::kMaxScoreRepeatBytes over the whole call.
  absl::StatusOr<Request> Read(int64_t* num_repeat_bytes) {
    num_repeat_bytes_ = num_repeat_bytes;
    RETURN_IF_ERROR(CheckCount(field_ + ".continuations", size_t(item_.continuations_size()), 1,
                               limits::kMaxContinuations));
    RETURN_IF_ERROR(ReadContext());
    ScoreParams params;
    for (int i = 0; i < item_.continuations_size(); ++i) {
      if (parse_.should_stop()) return absl::CancelledError("the call has ended");
      ASSIGN_OR_RETURN(auto ids, ReadContinuation(i));
      params.continuations.push_back(std::move(ids));
    }
    Request request;
    request.prompt = std::move(context_ids_);
    request.params = std::move(params);
    return request;
  }

 private:
  bool HasTextContinuation() const {
    for (const v1::TextOrTokens& continuation : item_.continuations()) {
      if (continuation.has_text()) return true;
    }
    return false;
  }

  absl::Status ReadContext() {
    const v1::TextOrTokens& context = item_.context();
    if (context.has_tokens()) {
      ASSIGN_OR_RETURN(context_ids_,
                       CheckIds(field_ + ".context.tokens.ids", context.tokens().ids(),
                                checkpoint_.config.vocab_size));
    } else if (context.has_text()) {
      RETURN_IF_ERROR(ReadTextContext());
    }
    if (!context_ids_.empty()) return absl::OkStatus();
    if (!checkpoint_.config.bos_id) {
      return UnmetField(field_ + ".context", StrCat("is empty, and checkpoint ", checkpoint_.name,
                                                    " has no BOS to use instead"));
    }
    context_ids_ = {*checkpoint_.config.bos_id};
    return absl::OkStatus();
  }

  absl::Status ReadTextContext() {
    context_text_ = item_.context().text();
    RETURN_IF_ERROR(CheckText(field_ + ".context.text", context_text_));
    const size_t num_space_bytes = HasTextContinuation() ? TrailingSpace(context_text_) : 0;
    if (num_space_bytes > 0) RETURN_IF_ERROR(CheckAllText());
    moved_space_ = context_text_.substr(context_text_.size() - num_space_bytes);
    context_text_.resize(context_text_.size() - num_space_bytes);
    if (context_text_.empty()) return absl::OkStatus();
    if (!HasTextContinuation() || checkpoint_.tokenizer == nullptr) {
      ASSIGN_OR_RETURN(context_ids_, EncodeField(field_ + ".context.text", context_text_, parse_,
                                                 BosOf(checkpoint_)));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(CheckTextBytes(field_ + ".context.text", context_text_.size(), parse_));
    // Each continuation is tokenized together with the end of the context alone.
    const Tokenizer::StableSplit split = checkpoint_.tokenizer->SplitStable(context_text_);
    end_of_context_ = split.rest;
    RETURN_IF_ERROR(CountRepeats());
    ASSIGN_OR_RETURN(context_ids_, EncodeField(field_ + ".context.text", split.front, parse_,
                                               BosOf(checkpoint_)));
    num_front_ids_ = context_ids_.size();
    ASSIGN_OR_RETURN(const auto end,
                     EncodeField(field_ + ".context.text", end_of_context_, parse_, {}));
    context_ids_.insert(context_ids_.end(), end.begin(), end.end());
    return absl::OkStatus();
  }

  // Counts the end of the context, which is tokenized again with each continuation of text.
  absl::Status CountRepeats() const {
    const auto num_texts =
        std::count_if(item_.continuations().begin(), item_.continuations().end(),
                      [](const v1::TextOrTokens& one) { return one.has_text(); });
    *num_repeat_bytes_ += std::ssize(end_of_context_) * num_texts;
    if (*num_repeat_bytes_ <= limits::kMaxScoreRepeatBytes) return absl::OkStatus();
    return FieldError(
        field_,
        StrCat("has ", num_texts, " continuations of a context whose last ", end_of_context_.size(),
               " bytes have no space between two letters, and are tokenized again with each; one "
               "request may repeat ",
               limits::kMaxScoreRepeatBytes, " bytes: send fewer continuations, or token ids"));
  }

  // The context's trailing space moves only to continuations of text, so they cannot share the
  // context with continuations of ids.
  absl::Status CheckAllText() const {
    for (int i = 0; i < item_.continuations_size(); ++i) {
      if (item_.continuations(i).has_tokens()) {
        return FieldError(
            StrCat(field_, ".continuations[", i, "]"),
            "is token ids while others are text; because the context ends in white space, which "
            "moves to the continuations, all continuations must be text");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int32_t>> ReadContinuation(int index) const {
    const v1::TextOrTokens& continuation = item_.continuations(index);
    const std::string field = StrCat(field_, ".continuations[", index, "]");
    ASSIGN_OR_RETURN(auto ids, continuation.has_text()
                                   ? EncodeContinuation(field + ".text", continuation.text())
                                   : CheckIds(field + ".tokens.ids", continuation.tokens().ids(),
                                              checkpoint_.config.vocab_size));
    if (ids.empty()) {
      return FieldError(field, "adds no token to the context; it must add at least 1");
    }
    if (context_ids_.size() + ids.size() > size_t(max_model_len_)) {
      return FieldError(
          field, StrCat("has ", ids.size(), " tokens after a context of ", context_ids_.size(),
                        "; together they must be at most max_model_len ", max_model_len_));
    }
    return ids;
  }

  absl::StatusOr<std::vector<int32_t>> EncodeContinuation(const std::string& field,
                                                          const std::string& text) const {
    RETURN_IF_ERROR(CheckText(field, text));
    // After a context of ids, or an empty one, the continuation is encoded by itself.
    if (!item_.context().has_text() || context_text_.empty()) {
      return EncodeField(field, StrCat(moved_space_, text), parse_, {});
    }
    const std::string joined = StrCat(end_of_context_, moved_space_, text);
    const bool has_front = end_of_context_.size() < context_text_.size();
    ASSIGN_OR_RETURN(std::vector<int32_t> whole,
                     EncodeField(field, joined, parse_,
                                 has_front ? std::vector<int32_t>() : BosOf(checkpoint_)));
    // The ids of the front precede those of `joined`; BOS counts among the front's where there is a
    // front.
    const size_t num_context =
        std::min(context_ids_.size() - (has_front ? num_front_ids_ : 0), whole.size());
    whole.erase(whole.begin(), whole.begin() + std::ptrdiff_t(num_context));
    return whole;
  }

  const v1::ScoreItem& item_;
  const std::string field_;
  const ParseContext& parse_;
  const Checkpoint& checkpoint_;
  const int max_model_len_;
  int64_t* num_repeat_bytes_ = nullptr;
  std::string context_text_;  // without its trailing white space where that moves
  std::string moved_space_;
  std::string_view end_of_context_;  // of context_text_: from its stable split on
  std::vector<int32_t> context_ids_;
  size_t num_front_ids_ = 0;  // of them: of BOS and the text before end_of_context_
};

// One request for each rope base among the continuations. Without dynamic NTK there is one base.
std::vector<Request> SplitByRopeBase(Request request, const ModelConfig& config) {
  std::vector<std::vector<int32_t>> continuations = std::move(request.Score()->continuations);
  request.Score()->continuations.clear();
  std::map<double, Request> parts;
  for (size_t i = 0; i < continuations.size(); ++i) {
    const int num_tokens = int(request.prompt.size() + continuations[i].size());
    ScoreParams& part =
        *parts.try_emplace(RopeBase(config, num_tokens), request).first->second.Score();
    part.continuations.push_back(std::move(continuations[i]));
    part.indices.push_back(int(i));
  }
  std::vector<Request> requests;
  for (auto& [rope_base, part] : parts) requests.push_back(std::move(part));
  // The indices are only needed where continuations are apart.
  if (requests.size() == 1) requests[0].Score()->indices.clear();
  return requests;
}

// Ascending, without repeats.
std::vector<int32_t> SortedUnique(std::vector<int32_t> entries) {
  std::ranges::sort(entries);
  const auto repeats = std::ranges::unique(entries);
  entries.erase(repeats.begin(), repeats.end());
  return entries;
}

// Reads positions in `text` ("the prompt") of n tokens: [-n, n), negative ones from the end.
template <typename Entries>
absl::StatusOr<std::vector<int32_t>> ReadPositions(const std::string& field, const Entries& entries,
                                                   int num_tokens, const std::string& text) {
  std::vector<int32_t> positions;
  for (int i = 0; i < int(entries.size()); ++i) {
    const int32_t position = entries[i];
    if (position < -num_tokens || position >= num_tokens) {
      return ValueError(StrCat(field, "[", i, "]"), position,
                        StrCat("in [", -num_tokens, ", ", num_tokens, "): ", text, " has ",
                               num_tokens, " tokens"));
    }
    positions.push_back(position < 0 ? position + num_tokens : position);
  }
  return SortedUnique(std::move(positions));
}

// Embed.

absl::StatusOr<Pooling> ReadPooling(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
    case v1::POOLING_LAST: return Pooling::kLast;
    case v1::POOLING_MEAN: return Pooling::kMean;
    case v1::POOLING_TOKEN: return Pooling::kToken;
    default:
      return ValueError("pooling", int(pooling), "POOLING_LAST, POOLING_MEAN or POOLING_TOKEN");
  }
}

absl::StatusOr<std::vector<int32_t>> ReadHiddenLayers(const v1::EmbedRequest& message,
                                                      const ModelConfig& config) {
  if (message.layers().empty()) return std::vector<int32_t>{kFinalNorm};
  const int num_blocks = config.num_hidden_layers;
  std::vector<bool> is_chosen(size_t(num_blocks) + 2);
  for (int i = 0; i < message.layers_size(); ++i) {
    const int32_t layer = message.layers(i);
    const std::string field = StrCat("layers[", i, "]");
    if (layer < kFinalNorm || layer > num_blocks) {
      return ValueError(field, layer,
                        StrCat("in [-1, ", num_blocks, "]: -1 is the final norm, 0 the embedding, ",
                               num_blocks, " the stream behind the last block"));
    }
    if (message.apply_head() && layer != kFinalNorm) {
      return ValueError(field, layer, "-1 where apply_head is true: the head reads no other layer");
    }
    if (is_chosen[size_t(layer) + 1]) return ValueError(field, layer, "there once");
    is_chosen[size_t(layer) + 1] = true;
  }
  const int64_t num_floats = int64_t{message.layers_size()} * config.hidden_size;
  if (num_floats > limits::kMaxHiddenFloats) {
    return FieldError("layers",
                      StrCat("x hidden_size are ", message.layers_size(), " x ", config.hidden_size,
                             "; they must be at most ", limits::kMaxHiddenFloats));
  }
  return std::vector<int32_t>(message.layers().begin(), message.layers().end());
}

absl::StatusOr<std::vector<int32_t>> ReadInput(const std::string& field,
                                               const v1::TextOrTokens& input,
                                               const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  std::vector<int32_t> ids;
  if (input.has_text()) {
    ASSIGN_OR_RETURN(ids, EncodeField(field + ".text", input.text(), context, BosOf(checkpoint)));
  } else {
    ASSIGN_OR_RETURN(
        ids, CheckIds(field + ".tokens.ids", input.tokens().ids(), checkpoint.config.vocab_size));
  }
  if (ids.empty() || ids.size() > size_t(context.max_model_len)) {
    return ValueError(field, StrCat(ids.size(), " tokens long"),
                      StrCat("1 to max_model_len = ", context.max_model_len, " tokens long"));
  }
  return ids;
}

// CaptureAttention.

// Reads indices in [0, count); an empty list selects all.
template <typename Entries>
absl::StatusOr<std::vector<int32_t>> ReadIndices(const std::string& field, const Entries& entries,
                                                 int count) {
  if (entries.empty()) {
    std::vector<int32_t> all;
    all.resize(size_t(count));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  ASSIGN_OR_RETURN(auto chosen, CheckIds(field, entries, count));
  return SortedUnique(std::move(chosen));
}

// Bounds the number of keys of one row and of all rows.
absl::Status CheckSize(const CaptureParams& params) {
  const auto num_layers = int64_t(params.layers.size());
  const auto num_heads = int64_t(params.heads.size());
  const int64_t max_keys = params.rows.back() + 1;
  if (num_layers * num_heads * max_keys > limits::kMaxCaptureRowKeys) {
    return FieldError("layers", StrCat("x heads x keys of row ", params.rows.back(), " are ",
                                       num_layers, " x ", num_heads, " x ", max_keys,
                                       "; they must be at most ", limits::kMaxCaptureRowKeys));
  }
  const int64_t num_keys =
      std::accumulate(params.rows.begin(), params.rows.end(), int64_t(params.rows.size()));
  if (num_layers * num_heads * num_keys > limits::kMaxCaptureKeys) {
    return FieldError("layers", StrCat("x heads x keys of all ", params.rows.size(), " rows are ",
                                       num_layers, " x ", num_heads, " x ", num_keys,
                                       "; they must be at most ", limits::kMaxCaptureKeys));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> EncodeField(const std::string& field, std::string_view text,
                                                 const ParseContext& context,
                                                 std::span<const int32_t> bos) {
  const Tokenizer* const tokenizer = context.checkpoint->tokenizer.get();
  if (tokenizer == nullptr) {
    return UnmetField(field, "is text, and this checkpoint has no tokenizer; send token ids");
  }
  RETURN_IF_ERROR(CheckTextBytes(field, text.size(), context));
  RETURN_IF_ERROR(CheckText(field, text));
  auto ids = tokenizer->Encode(text, context.should_stop);
  if (absl::IsInvalidArgument(ids.status())) {
    return RefusedField(field, StrCat(ids.status().message()));
  }
  if (!ids.ok()) {
    return absl::Status(ids.status().code(), StrCat(field, ": ", ids.status().message()));
  }
  ids->insert(ids->begin(), bos.begin(), bos.end());
  return ids;
}

ParseContext ContextOf(const LoadedModel& model, uint64_t default_seed) {
  return {.checkpoint = &model.GetCheckpoint(),
          .max_model_len = model.MaxModelLen(),
          .default_seed = default_seed,
          .max_choices = model.MaxChoices(),
          .allow_attention_override = model.AllowsAttentionOverride(),
          .allow_steering = model.AllowsSteering(),
          .kv_cache_dtype = model.GetEngine().Options().kv_cache_dtype,
          .backend = model.GetBackend(),
          .grammars = &model.Grammars()};
}

absl::StatusOr<ParsedGenerate> ParseGenerate(const v1::GenerateRequest& message,
                                             const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  ParsedGenerate parsed;
  GenerateParams params;
  // Cheap checks first: tokenization is the expensive part.
  RETURN_IF_ERROR(ReadSampling(message.sampling(), context, &params));
  RETURN_IF_ERROR(ReadStops(message, checkpoint.config.vocab_size, &params));
  RETURN_IF_ERROR(ReadOutputs(message, context, &params, &parsed));
  RETURN_IF_ERROR(ReadSharing(message, context, &parsed.request));
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

absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context) {
  RETURN_IF_ERROR(CheckCount("items", size_t(message.items_size()), 1, limits::kMaxScoreItems));
  RETURN_IF_ERROR(CheckRange("top_logprobs", message.top_logprobs(), 0, limits::kMaxLogprobs));
  if (message.top_logprobs() > 0 && !message.per_token()) {
    return FieldError("top_logprobs", StrCat("is ", message.top_logprobs(),
                                             "; it may be set only where per_token is true"));
  }
  RETURN_IF_ERROR(CheckCount("logprob_token_ids", size_t(message.logprob_token_ids_size()), 0,
                             limits::kMaxLogprobIds));
  ASSIGN_OR_RETURN(const std::vector<int32_t> logprob_ids,
                   CheckIds("logprob_token_ids", message.logprob_token_ids(),
                            context.checkpoint->config.vocab_size));
  if (message.full_distribution() && !logprob_ids.empty()) {
    return FieldError("logprob_token_ids",
                      "is set; it must be empty where full_distribution is true, which has all");
  }
  Request shared;
  RETURN_IF_ERROR(ReadSharing(message, context, &shared));
  ParsedScore parsed;
  parsed.per_token = message.per_token();
  int64_t num_repeat_bytes = 0;
  int64_t num_tokens = 0;
  for (int i = 0; i < message.items_size(); ++i) {
    absl::StatusOr<Request> read = ItemReader(message.items(i), i, context).Read(&num_repeat_bytes);
    if (!read.ok()) {
      const bool is_of_item =
          absl::IsInvalidArgument(read.status()) || absl::IsFailedPrecondition(read.status());
      // Not a limit of the whole call.
      if (!is_of_item || num_repeat_bytes > limits::kMaxScoreRepeatBytes) return read.status();
      parsed.errors.emplace(i, read.status());
      continue;
    }
    Request& request = *read;
    request.priority = shared.priority;
    request.use_prefix_cache = shared.use_prefix_cache;
    request.cache_salt = shared.cache_salt;
    request.attention = shared.attention;
    request.steering = shared.steering;
    request.Score()->num_logprobs = message.top_logprobs();
    request.Score()->logprob_ids = logprob_ids;
    request.Score()->full_distribution = message.full_distribution();
    for (Request& part : SplitByRopeBase(std::move(request), context.checkpoint->config)) {
      num_tokens += NumPromptTokens(part);
      if (num_tokens > limits::kMaxScoreTokens) {
        return FieldError(StrCat("items[", i, "]"),
                          StrCat("makes the request exceed ", limits::kMaxScoreTokens,
                                 " tokens of contexts and continuations; send fewer items"));
      }
      parsed.items.push_back(std::move(part));
      parsed.item_indices.push_back(i);
    }
  }
  if (parsed.items.empty()) return parsed.errors.begin()->second;
  return parsed;
}

absl::StatusOr<std::vector<Request>> ParseEmbed(const v1::EmbedRequest& message,
                                                const ParseContext& context) {
  RETURN_IF_ERROR(CheckCount("inputs", size_t(message.inputs_size()), 1, limits::kMaxEmbedInputs));
  Request shared;
  RETURN_IF_ERROR(ReadSharing(message, context, &shared));
  EmbedParams params{.apply_head = message.apply_head(), .normalize = message.normalize()};
  ASSIGN_OR_RETURN(params.pooling, ReadPooling(message.pooling()));
  ASSIGN_OR_RETURN(params.layers, ReadHiddenLayers(message, context.checkpoint->config));
  RETURN_IF_ERROR(
      CheckCount("positions", size_t(message.positions_size()), 0, size_t(context.max_model_len)));
  if (params.pooling == Pooling::kLast && !message.positions().empty()) {
    return FieldError("positions", "is set; it may be set with POOLING_MEAN or POOLING_TOKEN");
  }
  if (!message.dtype().empty() && message.dtype() != "fp32" && message.dtype() != "fp16") {
    return ValueError("dtype", Quote(message.dtype()), "\"fp32\" or \"fp16\"");
  }
  if (params.apply_head && context.checkpoint->model->NumHeadOutputs() == 0) {
    return UnmetField("apply_head", StrCat("is true, but checkpoint ", context.checkpoint->name,
                                           " has no regression head (head.weight)"));
  }
  std::vector<Request> requests;
  for (int i = 0; i < message.inputs_size(); ++i) {
    if (context.should_stop()) return absl::CancelledError("the call has ended");
    Request request = shared;
    const std::string field = StrCat("inputs[", i, "]");
    ASSIGN_OR_RETURN(request.prompt, ReadInput(field, message.inputs(i), context));
    ASSIGN_OR_RETURN(params.positions,
                     ReadPositions("positions", message.positions(), int(request.prompt.size()),
                                   StrCat("input ", i)));
    request.params = params;
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::StatusOr<Request> ParseCapture(const v1::CaptureAttentionRequest& message,
                                     const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  ASSIGN_OR_RETURN(auto layers,
                   ReadIndices("layers", message.layers(), checkpoint.config.num_hidden_layers));
  ASSIGN_OR_RETURN(auto heads,
                   ReadIndices("heads", message.heads(), checkpoint.config.num_attention_heads));
  RETURN_IF_ERROR(CheckRange("top_k", message.top_k(), 0, limits::kMaxModelLen.max));
  if (message.statistics() && message.top_k() > 0) {
    return ValueError("top_k", message.top_k(),
                      "0 where statistics is true: statistics are of all weights");
  }
  Request request;
  RETURN_IF_ERROR(ReadSharing(message, context, &request));
  ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(message, context));
  if (prompt.ids.size() > size_t(context.max_model_len)) {
    return FieldError("prompt",
                      StrCat("has ", prompt.ids.size(),
                             " tokens; it must have at most max_model_len ", context.max_model_len),
                      "the prompt");
  }
  const int num_tokens = int(prompt.ids.size());
  std::vector<int32_t> rows = {num_tokens - 1};
  if (!message.rows().empty()) {
    ASSIGN_OR_RETURN(rows, ReadPositions("rows", message.rows(), num_tokens, "the prompt"));
  }
  request.prompt = std::move(prompt.ids);
  request.params = CaptureParams{.layers = std::move(layers),
                                 .heads = std::move(heads),
                                 .rows = std::move(rows),
                                 .top_k = message.top_k(),
                                 .statistics = message.statistics()};
  RETURN_IF_ERROR(CheckSize(*request.Capture()));
  return request;
}

absl::StatusOr<std::vector<int32_t>> ParseTokenize(const v1::TokenizeRequest& message,
                                                   const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  std::vector<int32_t> bos = BosOf(checkpoint);
  if (message.has_add_bos()) {
    bos.clear();
    if (message.add_bos()) {
      if (!checkpoint.config.bos_id) {
        return UnmetField("add_bos",
                          StrCat("is true; checkpoint ", checkpoint.name, " has no BOS"));
      }
      bos = {*checkpoint.config.bos_id};
    }
  }
  ParseContext tokenize = context;
  tokenize.max_text_bytes = limits::kMaxTokenizeBytes;
  return EncodeField("text", message.text(), tokenize, bos);
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

#include "server/http/tokenizer_calls.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/api/fields.h"
#include "server/api/parse_request.h"
#include "server/http/answer_request.h"
#include "server/http/body_fields.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"
#include "server/http/request_fields.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// The text of EOS and BOS is their id, as Hugging Face's tokenizers have it: lm-evaluation-harness
// asks for the ids this way.
std::optional<int32_t> ControlToken(const std::string& text, const Checkpoint& checkpoint) {
  if (text.empty()) return std::nullopt;
  if (text == checkpoint.eos_token) return checkpoint.config.eos_id;
  if (text == checkpoint.bos_token) return checkpoint.config.bos_id;
  return std::nullopt;
}

// `names`: of the request's fields in the body.
absl::StatusOr<std::vector<int32_t>> IdsOfChat(const v1::GenerateRequest& request,
                                               const FieldNames& names, ParseContext context) {
  context.max_text_bytes = limits::kMaxTokenizeBytes;
  context.max_model_len = std::numeric_limits<int>::max();  // a count is no request to generate
  auto parsed = ParseGenerate(request, context);
  if (!parsed.ok()) return WithHttpNames(parsed.status(), names);
  return std::move(parsed->request.prompt);
}

absl::StatusOr<std::vector<int32_t>> IdsOfText(const std::string& text, bool add_special_tokens,
                                               const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  if (const auto id = ControlToken(text, checkpoint); id && !add_special_tokens) {
    return std::vector<int32_t>{*id};
  }
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_bos(add_special_tokens && checkpoint.add_bos &&
                      checkpoint.config.bos_id.has_value());
  auto ids = ParseTokenize(request, context);
  if (!ids.ok()) return WithHttpNames(ids.status(), PromptNames("prompt"));
  return ids;
}

}  // namespace

absl::StatusOr<std::string> TokenizeJson(const HttpRequest& request, const CallContext& call) {
  ParseContext context = call.MakeParseContext();
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body, context.should_stop));
  const Checkpoint& checkpoint = *context.checkpoint;
  RETURN_IF_ERROR(ReadModelName(body, call.Model()).status());
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kTokenizeBody, fields));
  ASSIGN_OR_RETURN(const std::optional<std::string> prompt, fields.String("prompt"));
  ASSIGN_OR_RETURN(const std::optional<bool> special, fields.Bool("add_special_tokens"));
  ASSIGN_OR_RETURN(const std::optional<bool> strings, fields.Bool("return_token_strs"));
  context.add_bos = special.value_or(true);
  const Json* messages = fields.Find("messages");
  if (prompt.has_value() == (messages != nullptr)) {
    return FieldError("prompt", "or messages must be set, and not both");
  }
  v1::Chat chat;
  if (messages != nullptr) {
    ASSIGN_OR_RETURN(chat, ReadChatMessages(*messages));
  }
  RETURN_IF_ERROR(ReadChatEnd(fields, &chat));  // of a prompt, too: a wrong type is told
  std::vector<int32_t> ids;
  if (messages != nullptr) {
    v1::GenerateRequest count;
    *count.mutable_chat() = std::move(chat);
    count.set_max_tokens(1);
    ASSIGN_OR_RETURN(ids, IdsOfChat(count, PromptNames("messages"), context));
  } else {
    ASSIGN_OR_RETURN(ids, IdsOfText(*prompt, special.value_or(true), context));
  }
  std::string json = StrCat("{\"count\":", ids.size(), ",\"max_model_len\":", context.max_model_len,
                            ",\"tokens\":[");
  std::string labels;
  const TokenFormat format{.checkpoint = &checkpoint};
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) json += ',';
    AppendJsonNumber(ids[i], &json);
    if (!strings.value_or(false)) continue;
    if (i > 0) labels += ',';
    AppendJsonString(format.Label(ids[i]), &labels);
  }
  json += "],\"token_strs\":";
  json += strings.value_or(false) ? StrCat("[", labels, "]}") : "null}";
  return json;
}

absl::StatusOr<std::string> CountTokensJson(const HttpRequest& request, const CallContext& call) {
  const ParseContext context = call.MakeParseContext();
  ASSIGN_OR_RETURN(const Json body, ParseJson(request.body, context.should_stop));
  RETURN_IF_ERROR(ReadModelName(body, call.Model()).status());
  ASSIGN_OR_RETURN(AnswerRequest answer, ReadCountedMessage(body));
  v1::GenerateRequest& prompt = answer.completion.prompts.front();
  RETURN_IF_ERROR(AskForCall(request.body, answer.completion.tools, &prompt));
  ASSIGN_OR_RETURN(const auto ids, IdsOfChat(prompt, MessageNames(answer.completion), context));
  return StrCat("{\"input_tokens\":", ids.size(), "}");
}

absl::StatusOr<std::string> DetokenizeJson(const HttpRequest& http, const CallContext& call) {
  const ParseContext context = call.MakeParseContext();
  ASSIGN_OR_RETURN(const Json body, ParseJson(http.body, context.should_stop));
  RETURN_IF_ERROR(ReadModelName(body, call.Model()).status());
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kDetokenizeBody, fields));
  ASSIGN_OR_RETURN(const Json* const tokens, fields.Require("tokens"));
  ASSIGN_OR_RETURN(const auto ids, ReadIds("tokens", *tokens));
  ASSIGN_OR_RETURN(const std::optional<bool> skips, fields.Bool("skip_special_tokens"));
  v1::DetokenizeRequest request;
  request.mutable_ids()->Assign(ids.begin(), ids.end());
  auto checked = ParseDetokenize(request, context);
  if (!checked.ok()) return WithHttpNames(checked.status(), {{"ids", "tokens"}});
  // vLLM's default: the text has all that the ids say.
  const std::string text = Decode(*context.checkpoint->tokenizer, *checked, skips.value_or(false));
  return StrCat("{\"prompt\":", JsonString(text), "}");
}

absl::StatusOr<std::string> TokenizerInfoJson(const HttpRequest& /*request*/,
                                              const CallContext& context) {
  const LoadedModel& model = context.Model();
  const Checkpoint& checkpoint = model.GetCheckpoint();
  if (checkpoint.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("checkpoint ", checkpoint.name, " has no tokenizer"));
  }
  Json info = Json::parse(checkpoint.tokenizer_config, nullptr, /*allow_exceptions=*/false);
  if (!info.is_object()) info = Json::object();
  if (!info.contains("tokenizer_class")) info["tokenizer_class"] = "lssar";
  const auto set = [&info](const char* name, const std::optional<int32_t>& id) {
    info[name] = id ? Json(*id) : Json();
  };
  info["bos_token"] = checkpoint.bos_token.empty() ? Json() : Json(checkpoint.bos_token);
  info["eos_token"] = checkpoint.eos_token.empty() ? Json() : Json(checkpoint.eos_token);
  set("bos_token_id", checkpoint.config.bos_id);
  set("eos_token_id", checkpoint.config.eos_id);
  info["add_bos_token"] = checkpoint.add_bos;
  info["vocab_size"] = checkpoint.config.vocab_size;
  info["model_max_length"] = model.MaxModelLen();
  info["tokenizer_hash"] = std::string(checkpoint.tokenizer->Hash());
  return info.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ModelJson(const LoadedModel& model, const std::string& name, int64_t created) {
  const Checkpoint& checkpoint = model.GetCheckpoint();
  const ModelConfig& config = checkpoint.config;
  const Backend* backend = model.GetBackend();
  std::string power;
  if (const std::optional<double> p = config.AttentionP()) AppendJsonNumber(*p, &power);
  return StrCat(
      "{\"id\":", JsonString(name), ",\"object\":\"model\",\"created\":", created,
      ",\"owned_by\":\"lssar\",\"root\":", JsonString(checkpoint.name),
      ",\"max_model_len\":", model.MaxModelLen(), ",\"checkpoint_hash\":\"", checkpoint.hash,
      "\",\"attention\":{\"kind\":\"", config.AttentionNames(),
      "\",\"p\":", power.empty() ? std::string("null") : power,
      "},\"attention_override_allowed\":", model.AllowsAttentionOverride() ? "true" : "false",
      ",\"steering_allowed\":", model.AllowsSteering() ? "true" : "false",
      ",\"num_hidden_layers\":", config.num_hidden_layers,
      ",\"num_attention_heads\":", config.num_attention_heads,
      ",\"max_position_embeddings\":", config.max_position_embeddings,
      ",\"vocab_size\":", config.vocab_size, ",\"num_parameters\":", checkpoint.num_parameters,
      ",\"dtype\":\"", NameOf(checkpoint.dtype),
      "\",\"has_chat_template\":", checkpoint.chat_template.has_value() ? "true" : "false",
      ",\"device\":", JsonString(backend == nullptr ? "" : backend->Name()), "}");
}

}  // namespace lssar

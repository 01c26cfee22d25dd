#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/http/openai_request.h"
#include "server/http/request_fields.h"
#include "server/http/scheduling_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// A list of integers; unset: empty.
template <typename Integers>
absl::Status ReadIntegers(const BodyFields& fields, std::string_view name, Integers* list) {
  ASSIGN_OR_RETURN(const Json* const entries, fields.List(name, "integers"));
  if (entries == nullptr) return absl::OkStatus();
  return ReadElements(fields.Name(name), *entries, ReadInt32,
                      [list](int32_t entry) { list->Add(entry); });
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

absl::StatusOr<v1::ScoreRequest> ReadScore(const Json& body) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(body));
  RETURN_IF_ERROR(CheckFields(kScoreBody, fields));
  v1::ScoreRequest request;
  RETURN_IF_ERROR(ReadSchedulingFields(fields, &request));
  ASSIGN_OR_RETURN(const std::optional<int32_t> logprobs, fields.Int32("logprobs"));
  if (logprobs) {
    request.set_per_token(true);
    request.set_top_logprobs(*logprobs);
  }
  RETURN_IF_ERROR(ReadIntegers(fields, "logprob_token_ids", request.mutable_logprob_token_ids()));
  ASSIGN_OR_RETURN(const Json* const items, fields.Require("items"));
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
    ASSIGN_OR_RETURN(const Json* const continuations, item_fields.Require("continuations"));
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
  ASSIGN_OR_RETURN(const Json* const input, fields.Require("input"));
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

}  // namespace lssar

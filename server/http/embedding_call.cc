#include "server/http/embedding_call.h"

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/parse_request.h"
#include "server/http/body_fields.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"
#include "server/served_model.h"

namespace lssar {
namespace {

// Floats in one reply, which is built in memory: some 50 MB of JSON.
constexpr int64_t kMaxReplyFloats = int64_t{1} << 22;
constexpr int64_t kBytesPerFloat = 12;

// OpenAI's base64 form: the little-endian bytes of the floats.
std::string Base64Of(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  const auto* bytes = reinterpret_cast<const char*>(values.data());
  return absl::Base64Escape({bytes, values.size_bytes()});
}

void AppendVector(std::span<const float> values, bool is_base64, std::string* json) {
  if (is_base64) {
    *json += StrCat("\"", Base64Of(values), "\"");
    return;
  }
  *json += '[';
  for (const float value : values) {
    if (json->back() != '[') *json += ',';
    AppendJsonNumber(value, json);
  }
  *json += ']';
}

}  // namespace

absl::StatusOr<std::vector<EngineCall::Item>> HttpEmbeddingCall::Parse() {
  const ParseContext context = context_.MakeParseContext();
  const Checkpoint& checkpoint = *context.checkpoint;
  EmbeddingRequest request;
  {
    ASSIGN_OR_RETURN(const nlohmann::json body,
                     ParseJson(exchange_->Request().body, context.should_stop));
    ASSIGN_OR_RETURN(request, ReadEmbedding(body, checkpoint));
  }
  is_base64_ = request.is_base64;
  is_per_token_ = request.message.pooling() == v1::POOLING_TOKEN;
  auto parsed = ParseEmbed(request.message, context);
  if (!parsed.ok()) return WithHttpNames(parsed.status(), "input");
  const int64_t size = request.message.apply_head() ? checkpoint.model->NumHeadOutputs()
                                                    : checkpoint.config.hidden_size;
  int64_t num_vectors = 0;
  for (const Request& one : *parsed) num_vectors += is_per_token_ ? std::ssize(one.prompt) : 1;
  if (num_vectors * size > kMaxReplyFloats) {
    return FieldError(
        "input", StrCat("asks for ", num_vectors * size, " numbers in one reply; the limit is ",
                        kMaxReplyFloats, ": send fewer inputs, or use gRPC"));
  }
  RETURN_IF_ERROR(context_.HoldReply(num_vectors * size * kBytesPerFloat));
  vectors_.resize(parsed->size());
  std::vector<Item> items;
  for (Request& one : *parsed) items.push_back({.request = std::move(one)});
  return items;
}

void HttpEmbeddingCall::OnEmbeddings(int item, EmbeddingBlock block) {
  std::string& json = vectors_[size_t(item)];
  const auto size = size_t(block.size);
  for (size_t first = 0; first < block.values.size(); first += size) {
    if (!json.empty()) json += ',';
    AppendVector(std::span(block.values).subspan(first, size), is_base64_, &json);
  }
}

void HttpEmbeddingCall::OnEnd(const absl::Status& /*status*/, const RequestStats& total) {
  std::string json =
      StrCat("{\"object\":\"list\",\"model\":", JsonString(context_.Model().GetCheckpoint().name),
             ",\"data\":[");
  for (size_t i = 0; i < vectors_.size(); ++i) {
    if (i > 0) json += ',';
    json += StrCat("{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":");
    json += is_per_token_ ? StrCat("[", vectors_[i], "]") : vectors_[i];
    json += '}';
  }
  vectors_ = {};
  json += StrCat("],\"usage\":", UsageJson(total), ",\"receipt\":", Receipt(), "}");
  exchange_->Reply({.status = 200, .body = std::move(json)});
}

}  // namespace lssar

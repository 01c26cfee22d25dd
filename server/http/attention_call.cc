#include "server/http/attention_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/parse_request.h"
#include "server/http/body_fields.h"
#include "server/http/http_error.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"
#include "server/served_model.h"

namespace lssar {
namespace {

// Weights in one reply that is not streamed, which is built in memory: some 40 MB of JSON.
constexpr int64_t kMaxReplyWeights = int64_t{1} << 20;
constexpr int64_t kBytesPerWeight = 40;

// The most weights that the rows may have.
int64_t MaxWeights(const CaptureParams& params) {
  const auto heads = std::ssize(params.layers) * std::ssize(params.heads);
  return std::accumulate(
      params.rows.begin(), params.rows.end(), int64_t{0}, [&](int64_t sum, int32_t row) {
        const int64_t keys = params.top_k > 0 ? std::min(params.top_k, row + 1) : row + 1;
        return sum + heads * keys;
      });
}

void AppendRow(const RowWeights& row, std::string* json) {
  *json += StrCat("{\"layer\":", row.layer, ",\"head\":", row.head, ",\"row\":", row.row,
                  ",\"num_nonzero\":", row.num_nonzero, ",\"entropy\":");
  AppendJsonNumber(row.entropy, json);
  *json += ",\"dropped_mass\":";
  AppendJsonNumber(row.dropped, json);
  *json += ",\"keys\":[";
  for (const KeyWeight& key : row.keys) {
    if (json->back() != '[') *json += ',';
    AppendJsonNumber(key.key, json);
  }
  *json += "],\"weights\":[";
  for (const KeyWeight& key : row.keys) {
    if (json->back() != '[') *json += ',';
    AppendJsonNumber(key.weight, json);
  }
  *json += "]}";
}

void AppendStatistics(const HeadStatistics& head, std::string* json) {
  *json += StrCat("{\"layer\":", head.layer, ",\"head\":", head.head,
                  ",\"num_rows\":", head.num_rows, ",\"num_keys\":", head.num_keys,
                  ",\"num_nonzero\":", head.num_nonzero, ",\"effective_keys\":");
  AppendJsonNumber(head.effective_keys, json);
  *json += ",\"first_token_mass\":";
  AppendJsonNumber(head.first_token_mass, json);
  *json += ",\"distance_mass\":[";
  for (size_t i = 0; i < head.NumDistances(); ++i) {
    if (i > 0) *json += ',';
    AppendJsonNumber(head.distance_mass[i], json);
  }
  *json += "]}";
}

}  // namespace

absl::StatusOr<std::vector<EngineCall::Item>> HttpAttentionCall::Parse() {
  const ParseContext context = context_.MakeParseContext();
  AttentionRequest body;
  {
    ASSIGN_OR_RETURN(const nlohmann::json json,
                     ParseJson(exchange_->Request().body, context.should_stop));
    ASSIGN_OR_RETURN(body, ReadAttention(json, *context.checkpoint));
  }
  is_stream_ = body.stream;
  if (is_stream_ && exchange_->Request().is_http_1_0) {
    return FieldError("stream", "is true; a stream of events needs HTTP/1.1, and this is HTTP/1.0");
  }
  auto request = ParseCapture(body.message, context);
  if (!request.ok()) {
    return WithHttpNames(request.status(), body.message.has_chat() ? "messages" : "prompt");
  }
  const CaptureParams& params = *request->capture;
  const int64_t weights = params.statistics || is_stream_ ? 0 : MaxWeights(params);
  if (weights > kMaxReplyWeights) {
    return FieldError("rows",
                      StrCat("ask for up to ", weights, " weights in one reply; the limit is ",
                             kMaxReplyWeights, ": ask for fewer rows, set top_k, or stream"));
  }
  RETURN_IF_ERROR(context_.HoldReply(weights * kBytesPerWeight));
  context_.AddLogFields({{"num_rows", params.rows.size()},
                         {"num_heads", params.layers.size() * params.heads.size()}});
  prompt_ = request->prompt;
  prompt_.resize(size_t(params.rows.back()) + 1);
  std::vector<Item> items;
  items.push_back({.request = *std::move(request)});
  return items;
}

std::string HttpAttentionCall::Head() const {
  const Checkpoint& checkpoint = context_.Model().GetCheckpoint();
  return StrCat("{\"id\":\"attn-", context_.RequestId(),
                "\",\"object\":\"attention\",\"model\":", JsonString(checkpoint.name),
                ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\"");
}

std::string HttpAttentionCall::TokensJson() const {
  const TokenFormat format{.checkpoint = &context_.Model().GetCheckpoint()};
  std::string json = "[";
  for (const int32_t id : prompt_) {
    if (json.back() != '[') json += ',';
    json += StrCat("{\"id\":", id, ",\"token\":");
    AppendJsonString(format.Label(id), &json);
    json += '}';
  }
  json += ']';
  return json;
}

void HttpAttentionCall::OnItemAdmitted(int /*item*/, const RequestStats& /*stats*/) {
  if (!is_stream_) return;
  exchange_->BeginStream();
  exchange_->Send(StrCat("data: ", Head(), ",\"tokens\":", TokensJson(), "}\n\n"));
}

void HttpAttentionCall::OnWeights(int /*item*/, std::vector<RowWeights> rows) {
  std::string json;
  for (const RowWeights& row : rows) {
    if (!json.empty()) json += ',';
    AppendRow(row, &json);
  }
  if (is_stream_) {
    exchange_->Send(StrCat("data: {\"rows\":[", json, "]}\n\n"));
  } else {
    if (!rows_.empty() && !json.empty()) rows_ += ',';
    rows_ += json;
  }
}

void HttpAttentionCall::OnStatistics(int /*item*/, std::vector<HeadStatistics> heads) {
  statistics_ = "[";
  for (const HeadStatistics& head : heads) {
    if (statistics_.back() != '[') statistics_ += ',';
    AppendStatistics(head, &statistics_);
  }
  statistics_ += ']';
  if (is_stream_) exchange_->Send(StrCat("data: {\"statistics\":", statistics_, "}\n\n"));
}

void HttpAttentionCall::OnEnd(const absl::Status& status, const RequestStats& total) {
  if (!exchange_->HasStarted()) {
    exchange_->Reply(
        {.status = 200,
         .body = StrCat(Head(), ",\"tokens\":", TokensJson(), ",\"rows\":[", rows_, "]",
                        statistics_.empty() ? "" : ",\"statistics\":", statistics_,
                        ",\"usage\":", UsageJson(total), ",\"receipt\":", Receipt(), "}")});
    rows_ = {};
    return;
  }
  if (status.ok()) {
    exchange_->Send(StrCat("data: {\"usage\":", UsageJson(total), ",\"receipt\":", Receipt(),
                           "}\n\ndata: [DONE]\n\n"));
  } else {
    exchange_->Send(StrCat("data: ", ErrorJson(status), "\n\n"));
  }
  exchange_->EndStream();
}

}  // namespace lssar

// POST /v1/score, /v1/embeddings and /v1/attention.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "server/api/capture.h"
#include "server/api/embed.h"
#include "server/api/score.h"
#include "server/http/http_codec.h"
#include "server/http/http_error.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

// Sizes of a reply, in round figures: what the server holds for it.
constexpr int64_t kBytesPerScore = 128;  // without the log-probabilities of its tokens
constexpr int64_t kBytesPerFloat = 12;
constexpr int64_t kBytesPerWeight = 40;
// Floats, and attention weights, in one reply, which is built in memory: some 50 MB of JSON.
constexpr int64_t kMaxReplyFloats = int64_t{1} << 22;
constexpr int64_t kMaxReplyWeights = int64_t{1} << 20;

template <typename Numbers>
void AppendNumbers(const Numbers& numbers, std::string* json) {
  *json += '[';
  for (const auto number : numbers) {
    if (json->back() != '[') *json += ',';
    AppendJsonNumber(number, json);
  }
  *json += ']';
}

class ScoreCodec final : public HttpCodec {
 public:
  explicit ScoreCodec(ScoreMethod* method) : method_(*method) {}

  absl::Status Decode(const HttpRequest& request) override {
    ASSIGN_OR_RETURN(const nlohmann::json body, ParseBody(request));
    format_ = {.checkpoint = &Context().Model().GetCheckpoint()};
    ASSIGN_OR_RETURN(method_.request, ReadScore(body));
    logprobs_ = ChatLogprobs(format_);
    scores_.resize(size_t(method_.request.items_size()));
    return absl::OkStatus();
  }

  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& items) override {
    int64_t num_scores = 0, num_tokens = 0;
    for (const SubRequest& item : items) {
      const auto& continuations = item.request.Score()->continuations;
      num_scores += std::ssize(continuations);
      for (const auto& continuation : continuations) {
        num_tokens += std::ssize(continuation);
      }
    }
    const int num_top = method_.request.top_logprobs();
    const int64_t num_logprobs = (method_.request.per_token() ? num_tokens * (1 + num_top) : 0) +
                                 num_tokens * method_.request.logprob_token_ids_size();
    RETURN_IF_ERROR(CheckReplyLogprobs("logprobs", num_logprobs, "send fewer items"));
    return context->HoldReply(num_scores * kBytesPerScore +
                              num_logprobs * ChatLogprobs::kBytesPerLogprob);
  }

  FieldNames Names() const override { return {{"top_logprobs", "logprobs"}}; }

  void OnReply(int /*prompt*/, Message& message) override {
    auto& reply = static_cast<v1::ScoreReply&>(message);
    if (reply.has_tokens()) {
      for (const v1::Token& token : reply.tokens().tokens()) {
        if (!token_ids_.empty()) token_ids_ += ',';
        AppendJsonNumber(token.token().id(), &token_ids_);
        logprobs_.Add(token, method_.request.top_logprobs());
      }
    } else if (reply.has_logprobs()) {
      AddLogprobs(reply.logprobs());
    } else if (reply.has_score()) {
      AddScore(reply.score());
    } else if (reply.has_finished()) {
      usage_ = UsageJson(reply.finished().usage());
    }
  }

  void OnEnd(const absl::Status& /*status*/) override {
    const Checkpoint& checkpoint = *format_.checkpoint;
    std::string json = StrCat("{\"id\":\"score-", Context().RequestId(),
                              "\",\"object\":\"list\",\"model\":", JsonString(ModelName()),
                              ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\",\"data\":[");
    for (size_t i = 0; i < scores_.size(); ++i) {
      if (i > 0) json += ',';
      json += StrCat("{\"index\":", i, ",\"object\":\"score\",");
      if (const auto bad = method_.Errors().find(int(i)); bad != method_.Errors().end()) {
        json += ErrorJson(WithHttpNames(bad->second, Names())).substr(1);  // "error":{...}}
      } else {
        json += StrCat("\"continuations\":[", scores_[i], "]}");
      }
    }
    scores_ = {};
    json += StrCat("],\"usage\":", usage_, ",\"receipt\":", Receipt(), "}");
    Exchange().Reply({.status = 200, .body = std::move(json)});
  }

 private:
  void AddLogprobs(const v1::ScoreLogprobs& block) {
    std::string& json = id_logprobs_[{block.item(), block.continuation()}];
    const std::span values(block.values().data(), size_t(block.values_size()));
    const auto size = size_t(block.size());
    for (size_t first = 0; first < values.size(); first += size) {
      if (!json.empty()) json += ',';
      AppendNumbers(values.subspan(first, size), &json);
    }
  }

  // After its tokens and other log-probabilities.
  void AddScore(const v1::ContinuationScore& score) {
    std::string& list = scores_[size_t(score.item())];
    if (!list.empty()) list += ',';
    list += StrCat("{\"index\":", score.continuation(), ",\"logprob\":");
    AppendJsonNumber(score.logprob(), &list);
    list += StrCat(",\"is_greedy\":", score.is_greedy() ? "true" : "false",
                   ",\"num_tokens\":", score.num_tokens(), ",\"num_bytes\":", score.num_bytes());
    if (method_.request.per_token()) {
      list += StrCat(",\"token_ids\":[", std::exchange(token_ids_, {}), "],\"logprobs\":");
      logprobs_.Take(&list);
    }
    if (const auto ids = id_logprobs_.extract({score.item(), score.continuation()})) {
      list += StrCat(",\"token_id_logprobs\":[", ids.mapped(), "]");
    }
    list += '}';
  }

  ScoreMethod& method_;
  TokenFormat format_;
  std::vector<std::string> scores_;  // of each item: the elements of its "continuations"
  // What belongs to the continuation that comes next.
  std::string token_ids_;
  ChatLogprobs logprobs_{format_};
  // By item and index of the continuations that run: the elements of "token_id_logprobs".
  std::map<std::pair<int, int>, std::string> id_logprobs_;
  std::string usage_;
};

class EmbeddingCodec final : public HttpCodec {
 public:
  explicit EmbeddingCodec(EmbedMethod* method) : method_(*method) {}

  absl::Status Decode(const HttpRequest& request) override {
    ASSIGN_OR_RETURN(const nlohmann::json body, ParseBody(request));
    ASSIGN_OR_RETURN(EmbeddingRequest read, ReadEmbedding(body));
    is_base64_ = read.is_base64;
    is_list_ = read.is_list;
    method_.request = std::move(read.message);
    return absl::OkStatus();
  }

  FieldNames Names() const override {
    return {{is_list_ ? "inputs" : "inputs[0]", "input"}, {"dtype", "embed_dtype"}};
  }

  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& items) override {
    const Checkpoint& checkpoint = context->Model().GetCheckpoint();
    const int64_t size = method_.request.apply_head() ? checkpoint.model->NumHeadOutputs()
                                                      : checkpoint.config.hidden_size;
    int64_t num_vectors = 0;
    for (const SubRequest& item : items) {
      const EmbedParams& params = *item.request.Embed();
      const int64_t num_tokens =
          params.positions.empty() ? std::ssize(item.request.prompt) : std::ssize(params.positions);
      num_vectors += (IsPerToken() ? num_tokens : 1) * std::ssize(params.layers);
    }
    if (num_vectors * size > kMaxReplyFloats) {
      return FieldError(
          "input", StrCat("asks for ", num_vectors * size, " numbers in one reply; the limit is ",
                          kMaxReplyFloats, ": send fewer inputs, or use gRPC, which streams"));
    }
    vectors_.resize(items.size());
    return context->HoldReply(num_vectors * size * kBytesPerFloat);
  }

  void OnReply(int /*prompt*/, Message& message) override {
    const auto& reply = static_cast<const v1::EmbedReply&>(message);
    if (reply.has_finished()) {
      usage_ = UsageJson(reply.finished().usage());
      return;
    }
    const v1::EmbeddingVectors& vectors = reply.vectors();
    std::string& json = vectors_[size_t(vectors.input())];
    const auto size = size_t(vectors.size());
    if (method_.request.dtype() == "fp16") {
      std::vector<uint16_t> values(vectors.fp16_values().size() / sizeof(uint16_t));
      std::memcpy(values.data(), vectors.fp16_values().data(), values.size() * sizeof(uint16_t));
      AppendTokens(std::span<const uint16_t>(values), size, &json);
    } else {
      AppendTokens(std::span(vectors.values().data(), size_t(vectors.values_size())), size, &json);
    }
  }

  void OnEnd(const absl::Status& /*status*/) override {
    std::string json =
        StrCat("{\"object\":\"list\",\"model\":", JsonString(ModelName()), ",\"data\":[");
    for (size_t i = 0; i < vectors_.size(); ++i) {
      if (i > 0) json += ',';
      json += StrCat("{\"object\":\"embedding\",\"index\":", i, ",\"embedding\":");
      json += IsPerToken() ? StrCat("[", vectors_[i], "]") : vectors_[i];
      json += '}';
    }
    vectors_ = {};
    json += StrCat("],\"usage\":", usage_, ",\"receipt\":", Receipt(), "}");
    Exchange().Reply({.status = 200, .body = std::move(json)});
  }

 private:
  bool IsPerToken() const { return method_.request.pooling() == v1::POOLING_TOKEN; }

  // A token is a vector, or a list of one for each layer where the request names layers. `Value`:
  // float, or uint16_t, the bits of fp16.
  template <typename Value>
  void AppendTokens(std::span<const Value> values, size_t size, std::string* json) const {
    const auto num_layers = size_t(method_.request.layers_size());
    for (size_t i = 0; i * size < values.size(); ++i) {
      if (!json->empty()) *json += ',';
      if (num_layers > 0 && i % num_layers == 0) *json += '[';
      AppendVector(values.subspan(i * size, size), json);
      if (num_layers > 0 && (i + 1) % num_layers == 0) *json += ']';
    }
  }

  // OpenAI's base64 form: the little-endian bytes of the numbers.
  template <typename Value>
  void AppendVector(std::span<const Value> values, std::string* json) const {
    if (is_base64_) {
      static_assert(std::endian::native == std::endian::little);
      const auto* bytes = reinterpret_cast<const char*>(values.data());
      *json += StrCat("\"", absl::Base64Escape({bytes, values.size_bytes()}), "\"");
    } else if constexpr (std::is_same_v<Value, float>) {
      AppendNumbers(values, json);
    } else {
      std::vector<float> floats;
      for (const uint16_t bits : values) floats.push_back(FloatFromF16(bits));
      AppendNumbers(floats, json);
    }
  }

  EmbedMethod& method_;
  bool is_base64_ = false;
  bool is_list_ = false;              // the body's input
  std::vector<std::string> vectors_;  // of each input: its vectors as JSON, separated by commas
  std::string usage_;
};

// The most weights that the rows may have.
int64_t MaxWeights(const CaptureParams& params) {
  const auto heads = std::ssize(params.layers) * std::ssize(params.heads);
  return std::accumulate(
      params.rows.begin(), params.rows.end(), int64_t{0}, [&](int64_t sum, int32_t row) {
        const int64_t keys = params.top_k > 0 ? std::min(params.top_k, row + 1) : row + 1;
        return sum + heads * keys;
      });
}

void AppendRow(const v1::RowWeights& row, std::string* json) {
  *json += StrCat("{\"layer\":", row.layer(), ",\"head\":", row.head(), ",\"row\":", row.row(),
                  ",\"num_nonzero\":", row.num_nonzero(), ",\"num_zero\":", row.num_zero(),
                  ",\"entropy\":");
  AppendJsonNumber(row.entropy(), json);
  *json += ",\"dropped_mass\":";
  AppendJsonNumber(row.dropped_mass(), json);
  *json += ",\"keys\":";
  AppendNumbers(row.keys(), json);
  *json += ",\"weights\":";
  AppendNumbers(row.weights(), json);
  *json += '}';
}

void AppendStatistics(const v1::HeadStatistics& head, std::string* json) {
  *json += StrCat("{\"layer\":", head.layer(), ",\"head\":", head.head(),
                  ",\"num_rows\":", head.num_rows(), ",\"num_keys\":", head.num_keys(),
                  ",\"num_nonzero\":", head.num_nonzero(), ",\"num_zero\":", head.num_zero(),
                  ",\"effective_keys\":");
  AppendJsonNumber(head.effective_keys(), json);
  *json += ",\"first_token_mass\":";
  AppendJsonNumber(head.first_token_mass(), json);
  *json += ",\"distance_mass\":";
  AppendNumbers(head.distance_mass(), json);
  *json += '}';
}

class AttentionCodec final : public HttpCodec {
 public:
  explicit AttentionCodec(CaptureMethod* method) : method_(*method) {}

  absl::Status Decode(const HttpRequest& request) override {
    ASSIGN_OR_RETURN(const nlohmann::json body, ParseBody(request));
    ASSIGN_OR_RETURN(AttentionRequest read, ReadAttention(body));
    is_stream_ = read.stream;
    is_chat_ = read.message.has_chat();
    method_.request = std::move(read.message);
    return absl::OkStatus();
  }

  FieldNames Names() const override { return PromptNames(is_chat_ ? "messages" : "prompt"); }

  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& items) override {
    const Request& request = items[0].request;
    const CaptureParams& params = *request.Capture();
    const int64_t weights = params.statistics || is_stream_ ? 0 : MaxWeights(params);
    if (weights > kMaxReplyWeights) {
      return FieldError("rows",
                        StrCat("ask for up to ", weights, " weights in one reply; the limit is ",
                               kMaxReplyWeights, ": ask for fewer rows, set top_k, or stream"));
    }
    RETURN_IF_ERROR(context->HoldReply(weights * kBytesPerWeight));
    num_prompt_tokens_ = params.rows.back() + 1;
    return absl::OkStatus();
  }

  bool IsStream() const override { return is_stream_; }

  void OnReply(int /*prompt*/, Message& message) override {
    const auto& reply = static_cast<const v1::CaptureAttentionReply&>(message);
    switch (reply.event_case()) {
      case v1::CaptureAttentionReply::kPrompt: AddPrompt(reply.prompt()); return;
      case v1::CaptureAttentionReply::kWeights: AddRows(reply.weights()); return;
      case v1::CaptureAttentionReply::kStatistics:
        for (const v1::HeadStatistics& head : reply.statistics().heads()) {
          statistics_ += statistics_.empty() ? '[' : ',';
          AppendStatistics(head, &statistics_);
        }
        return;
      case v1::CaptureAttentionReply::kFinished:
        if (!statistics_.empty()) statistics_ += ']';
        usage_ = UsageJson(reply.finished().usage());
        return;
      default: return;
    }
  }

  void OnEnd(const absl::Status& status) override {
    const std::string end = StrCat("\"usage\":", usage_, ",\"receipt\":", Receipt(), "}");
    if (!Exchange().HasStarted()) {
      Exchange().Reply(
          {.status = 200,
           .body = StrCat(Head(), ",\"rows\":[", rows_, "]",
                          statistics_.empty() ? "" : ",\"statistics\":", statistics_, ",", end)});
      rows_ = {};
      return;
    }
    if (status.ok()) {
      if (!statistics_.empty()) SendEvent(StrCat("{\"statistics\":", statistics_, "}"));
      Exchange().Send(StrCat("data: {", end, "\n\ndata: [DONE]\n\n"));
    } else {
      SendEvent(ErrorJson(status));
    }
    Exchange().EndStream();
  }

 private:
  // {"id", "object", "model", ..., "tokens": the fields of the whole reply and of its first event,
  // open.
  std::string Head() const {
    const Checkpoint& checkpoint = Context().Model().GetCheckpoint();
    return StrCat("{\"id\":\"attn-", Context().RequestId(),
                  "\",\"object\":\"attention\",\"model\":", JsonString(ModelName()),
                  ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\",\"tokens\":[", tokens_,
                  "]");
  }
  void SendEvent(const std::string& json) { Exchange().Send(StrCat("data: ", json, "\n\n")); }

  void AddPrompt(const v1::PromptTokens& prompt) {
    const TokenFormat format{.checkpoint = &Context().Model().GetCheckpoint()};
    for (const v1::TokenLogprob& token : prompt.tokens()) {
      if (!tokens_.empty()) tokens_ += ',';
      tokens_ += StrCat("{\"id\":", token.id(), ",\"token\":");
      AppendJsonString(format.Label(token.id()), &tokens_);
      tokens_ += '}';
    }
    const bool is_last = prompt.first() + prompt.tokens_size() == num_prompt_tokens_;
    if (!is_stream_ || !is_last) return;
    Exchange().BeginStream();
    SendEvent(Head() + "}");
    tokens_ = {};
  }

  void AddRows(const v1::AttentionWeights& weights) {
    std::string json;
    for (const v1::RowWeights& row : weights.rows()) {
      if (!json.empty()) json += ',';
      AppendRow(row, &json);
    }
    if (is_stream_) {
      SendEvent(StrCat("{\"rows\":[", json, "]}"));
    } else {
      if (!rows_.empty() && !json.empty()) rows_ += ',';
      rows_ += json;
    }
  }

  CaptureMethod& method_;
  bool is_stream_ = false;
  bool is_chat_ = false;
  int num_prompt_tokens_ = 0;  // up to the last captured row
  std::string tokens_;         // of the prompt as JSON, separated by commas
  std::string rows_;           // of the whole reply: its rows as JSON, separated by commas
  std::string statistics_;     // the heads' statistics as a JSON list; empty: not asked for
  std::string usage_;
};

// Every such path. A new one is a row here, its codec, and its entry in openapi.json.
constexpr ListPath kListPaths[] = {
    {"/v1/score", "POST /v1/score", CallKind::kScore, &MakeHttpMethod<ScoreCodec, ScoreMethod>},
    {"/v1/embeddings", "POST /v1/embeddings", CallKind::kEmbed,
     &MakeHttpMethod<EmbeddingCodec, EmbedMethod>},
    {"/v1/attention", "POST /v1/attention", CallKind::kCapture,
     &MakeHttpMethod<AttentionCodec, CaptureMethod>},
};

}  // namespace

std::span<const ListPath> ListPaths() { return kListPaths; }

}  // namespace lssar

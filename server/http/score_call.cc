#include "server/http/score_call.h"

#include <nlohmann/json.hpp>
#include <utility>

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

// A continuation as JSON, without the log-probabilities of its tokens; in round figures.
constexpr int64_t kBytesPerScore = 128;

}  // namespace

absl::StatusOr<std::vector<EngineCall::Item>> HttpScoreCall::Parse() {
  const ServedModel& model = context_.Model();
  const ParseContext context = context_.MakeParseContext();
  v1::ScoreRequest message;
  {
    ASSIGN_OR_RETURN(const nlohmann::json body,
                     ParseJson(exchange_->Request().body, context.should_stop));
    ASSIGN_OR_RETURN(message, ReadScore(body, model.GetCheckpoint()));
  }
  auto parsed = ParseScore(message, context);
  if (!parsed.ok()) return WithHttpNames(parsed.status(), "items");
  format_ = {.checkpoint = &model.GetCheckpoint()};
  per_token_ = parsed->per_token;
  num_top_ = message.top_logprobs();
  item_indices_ = std::move(parsed->item_indices);
  scores_.resize(size_t(message.items_size()));
  std::vector<Item> items;
  int64_t num_scores = 0, num_tokens = 0;
  for (Request& request : parsed->items) {
    num_scores += std::ssize(request.score->continuations);
    for (const auto& continuation : request.score->continuations) {
      num_tokens += std::ssize(continuation);
    }
    items.push_back({.request = std::move(request)});
  }
  const int64_t num_logprobs = per_token_ ? num_tokens * (1 + num_top_) : 0;
  RETURN_IF_ERROR(CheckReplyLogprobs("logprobs", num_logprobs, "send fewer items"));
  RETURN_IF_ERROR(context_.HoldReply(num_scores * kBytesPerScore +
                                     num_logprobs * ChatLogprobs::kBytesPerLogprob));
  return items;
}

void HttpScoreCall::OnScore(int item, ContinuationScore score) {
  std::string& list = scores_[size_t(item_indices_[size_t(item)])];
  if (!list.empty()) list += ',';
  size_t num_bytes = 0;
  if (format_.GetTokenizer() != nullptr) {
    for (const TokenResult& token : score.tokens) {
      num_bytes += format_.GetTokenizer()->PieceBytes(token.id).size();
    }
  }
  list += StrCat("{\"index\":", score.index, ",\"logprob\":");
  AppendJsonNumber(score.logprob, &list);
  list += StrCat(",\"is_greedy\":", score.is_greedy ? "true" : "false",
                 ",\"num_tokens\":", score.tokens.size(), ",\"num_bytes\":", num_bytes);
  if (per_token_) {
    list += ",\"token_ids\":[";
    ChatLogprobs tokens(format_);
    for (const TokenResult& token : score.tokens) {
      if (list.back() != '[') list += ',';
      AppendJsonNumber(token.id, &list);
      tokens.Add(token, num_top_);
    }
    list += "],\"logprobs\":";
    tokens.Take(&list);
  }
  list += '}';
}

void HttpScoreCall::OnEnd(const absl::Status& /*status*/, const RequestStats& total) {
  const Checkpoint& checkpoint = context_.Model().GetCheckpoint();
  std::string json = StrCat("{\"id\":\"score-", context_.RequestId(),
                            "\",\"object\":\"list\",\"model\":", JsonString(checkpoint.name),
                            ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\",\"data\":[");
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (i > 0) json += ',';
    json += StrCat("{\"index\":", i, ",\"object\":\"score\",\"continuations\":[", scores_[i], "]}");
  }
  scores_ = {};
  json += StrCat("],\"usage\":", UsageJson(total), ",\"receipt\":", Receipt(), "}");
  exchange_->Reply({.status = 200, .body = std::move(json)});
}

}  // namespace lssar

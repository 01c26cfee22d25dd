#include "server/grpc/score_call.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/api/reply_fields.h"
#include "server/grpc/adapter.h"
#include "server/served_model.h"

namespace lssar {

class ScoreCall::ScoreSink final : public ItemSink {
 public:
  using ItemSink::ItemSink;
  void OnScore(ContinuationScore score) override {
    auto& call = static_cast<ScoreCall&>(Call());
    call.SendScore(call.item_indices_[size_t(Item())], score);
  }
};

absl::Status ScoreCall::Start(const grpc::ByteBuffer& bytes) {
  v1::ScoreRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = context_.Model();
  ASSIGN_OR_RETURN(ParsedScore parsed, ParseScore(message, context_.MakeParseContext()));
  tokenizer_ = model.GetCheckpoint().tokenizer.get();
  per_token_ = parsed.per_token;
  item_indices_ = std::move(parsed.item_indices);
  SubmitItems(std::move(parsed.items));
  return absl::OkStatus();
}

std::shared_ptr<OutputSink> ScoreCall::MakeSink(int item) {
  return std::make_shared<ScoreSink>(std::static_pointer_cast<ScoreCall>(shared_from_this()), item);
}

void ScoreCall::SendFinished(const RequestStats& total) {
  v1::ScoreReply reply;
  v1::ScoreFinished& finished = *reply.mutable_finished();
  finished.set_checkpoint_hash(context_.Model().GetCheckpoint().hash);
  *finished.mutable_usage() = ToUsage(total);
  *finished.mutable_timings() = ToTimings(total);
  *finished.mutable_receipt() = Receipt();
  Send(std::move(reply));
}

void ScoreCall::SendScore(int item, const ContinuationScore& score) {
  int num_bytes = 0;
  for (const TokenResult& token : score.tokens) {
    if (tokenizer_ != nullptr) num_bytes += int(tokenizer_->PieceBytes(token.id).size());
  }
  const size_t num_tokens = score.tokens.size();
  ForEachBlock(per_token_ ? num_tokens : 0, [&](size_t first, size_t end) {
    v1::ScoreReply reply;
    v1::ScoreTokens& block = *reply.mutable_tokens();
    block.set_item(item);
    block.set_continuation(score.index);
    block.set_first(int(first));
    for (size_t i = first; i < end; ++i) {
      *block.add_tokens() = ToToken(score.tokens[i], /*with_logprob=*/true, tokenizer_);
    }
    Send(std::move(reply));
  });
  v1::ScoreReply reply;
  v1::ContinuationScore& sum = *reply.mutable_score();
  sum.set_item(item);
  sum.set_continuation(score.index);
  sum.set_logprob(score.logprob);
  sum.set_num_tokens(int(num_tokens));
  sum.set_num_bytes(num_bytes);
  sum.set_is_greedy(score.is_greedy);
  Send(std::move(reply));
}

}  // namespace lssar

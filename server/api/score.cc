#include "server/api/score.h"

#include <algorithm>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/loaded_model.h"

namespace lssar {

absl::StatusOr<std::vector<SubRequest>> ScoreMethod::Parse() {
  ASSIGN_OR_RETURN(ParsedScore parsed, ParseScore(request, Context().MakeParseContext()));
  tokenizer_ = Context().Model().GetCheckpoint().tokenizer.get();
  item_indices_ = std::move(parsed.item_indices);
  errors_ = std::move(parsed.errors);
  request.clear_items();  // frees the memory: the parsed items are what remains of them
  Context().AddLogFields({{"num_items", parsed.items.size()}});
  if (!errors_.empty()) Context().AddLogFields({{"num_bad_items", errors_.size()}});
  return Items(std::move(parsed.items));
}

void ScoreMethod::SendLogprobs(int item, const LogprobBlock& block) {
  const auto size = size_t(block.size);
  const size_t num_positions = block.values.size() / size;
  const size_t positions_per_message = std::max(size_t{1}, limits::kMaxFloatsPerMessage / size);
  for (size_t first = 0; first < num_positions; first += positions_per_message) {
    const size_t end = std::min(num_positions, first + positions_per_message);
    v1::ScoreReply reply;
    v1::ScoreLogprobs& logprobs = *reply.mutable_logprobs();
    logprobs.set_item(item);
    logprobs.set_continuation(block.index);
    logprobs.set_first(block.first + int(first));
    logprobs.set_size(block.size);
    logprobs.mutable_values()->Add(block.values.begin() + std::ptrdiff_t(first * size),
                                   block.values.begin() + std::ptrdiff_t(end * size));
    Send(std::move(reply));
  }
}

void ScoreMethod::OnResult(int item, EngineResult result) {
  if (const auto* logprobs = std::get_if<LogprobBlock>(&result)) {
    return SendLogprobs(item_indices_[size_t(item)], *logprobs);
  }
  const auto& score = std::get<ContinuationScore>(result);
  const int index = item_indices_[size_t(item)];
  int num_bytes = 0;
  for (const TokenResult& token : score.tokens) {
    if (tokenizer_ != nullptr) num_bytes += int(tokenizer_->PieceBytes(token.id).size());
  }
  const size_t num_tokens = score.tokens.size();
  ForEachBlock(request.per_token() ? num_tokens : 0, [&](size_t first, size_t end) {
    v1::ScoreReply reply;
    v1::ScoreTokens& block = *reply.mutable_tokens();
    block.set_item(index);
    block.set_continuation(score.index);
    block.set_first(int(first));
    for (size_t i = first; i < end; ++i) {
      *block.add_tokens() = ToToken(score.tokens[i], /*with_logprob=*/true, tokenizer_);
    }
    Send(std::move(reply));
  });
  v1::ScoreReply reply;
  v1::ContinuationScore& sum = *reply.mutable_score();
  sum.set_item(index);
  sum.set_continuation(score.index);
  sum.set_logprob(score.logprob);
  sum.set_num_tokens(int(num_tokens));
  sum.set_num_bytes(num_bytes);
  sum.set_is_greedy(score.is_greedy);
  Send(std::move(reply));
}

void ScoreMethod::OnEnd(const absl::Status& status, const RequestStats& total) {
  if (!status.ok()) return;
  for (const auto& [item, problem] : errors_) {
    v1::ScoreReply reply;
    v1::ScoreError& error = *reply.mutable_error();
    error.set_item(item);
    error.set_code(int(problem.code()));
    error.set_message(
        Shorten({problem.message().data(), problem.message().size()}, limits::kMaxErrorBytes));
    Send(std::move(reply));
  }
  v1::ScoreReply reply;
  reply.mutable_finished()->set_checkpoint_hash(Context().Model().GetCheckpoint().hash);
  SetFinished(total, reply.mutable_finished());
  Send(std::move(reply));
}

}  // namespace lssar

#include "server/score_call.h"

#include <algorithm>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "runtime/sequence.h"
#include "server/grpc_adapter.h"
#include "server/limits.h"
#include "server/parse_request.h"
#include "server/reply_fields.h"
#include "server/served_model.h"

namespace lssar {

// Forwards the results of one item to the call. Engine thread.
class ScoreCall::ItemSink final : public OutputSink {
 public:
  ItemSink(std::shared_ptr<ScoreCall> call, int item) : call_(std::move(call)), item_(item) {}

  bool IsWritable() const override { return call_->HasSpace(); }
  void OnAdmitted(const RequestStats& stats) override {
    call_->context_.GetMetrics().OnAdmitted(stats);
  }
  void OnScore(ContinuationScore score) override { call_->SendScore(item_, score); }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    call_->OnItemDone(item_, status, stats);
  }

 private:
  const std::shared_ptr<ScoreCall> call_;
  const int item_;
};

absl::Status ScoreCall::Start(const grpc::ByteBuffer& bytes) {
  v1::ScoreRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = context_.Model();
  ASSIGN_OR_RETURN(ParsedScore parsed, ParseScore(message, ContextOf(model)));
  tokenizer_ = model.GetCheckpoint().tokenizer.get();
  per_token_ = parsed.per_token;
  items_ = std::move(parsed.items);
  context_.AddLogFields({{"num_items", items_.size()}});
  for (const Request& item : items_) context_.CountTokens(NumPromptTokens(item));
  SubmitMore();
  return absl::OkStatus();
}

void ScoreCall::SubmitMore() {
  absl::Status end;
  {
    const std::lock_guard lock(items_mutex_);
    while (error_.ok() && retry_ == nullptr && next_item_ < items_.size() &&
           in_flight_.size() < kMaxItemsInFlight && HasSpace()) {
      const absl::Status status = SubmitNext();
      if (status.ok()) continue;
      // Only the first item may be rejected; once it is accepted, later items wait for capacity.
      const bool is_waiting = absl::IsResourceExhausted(status) && next_item_ > 0;
      if (!is_waiting) {
        error_ = status;
      } else if (in_flight_.empty()) {
        RetryLater();
      }
      break;
    }
    const bool is_over = in_flight_.empty() && (!error_.ok() || next_item_ == items_.size());
    if (!is_over || has_ended_) return;
    has_ended_ = true;
    end = error_;
    context_.SetResult(total_, std::nullopt);
  }
  if (end.ok()) {
    v1::ScoreReply reply;
    v1::ScoreFinished& finished = *reply.mutable_finished();
    finished.set_checkpoint_hash(context_.Model().GetCheckpoint().hash);
    *finished.mutable_usage() = ToUsage(total_);
    *finished.mutable_timings() = ToTimings(total_);
    Send(std::move(reply));
  }
  End(std::move(end));
}

absl::Status ScoreCall::SubmitNext() {
  Request request = items_[next_item_];
  request.id = StrCat(context_.RequestId(), "/", next_item_);
  request.deadline = context_.Deadline();
  const int item = int(next_item_);
  auto self = std::static_pointer_cast<ScoreCall>(shared_from_this());
  ASSIGN_OR_RETURN(in_flight_[item],
                   context_.Model().GetEngine().Submit(
                       std::move(request), std::make_shared<ItemSink>(std::move(self), item)));
  items_[next_item_] = Request();  // frees the memory: the engine has its own copy
  ++next_item_;
  return absl::OkStatus();
}

void ScoreCall::RetryLater() {
  retry_ = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  auto weak = weak_from_this();
  retry_->Set(std::chrono::system_clock::now() + kRetryInterval, [weak](bool) {
    const auto call = std::static_pointer_cast<ScoreCall>(weak.lock());
    if (call == nullptr) return;
    {
      const std::lock_guard lock(call->items_mutex_);
      call->retry_.reset();
    }
    call->SubmitMore();
  });
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

void ScoreCall::OnItemDone(int item, const absl::Status& status, const RequestStats& stats) {
  {
    const std::lock_guard lock(items_mutex_);
    in_flight_.erase(item);
    AddStats(stats, &total_);
    if (!status.ok() && error_.ok()) {
      error_ = status;
      for (const auto& [other, handle] : in_flight_) handle.Cancel();
    }
  }
  SubmitMore();
}

void ScoreCall::OnSpace() {
  {
    const std::lock_guard lock(items_mutex_);
    for (const auto& [item, handle] : in_flight_) handle.Resume();
  }
  SubmitMore();
}

void ScoreCall::OnClientGone() {
  {
    const std::lock_guard lock(items_mutex_);
    if (error_.ok()) error_ = absl::CancelledError("the client closed the call");
    for (const auto& [item, handle] : in_flight_) handle.Cancel();
  }
  SubmitMore();
}

}  // namespace lssar

#include "server/score_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/str_cat.h"
#include "runtime/request.h"
#include "server/fields.h"
#include "server/limits.h"
#include "server/parse_request.h"
#include "server/reply_fields.h"
#include "server/served_model.h"
#include "server/wire.h"

namespace lssar {

// Carries one item's results to the call. Engine thread.
class ScoreStream::ItemSink final : public OutputSink {
 public:
  ItemSink(std::shared_ptr<ScoreStream> stream, int item)
      : stream_(std::move(stream)), item_(item) {}

  bool IsWritable() const override { return stream_->HasSpace(); }
  void OnAdmitted(const RequestStats& stats) override {
    stream_->record_.GetMetrics().OnAdmitted(stats);
  }
  void OnScore(ContinuationScore score) override { stream_->SendScore(item_, score); }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    stream_->OnItemDone(item_, status, stats);
  }

 private:
  const std::shared_ptr<ScoreStream> stream_;
  const int item_;
};

void ScoreStream::Begin(const grpc::ByteBuffer& bytes) {
  KeepAlive();
  if (absl::Status status = Submit(bytes); !status.ok()) {
    End(std::move(status));
  } else {
    SubmitMore();
  }
}

absl::Status ScoreStream::Submit(const grpc::ByteBuffer& bytes) {
  RETURN_IF_ERROR(Enter());
  v1::ScoreRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = record_.Model();
  auto call = ParseScore(
      message,
      {.checkpoint = &model.GetCheckpoint(), .max_model_len = model.MaxModelLen(), .any_seed = 0});
  if (!call.ok()) return call.status();
  tokenizer_ = model.GetCheckpoint().tokenizer.get();
  per_token_ = call->per_token;
  items_ = std::move(call->items);
  record_.Note({{"num_items", items_.size()}});
  for (const Request& item : items_) record_.CountTokens(NumPromptTokens(item));
  return absl::OkStatus();
}

void ScoreStream::SubmitMore() {
  absl::Status end;
  {
    const std::lock_guard lock(items_mutex_);
    while (error_.ok() && retry_ == nullptr && next_item_ < items_.size() &&
           in_flight_.size() < kMaxItemsInFlight && HasSpace()) {
      const absl::Status status = SubmitNext();
      if (status.ok()) continue;
      // Once an item is in, the call has a claim: the others wait for room.
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
    record_.NoteRequest(total_, std::nullopt);
  }
  if (end.ok()) {
    v1::ScoreReply reply;
    v1::ScoreFinished& finished = *reply.mutable_finished();
    finished.set_checkpoint_hash(record_.Model().GetCheckpoint().hash);
    *finished.mutable_usage() = ToUsage(total_);
    *finished.mutable_timings() = ToTimings(total_);
    Send(std::move(reply));
  }
  End(std::move(end));
}

absl::Status ScoreStream::SubmitNext() {
  Request request = items_[next_item_];
  request.id = StrCat(record_.Id(), "/", next_item_);
  request.deadline = record_.Deadline();
  const int item = static_cast<int>(next_item_);
  auto self = std::static_pointer_cast<ScoreStream>(shared_from_this());
  auto handle = record_.Model().GetEngine().Submit(
      std::move(request), std::make_shared<ItemSink>(std::move(self), item));
  if (!handle.ok()) return handle.status();
  in_flight_.emplace(item, *std::move(handle));
  items_[next_item_] = Request();  // its memory is the engine's now
  ++next_item_;
  return absl::OkStatus();
}

void ScoreStream::RetryLater() {
  retry_ = std::make_unique<grpc::Alarm>();
  // Weak: the alarm belongs to the stream, which lives until it has ended.
  auto weak = weak_from_this();
  retry_->Set(std::chrono::system_clock::now() + kRetryPause, [weak](bool) {
    const auto stream = std::static_pointer_cast<ScoreStream>(weak.lock());
    if (stream == nullptr) return;
    {
      const std::lock_guard lock(stream->items_mutex_);
      stream->retry_.reset();
    }
    stream->SubmitMore();
  });
}

void ScoreStream::SendScore(int item, const ContinuationScore& score) {
  int num_bytes = 0;
  for (const TokenResult& token : score.tokens) {
    if (tokenizer_ != nullptr)
      num_bytes += static_cast<int>(tokenizer_->PieceBytes(token.id).size());
  }
  const size_t num_tokens = score.tokens.size();
  for (size_t first = 0; per_token_ && first < num_tokens; first += limits::kMaxTokensPerMessage) {
    v1::ScoreReply reply;
    v1::ScoreTokens& block = *reply.mutable_tokens();
    block.set_item(item);
    block.set_continuation(score.index);
    block.set_first(static_cast<int>(first));
    const size_t end = std::min(num_tokens, first + limits::kMaxTokensPerMessage);
    for (size_t i = first; i < end; ++i) {
      *block.add_tokens() = ToToken(score.tokens[i], /*with_logprob=*/true, tokenizer_);
    }
    Send(std::move(reply));
  }
  v1::ScoreReply reply;
  v1::ContinuationScore& sum = *reply.mutable_score();
  sum.set_item(item);
  sum.set_continuation(score.index);
  sum.set_logprob(score.logprob);
  sum.set_num_tokens(static_cast<int>(num_tokens));
  sum.set_num_bytes(num_bytes);
  sum.set_is_greedy(score.is_greedy);
  Send(std::move(reply));
}

void ScoreStream::OnItemDone(int item, const absl::Status& status, const RequestStats& stats) {
  {
    const std::lock_guard lock(items_mutex_);
    in_flight_.erase(item);
    AddStats(stats, total_);
    if (!status.ok() && error_.ok()) {
      error_ = status;
      for (const auto& [other, handle] : in_flight_) handle.Cancel();
    }
  }
  SubmitMore();
}

void ScoreStream::OnSpace() {
  {
    const std::lock_guard lock(items_mutex_);
    for (const auto& [item, handle] : in_flight_) handle.Resume();
  }
  SubmitMore();
}

void ScoreStream::OnClientGone() {
  {
    const std::lock_guard lock(items_mutex_);
    if (error_.ok()) error_ = absl::CancelledError("the client has gone");
    for (const auto& [item, handle] : in_flight_) handle.Cancel();
  }
  SubmitMore();
}

}  // namespace lssar

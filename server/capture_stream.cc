#include "server/capture_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "runtime/limits.h"
#include "server/fields.h"
#include "server/parse_request.h"
#include "server/reply_fields.h"
#include "server/served_model.h"
#include "server/wire.h"

namespace lssar {

void CaptureStream::Begin(const grpc::ByteBuffer& bytes) {
  KeepAlive();
  if (absl::Status status = Submit(bytes); !status.ok()) End(std::move(status));
}

absl::Status CaptureStream::Submit(const grpc::ByteBuffer& bytes) {
  const auto cut = [weak = weak_from_this()](const absl::Status& reason) {
    if (const auto stream = std::static_pointer_cast<CaptureStream>(weak.lock())) {
      stream->End(reason);
    }
  };
  LSSAR_RETURN_IF_ERROR(record_.Enter(KeyRole::kUser, cut));
  LSSAR_RETURN_IF_ERROR(record_.Model().GetEngine().CheckRoom());
  v1::CaptureAttentionRequest message;
  LSSAR_RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = record_.Model();
  auto request = ParseCapture(
      message,
      {.checkpoint = &model.GetCheckpoint(), .max_context = model.MaxContext(), .any_seed = 0});
  if (!request.ok()) return request.status();
  const CaptureParams& params = *request->capture;
  record_.Note({{"num_rows", params.rows.size()},
                {"num_heads", params.layers.size() * params.heads.size()}});
  record_.CountTokens(std::ssize(request->prompt));
  request->id = record_.Id();
  request->deadline = record_.Deadline();
  prompt_ = request->prompt;
  prompt_.resize(size_t(params.rows.back()) + 1);
  auto self = std::static_pointer_cast<CaptureStream>(shared_from_this());
  const std::lock_guard lock(handle_mutex_);
  auto handle = model.GetEngine().Submit(*std::move(request), std::move(self));
  if (handle.ok()) handle_ = *std::move(handle);
  return handle.status();
}

void CaptureStream::OnAdmitted(const RequestStats& stats) {
  record_.GetMetrics().OnAdmitted(stats);
  v1::CaptureAttentionReply reply;
  v1::CaptureStarted& started = *reply.mutable_started();
  started.set_request_id(record_.Id());
  started.set_checkpoint_hash(record_.Model().GetCheckpoint().hash);
  started.set_num_prompt_tokens(stats.num_prompt_tokens);
  started.set_num_cached_tokens(stats.num_cached_tokens);
  Send(std::move(reply));
  SendPrompt();
}

void CaptureStream::SendPrompt() {
  const Tokenizer* const tokenizer = record_.Model().GetCheckpoint().tokenizer.get();
  for (size_t first = 0; first < prompt_.size(); first += limits::kMaxTokensPerMessage) {
    v1::CaptureAttentionReply reply;
    v1::PromptTokens& block = *reply.mutable_prompt();
    block.set_first(static_cast<int>(first));
    const size_t end = std::min(prompt_.size(), first + limits::kMaxTokensPerMessage);
    for (size_t i = first; i < end; ++i) {
      const TokenResult token = {.id = prompt_[i]};
      *block.add_tokens() =
          std::move(*ToToken(token, /*with_logprob=*/false, tokenizer).mutable_token());
    }
    Send(std::move(reply));
  }
}

void CaptureStream::OnPromptLogprobs(PromptDelta) {
  LSSAR_CHECK(false && "a capture has no log-probabilities");
}
void CaptureStream::OnTokens(GenerateDelta) { LSSAR_CHECK(false && "a capture has no deltas"); }
void CaptureStream::OnScore(ContinuationScore) { LSSAR_CHECK(false && "a capture has no scores"); }

void CaptureStream::OnWeights(std::vector<RowWeights> rows) {
  size_t num_keys = 0;
  v1::CaptureAttentionReply reply;
  for (const RowWeights& row : rows) {
    *reply.mutable_weights()->add_rows() = ToRowWeights(row);
    num_keys += row.keys.size();
    const bool is_full = num_keys >= limits::kMaxKeysPerMessage ||
                         reply.weights().rows_size() == limits::kMaxTokensPerMessage;
    if (!is_full && &row != &rows.back()) continue;
    Send(std::exchange(reply, {}));
    num_keys = 0;
  }
}

void CaptureStream::OnDone(const absl::Status& status, const RequestStats& stats) {
  record_.NoteRequest(stats, std::nullopt);
  if (status.ok()) {
    v1::CaptureAttentionReply reply;
    *reply.mutable_finished()->mutable_usage() = ToUsage(stats);
    *reply.mutable_finished()->mutable_timings() = ToTimings(stats);
    Send(std::move(reply));
  }
  End(status);
}

void CaptureStream::OnSpace() {
  const std::lock_guard lock(handle_mutex_);
  if (handle_) handle_->Resume();
}

void CaptureStream::OnClientGone() {
  const std::lock_guard lock(handle_mutex_);
  if (handle_) handle_->Cancel();
}

}  // namespace lssar

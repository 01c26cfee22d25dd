#include "server/grpc/generate_call.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/api/reply_fields.h"
#include "server/config/limits.h"
#include "server/grpc/adapter.h"

namespace lssar {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

v1::FinishReason ToFinishReason(FinishReason reason) {
  switch (reason) {
    case FinishReason::kEos: return v1::FINISH_REASON_EOS;
    case FinishReason::kStopString: return v1::FINISH_REASON_STOP_STRING;
    case FinishReason::kStopId: return v1::FINISH_REASON_STOP_TOKEN;
    case FinishReason::kLength: return v1::FINISH_REASON_LENGTH;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// Appends `later` to `delta`.
void AppendDelta(v1::Delta* later, v1::Delta* delta) {
  delta->mutable_text()->append(later->text());
  for (v1::Token& token : *later->mutable_tokens()) *delta->add_tokens() = std::move(token);
  if (later->finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    delta->set_finish_reason(later->finish_reason());
    delta->set_stop_string(later->stop_string());
  }
}

}  // namespace

absl::StatusOr<Request> GenerateCall::Parse(const grpc::ByteBuffer& bytes) {
  v1::GenerateRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  const ServedModel& model = context_.Model();
  // Not moved out of the StatusOr: GCC 12 then warns of uninitialized fields.
  auto parsed = ParseGenerate(message, context_.MakeParseContext(RandomSeed()));
  RETURN_IF_ERROR(parsed.status());
  const GenerateParams& params = *parsed->request.generate;
  tokenizer_ = model.GetCheckpoint().tokenizer.get();
  stream_interval_ = parsed->stream_interval;
  wants_logprobs_ = params.num_logprobs >= 0;
  seed_ = params.sampling.seed;
  pending_.resize(size_t(params.num_choices));
  last_token_at_.resize(size_t(params.num_choices));
  for (PendingDelta& pending : pending_) pending.delta.set_text(parsed->echo);
  return std::move(parsed->request);
}

void GenerateCall::OnAdmitted(const RequestStats& stats) {
  context_.GetMetrics().OnAdmitted(stats);
  v1::GenerateReply reply;
  SetStarted(stats, reply.mutable_started());
  reply.mutable_started()->set_seed(seed_);
  Send(std::move(reply));
}

void GenerateCall::OnPromptLogprobs(PromptDelta delta) {
  ForEachBlock(delta.tokens.size(), [&](size_t first, size_t end) {
    v1::GenerateReply reply;
    v1::PromptLogprobs& block = *reply.mutable_prompt_logprobs();
    block.set_first(delta.first + int(first));
    for (size_t i = first; i < end; ++i) {
      *block.add_tokens() = ToToken(delta.tokens[i], /*with_logprob=*/true, tokenizer_);
    }
    Send(std::move(reply));
  });
}

void GenerateCall::ObserveLatency(const GenerateDelta& delta) {
  if (delta.tokens.empty()) return;
  const Clock::time_point now = Clock::now();
  Clock::time_point& last = last_token_at_[size_t(delta.choice)];
  if (last != Clock::time_point()) {
    context_.GetMetrics().OnNextTokens(int(delta.tokens.size()), now - last);
  } else if (!has_token_) {
    has_token_ = true;
    context_.GetMetrics().OnFirstToken(context_.Elapsed());
  }
  last = now;
}

void GenerateCall::OnTokens(GenerateDelta delta) {
  ObserveLatency(delta);
  context_.CountTokens(std::ssize(delta.tokens));
  PendingDelta& pending = pending_[size_t(delta.choice)];
  pending.delta.set_choice(delta.choice);
  pending.delta.mutable_text()->append(delta.text);
  for (const TokenResult& token : delta.tokens) {
    *pending.delta.add_tokens() = ToToken(token, wants_logprobs_, tokenizer_);
  }
  if (delta.finish) {
    finish_ = delta.finish;
    pending.delta.set_finish_reason(ToFinishReason(*delta.finish));
    pending.delta.set_stop_string(delta.stop_string);
  }
  if (++pending.num_steps == stream_interval_ || delta.finish) SendPending(&pending);
}

void GenerateCall::OnDone(const absl::Status& status, const RequestStats& stats) {
  context_.SetResult(stats, finish_);
  for (PendingDelta& pending : pending_) {
    if (pending.num_steps > 0) SendPending(&pending);
  }
  EndWith<v1::GenerateReply>(status, stats);
}

void GenerateCall::SendPending(PendingDelta* pending) {
  v1::GenerateReply reply;
  reply.mutable_delta()->Swap(&pending->delta);
  *pending = {};
  Send(std::move(reply));
}

GenerateCall::BufferedReply* GenerateCall::Merge(std::deque<BufferedReply>& buffer,
                                                 google::protobuf::Message& reply) {
  const auto as_reply = [](google::protobuf::Message& message) -> v1::GenerateReply& {
    return static_cast<v1::GenerateReply&>(message);
  };
  if (!as_reply(reply).has_delta()) return nullptr;
  v1::Delta& delta = *as_reply(reply).mutable_delta();
  const auto same_choice =
      std::find_if(buffer.rbegin(), buffer.rend(), [&](const BufferedReply& other) {
        const v1::GenerateReply& before = as_reply(*other.reply);
        return before.has_delta() && before.delta().choice() == delta.choice();
      });
  if (same_choice == buffer.rend()) return nullptr;
  v1::Delta& before = *as_reply(*same_choice->reply).mutable_delta();
  if (before.tokens_size() + delta.tokens_size() > limits::kMaxTokensPerMessage) return nullptr;
  AppendDelta(&delta, &before);
  return &*same_choice;
}

}  // namespace lssar

#include "server/api/generate.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/parse_request.h"
#include "server/loaded_model.h"

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
    case FinishReason::kComplete: return v1::FINISH_REASON_COMPLETE;
    case FinishReason::kDeadEnd: return v1::FINISH_REASON_DEAD_END;
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

absl::StatusOr<std::vector<SubRequest>> GenerateMethod::Parse() {
  tokenizer_ = Context().Model().GetCheckpoint().tokenizer.get();
  if (!prompts.empty() && prompts.front().has_chat()) Context().SetChat();
  std::vector<SubRequest> items;
  for (size_t i = 0; i < prompts.size(); ++i) {
    last_parsed_ = int(i);
    RETURN_IF_ERROR(Context().CheckStop());
    if (i > 0) {  // they are the first one's: read once, and shared
      prompts[i].clear_attention_override();
      prompts[i].clear_steering();
    }
    ASSIGN_OR_RETURN(SubRequest item, ParsePrompt(prompts[i]));
    if (i > 0) {
      item.request.attention = items.front().request.attention;
      item.request.steering = items.front().request.steering;
    }
    items.push_back(std::move(item));
  }
  SetReceipt(items.front().request);
  if (items.size() > 1) Context().AddLogFields({{"num_items", items.size()}});
  prompts = {};
  return items;
}

absl::StatusOr<SubRequest> GenerateMethod::ParsePrompt(const v1::GenerateRequest& prompt) {
  ParseContext context = Context().MakeParseContext(RandomSeed());
  context.default_max_tokens = default_max_tokens;
  context.only_prompt = only_prompts;
  // Not moved out of the StatusOr: GCC 12 then warns of uninitialized fields.
  auto parsed = ParseGenerate(prompt, context);
  RETURN_IF_ERROR(parsed.status());
  const GenerateParams& params = *parsed->request.Generate();
  num_choices_ = params.num_choices;
  stream_interval_ = parsed->stream_interval;
  wants_logprobs_ = params.num_logprobs >= 0;
  seeds_.push_back(params.sampling.seed);
  num_echo_bytes_ += num_choices_ * std::ssize(parsed->echo);
  if (num_echo_bytes_ > limits::kMaxMessageBytes) {
    return FieldError("echo", StrCat("is true, and n times all prompts have ", num_echo_bytes_,
                                     " bytes; they may have ", limits::kMaxMessageBytes));
  }
  for (int i = 0; i < num_choices_; ++i) {
    choices_.emplace_back().pending.set_text(parsed->echo);
    choices_.back().pending.set_choice(i);
  }

  SubRequest item{.request = std::move(parsed->request)};
  if (!only_prompts) return item;
  finish_ = FinishReason::kLength;
  std::vector<int32_t>& ids = item.request.prompt;
  const int num_logprobs = item.request.Generate()->num_prompt_logprobs;
  if (num_logprobs < 0 || ids.size() == 1) {
    item.known = RequestStats{.num_prompt_tokens = int(ids.size())};
    return item;
  }
  item.request.params =
      ScoreParams{.continuations = {{ids.begin() + 1, ids.end()}}, .num_logprobs = num_logprobs};
  ids.resize(1);
  return item;
}

void GenerateMethod::OnAdmitted(int prompt, const RequestStats& stats) {
  v1::GenerateReply reply;
  SetStarted(stats, reply.mutable_started());
  reply.mutable_started()->set_seed(seeds_[size_t(prompt)]);
  Send(std::move(reply), prompt);
}

void GenerateMethod::OnResult(int prompt, EngineResult result) {
  if (const auto* delta = std::get_if<GenerateDelta>(&result)) {
    OnTokens(prompt, *delta);
  } else if (const auto* logprobs = std::get_if<PromptDelta>(&result)) {
    SendPromptLogprobs(prompt, logprobs->tokens, logprobs->first);
  } else if (const auto* score = std::get_if<ContinuationScore>(&result)) {
    SendPromptLogprobs(prompt, score->tokens, /*first=*/1);  // only_prompts
  }
}

void GenerateMethod::SendPromptLogprobs(int prompt, const std::vector<TokenResult>& tokens,
                                        int first_position) {
  ForEachBlock(tokens.size(), [&](size_t first, size_t end) {
    v1::GenerateReply reply;
    v1::PromptLogprobs& block = *reply.mutable_prompt_logprobs();
    block.set_first(first_position + int(first));
    for (size_t i = first; i < end; ++i) {
      *block.add_tokens() = ToToken(tokens[i], /*with_logprob=*/true, tokenizer_);
    }
    Send(std::move(reply), prompt);
  });
}

void GenerateMethod::ObserveLatency(const GenerateDelta& delta, Choice* choice) {
  if (delta.tokens.empty()) return;
  const Clock::time_point now = Clock::now();
  if (choice->last_token_at != Clock::time_point()) {
    Context().GetMetrics().OnNextTokens(int(delta.tokens.size()), now - choice->last_token_at);
  } else if (!std::exchange(has_token_, true)) {
    Context().GetMetrics().OnFirstToken(Context().Elapsed());
  }
  choice->last_token_at = now;
}

void GenerateMethod::OnTokens(int prompt, const GenerateDelta& delta) {
  Choice& choice = ChoiceOf(prompt, delta.choice);
  ObserveLatency(delta, &choice);
  choice.pending.set_choice(delta.choice);
  choice.pending.mutable_text()->append(delta.text);
  for (const TokenResult& token : delta.tokens) {
    *choice.pending.add_tokens() = ToToken(token, wants_logprobs_, tokenizer_);
  }
  if (delta.finish) {
    finish_ = delta.finish;
    choice.pending.set_finish_reason(ToFinishReason(*delta.finish));
    choice.pending.set_stop_string(delta.stop_string);
  }
  if (++choice.num_steps == stream_interval_ || delta.finish) SendPending(prompt, &choice);
}

void GenerateMethod::OnItemEnd(int prompt, const RequestStats& /*stats*/) {
  if (!only_prompts) return;
  for (int i = 0; i < num_choices_; ++i) {
    Choice& choice = ChoiceOf(prompt, i);
    choice.pending.set_finish_reason(v1::FINISH_REASON_LENGTH);
    SendPending(prompt, &choice);
  }
}

void GenerateMethod::OnEnd(const absl::Status& status, const RequestStats& total) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].num_steps > 0) SendPending(int(i) / num_choices_, &choices_[i]);
  }
  if (!status.ok()) return;
  v1::GenerateReply reply;
  SetFinished(total, reply.mutable_finished());
  Send(std::move(reply));
}

void GenerateMethod::SendPending(int prompt, Choice* choice) {
  v1::GenerateReply reply;
  reply.mutable_delta()->Swap(&choice->pending);
  choice->pending.Clear();
  choice->num_steps = 0;
  Send(std::move(reply), prompt);
}

MessageQueue::Entry* GenerateMethod::Merge(std::deque<MessageQueue::Entry>& waiting,
                                           Message& reply) {
  const auto as_reply = [](Message& message) -> v1::GenerateReply& {
    return static_cast<v1::GenerateReply&>(message);
  };
  if (!as_reply(reply).has_delta()) return nullptr;
  v1::Delta& delta = *as_reply(reply).mutable_delta();
  const auto same_choice =
      std::find_if(waiting.rbegin(), waiting.rend(), [&](const MessageQueue::Entry& other) {
        const v1::GenerateReply& before = as_reply(*other.reply);
        return before.has_delta() && before.delta().choice() == delta.choice();
      });
  if (same_choice == waiting.rend()) return nullptr;
  v1::Delta& before = *as_reply(*same_choice->reply).mutable_delta();
  if (before.tokens_size() + delta.tokens_size() > limits::kMaxTokensPerMessage) return nullptr;
  AppendDelta(&delta, &before);
  return &*same_choice;
}

}  // namespace lssar

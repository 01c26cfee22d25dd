#include "server/http/completion_call.h"

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/fields.h"
#include "server/config/limits.h"
#include "server/http/body_fields.h"
#include "server/http/http_error.h"
#include "server/http/json_text.h"
#include "server/served_model.h"

namespace lssar {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

CompletionCall::CompletionCall(bool is_chat, std::shared_ptr<HttpExchange> exchange,
                               const ServiceParts& parts)
    : EngineCall(is_chat ? "POST /v1/chat/completions" : "POST /v1/completions",
                 CallKind::kGenerate, std::move(exchange), parts),
      is_chat_(is_chat) {}

absl::StatusOr<std::vector<EngineCall::Item>> CompletionCall::Parse() {
  const Checkpoint& checkpoint = context_.Model().GetCheckpoint();
  const ParseContext context = context_.MakeParseContext();
  {
    ASSIGN_OR_RETURN(const nlohmann::json body,
                     ParseJson(exchange_->Request().body, context.should_stop));
    ASSIGN_OR_RETURN(
        request_, is_chat_ ? ReadChatCompletion(body, checkpoint) : ReadCompletion(body, context));
  }
  if (request_.stream && exchange_->Request().is_http_1_0) {
    return FieldError("stream", "is true; a stream of events needs HTTP/1.1, and this is HTTP/1.0");
  }
  format_ = {.checkpoint = &checkpoint, .as_ids = request_.tokens_as_ids};
  std::vector<Item> items;
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    const std::string field = is_chat_                       ? "messages"
                              : request_.prompts.size() == 1 ? "prompt"
                                                             : StrCat("prompt[", i, "]");
    if (context.should_stop()) return absl::CancelledError("the call has ended");
    auto item = ParsePrompt(request_.prompts[i]);
    if (!item.ok()) return WithHttpNames(item.status(), field);
    items.push_back(*std::move(item));
  }
  RETURN_IF_ERROR(HoldReply(items));
  request_.prompts.clear();
  prefix_ = StrCat(
      "{\"id\":\"", is_chat_ ? "chatcmpl-" : "cmpl-", context_.RequestId(), "\",\"object\":\"",
      !is_chat_         ? "text_completion"
      : request_.stream ? "chat.completion.chunk"
                        : "chat.completion",
      "\",\"created\":", int64_t(std::time(nullptr)), ",\"model\":", JsonString(checkpoint.name),
      ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\",\"choices\":[");
  return items;
}

absl::StatusOr<EngineCall::Item> CompletionCall::ParsePrompt(const v1::GenerateRequest& prompt) {
  ParseContext context = context_.MakeParseContext(RandomSeed());
  const int max_model_len = context.max_model_len;
  // A prompt that is only scored may fill the context.
  if (request_.max_tokens == 0) ++context.max_model_len;
  v1::GenerateRequest message = prompt;
  // Checked below against the limit that applies where the request names none.
  if (!request_.has_max_tokens) message.clear_min_tokens();
  auto parsed = ParseGenerate(message, context);
  RETURN_IF_ERROR(parsed.status());
  GenerateParams& params = *parsed->request.generate;
  const int num_prompt_tokens = int(parsed->request.prompt.size());
  if (!request_.has_max_tokens) {
    params.max_tokens = std::min(request_.max_tokens, max_model_len - num_prompt_tokens);
    params.min_tokens = prompt.min_tokens();
    RETURN_IF_ERROR(CheckRange("min_tokens", params.min_tokens, 0, params.max_tokens));
  }
  num_choices_ = params.num_choices;
  stream_interval_ = parsed->stream_interval;

  num_echo_bytes_ += num_choices_ * std::ssize(parsed->echo);
  if (num_echo_bytes_ > limits::kMaxMessageBytes) {
    return FieldError("echo", StrCat("is true, and n times all prompts have ", num_echo_bytes_,
                                     " bytes; they may have ", limits::kMaxMessageBytes));
  }
  Choice first{.text = std::move(parsed->echo),
               .legacy = LegacyLogprobs(format_, /*continues_text=*/!request_.echo),
               .chat = ChatLogprobs(format_)};
  if (EchoesLogprobs()) first.legacy.AddFirst(parsed->request.prompt.front());
  choices_.insert(choices_.end(), size_t(num_choices_), first);
  prompt_logprobs_.emplace_back(format_);

  Item item{.request = std::move(parsed->request)};
  if (request_.max_tokens > 0) return item;
  // Nothing is sampled: what the prompt's tokens score is all that there may be to compute.
  SetFinishReason(FinishReason::kLength);
  const bool needs_scores = EchoesLogprobs() || request_.num_prompt_logprobs >= 0;
  if (!needs_scores || num_prompt_tokens == 1) {
    item.known = RequestStats{.num_prompt_tokens = num_prompt_tokens};
    return item;
  }
  std::vector<int32_t>& ids = item.request.prompt;
  item.request.score = ScoreParams{.continuations = {{ids.begin() + 1, ids.end()}},
                                   .num_logprobs = item.request.generate->num_prompt_logprobs};
  item.request.generate.reset();
  ids.resize(1);
  return item;
}

absl::Status CompletionCall::HoldReply(const std::vector<Item>& items) {
  int64_t num_tokens = 0, num_prompt_tokens = 0;  // in the lists of logprobs and prompt_logprobs
  const int num_top = std::max({request_.num_logprobs, request_.num_prompt_logprobs, 0});
  for (const Item& item : items) {
    const Request& request = item.request;
    int64_t size = std::ssize(request.prompt);
    if (request.score) size += std::ssize(request.score->continuations[0]);
    if (EchoesLogprobs()) num_tokens += num_choices_ * size;
    if (request_.num_prompt_logprobs >= 0) {
      num_prompt_tokens += (is_chat_ ? 1 : num_choices_) * size;
    }
    if (HasLogprobs() && !request_.stream && request.generate) {
      num_tokens += int64_t{num_choices_} * request.generate->max_tokens;
    }
  }
  const int64_t num_logprobs = (num_tokens + num_prompt_tokens) * (1 + num_top);
  RETURN_IF_ERROR(CheckReplyLogprobs(HasLogprobs() ? "logprobs" : "prompt_logprobs", num_logprobs,
                                     "send fewer prompts, ask for fewer tokens, or stream"));
  const int64_t token_bytes =
      is_chat_ ? ChatLogprobs::kBytesPerLogprob : LegacyLogprobs::kBytesPerLogprob;
  return context_.HoldReply(
      num_echo_bytes_ + std::ssize(choices_) * int64_t{sizeof(Choice)} +
      (1 + num_top) *
          (num_tokens * token_bytes + num_prompt_tokens * PromptLogprobList::kBytesPerLogprob));
}

void CompletionCall::OnItemAdmitted(int item, const RequestStats& /*stats*/) {
  if (!request_.stream) return;
  exchange_->BeginStream();
  for (int choice = 0; is_chat_ && choice < num_choices_; ++choice) {
    SendRole(item * num_choices_ + choice);
  }
}

void CompletionCall::AddPromptTokens(int item, const std::vector<TokenResult>& tokens) {
  for (const TokenResult& token : tokens) {
    if (EchoesLogprobs()) {
      for (int choice = 0; choice < num_choices_; ++choice) {
        ChoiceOf(item, choice).legacy.Add(token, request_.num_logprobs);
      }
    }
    if (request_.num_prompt_logprobs >= 0) {
      prompt_logprobs_[size_t(item)].Add(token, request_.num_prompt_logprobs);
    }
  }
}

void CompletionCall::OnPromptLogprobs(int item, PromptDelta delta) {
  AddPromptTokens(item, delta.tokens);
}

void CompletionCall::OnScore(int item, ContinuationScore score) {
  AddPromptTokens(item, score.tokens);
}

void CompletionCall::MeasureTokens(Choice* choice, size_t num_tokens) {
  if (num_tokens == 0) return;
  const Clock::time_point now = Clock::now();
  if (choice->last_token_at != Clock::time_point()) {
    context_.GetMetrics().OnNextTokens(int(num_tokens), now - choice->last_token_at);
  } else if (!std::exchange(has_token_, true)) {
    context_.GetMetrics().OnFirstToken(context_.Elapsed());
  }
  choice->last_token_at = now;
}

void CompletionCall::OnTokens(int item, GenerateDelta delta) {
  Choice& choice = ChoiceOf(item, delta.choice);
  MeasureTokens(&choice, delta.tokens.size());
  choice.text += delta.text;
  if (HasLogprobs()) {
    for (const TokenResult& token : delta.tokens) {
      if (is_chat_) {
        choice.chat.Add(token, request_.num_logprobs);
      } else {
        choice.legacy.Add(token, request_.num_logprobs);
      }
    }
  }
  if (delta.finish) {
    choice.finish = delta.finish;
    SetFinishReason(*delta.finish);
    if (*delta.finish == FinishReason::kStopString) {
      choice.stop_reason = JsonString(delta.stop_string);
    } else if (*delta.finish == FinishReason::kStopId && !delta.tokens.empty()) {
      choice.stop_reason = StrCat(delta.tokens.back().id);
    }
  }
  if (!request_.stream) return;
  if (++choice.num_held_steps >= stream_interval_ || delta.finish) {
    SendChoice(item * num_choices_ + delta.choice);
  }
}

void CompletionCall::OnItemFinished(int item, const RequestStats& /*stats*/) {
  if (request_.max_tokens > 0) return;
  if (request_.stream) exchange_->BeginStream();
  for (int choice = 0; choice < num_choices_; ++choice) {
    ChoiceOf(item, choice).finish = FinishReason::kLength;
    if (request_.stream) SendChoice(item * num_choices_ + choice);
  }
}

void CompletionCall::OnEnd(const absl::Status& status, const RequestStats& total) {
  if (!exchange_->HasStarted()) {
    exchange_->Reply({.status = 200, .body = Reply(total)});
    return;
  }
  if (!status.ok()) {
    exchange_->Send(StrCat("data: ", ErrorJson(status), "\n\n"));
  } else {
    if (request_.include_usage) {
      SendEvent(StrCat(prefix_, "],\"usage\":", UsageJson(total), "}"));
    }
    exchange_->Send("data: [DONE]\n\n");
  }
  exchange_->EndStream();
}

void CompletionCall::SendEvent(const std::string& json) {
  exchange_->Send(StrCat("data: ", json, "\n\n"));
}

void CompletionCall::SendRole(int index) {
  SendEvent(StrCat(prefix_, "{\"index\":", index,
                   ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                   "\"finish_reason\":null}]",
                   request_.include_usage ? ",\"usage\":null}" : "}"));
}

void CompletionCall::SendChoice(int index) {
  std::string event = prefix_;
  event += ChoiceJson(index, /*is_event=*/true);
  event += ']';
  Choice& choice = choices_[size_t(index)];
  if (choice.finish) event += StrCat(",\"receipt\":", Receipt());
  event += request_.include_usage ? ",\"usage\":null}" : "}";
  SendEvent(event);
  choice.text.clear();
  choice.num_held_steps = 0;
}

std::string CompletionCall::ChoiceJson(int index, bool is_event) {
  Choice& choice = choices_[size_t(index)];
  std::string json = StrCat("{\"index\":", index);
  if (!is_chat_) {
    json += ",\"text\":";
    AppendJsonString(choice.text, &json);
  } else if (is_event) {
    json += ",\"delta\":{\"content\":";
    AppendJsonString(choice.text, &json);
    json += '}';
  } else {
    json += ",\"message\":{\"role\":\"assistant\",\"content\":";
    AppendJsonString(choice.text, &json);
    json += ",\"refusal\":null}";
  }
  json += ",\"logprobs\":";
  if (!HasLogprobs()) {
    json += "null";
  } else if (is_chat_) {
    choice.chat.Take(&json);
  } else {
    choice.legacy.Take(&json);
  }
  json += StrCat(",\"finish_reason\":", choice.finish ? FinishReasonJson(*choice.finish) : "null",
                 ",\"stop_reason\":", choice.stop_reason);
  if (!is_chat_ && request_.num_prompt_logprobs >= 0) {
    json += ",\"prompt_logprobs\":" + prompt_logprobs_[size_t(index / num_choices_)].Json();
  }
  json += '}';
  return json;
}

std::string CompletionCall::Reply(const RequestStats& total) {
  std::string json = prefix_;
  for (int i = 0; i < int(choices_.size()); ++i) {
    if (i > 0) json += ',';
    json += ChoiceJson(i, /*is_event=*/false);
  }
  json += StrCat("],\"usage\":", UsageJson(total), ",\"receipt\":", Receipt());
  if (is_chat_ && request_.num_prompt_logprobs >= 0) {
    json += ",\"prompt_logprobs\":" + prompt_logprobs_[0].Json();
  }
  json += '}';
  choices_ = {};
  prompt_logprobs_ = {};
  return json;
}

}  // namespace lssar

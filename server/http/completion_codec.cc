// POST /v1/completions, POST /v1/chat/completions and POST /lm_eval/v1/completions.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/generate.h"
#include "server/http/http_codec.h"
#include "server/http/http_error.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

enum class Dialect { kText, kChat, kLmEval };

class CompletionCodec final : public HttpCodec {
 public:
  CompletionCodec(Dialect dialect, GenerateMethod* method) : dialect_(dialect), method_(*method) {}

  absl::Status Decode(const HttpRequest& request) override;
  FieldNames Names() const override;
  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& items) override;
  bool IsStream() const override { return request_.stream; }
  void OnReply(int prompt, Message& reply) override;
  void OnEnd(const absl::Status& status) override;

 private:
  struct Choice {
    TextOrCall answer;  // so far, without what was sent
    LegacyLogprobs legacy;
    ChatLogprobs chat;
    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;  // until it is known
    int num_tokens = 0;
    bool has_named_call = false;       // an event has told its name
    std::string stop_reason = "null";  // vLLM's: what stopped the text
  };

  // Takes memory for the reply, or for what a stream holds of it at once.
  // Errors  INVALID_ARGUMENT: more log-probabilities than one reply may have; those of
  //         CallContext::HoldReply
  absl::Status HoldReply(CallContext* context, const std::vector<SubRequest>& items) const;
  void AddPromptTokens(int prompt, const v1::PromptLogprobs& logprobs);
  void AddDelta(int index, const v1::Delta& delta);

  bool IsChat() const { return dialect_ == Dialect::kChat; }
  bool HasLogprobs() const { return request_.num_logprobs >= 0; }
  bool EchoesLogprobs() const { return request_.echo && HasLogprobs(); }
  // The prompt begins with a BOS that the client did not send and does not get back.
  bool HasAddedBos(size_t prompt) const {
    return prompt < request_.has_added_bos.size() && request_.has_added_bos[prompt];
  }

  // The events of a stream.
  void SendRole(int index);
  void SendChoice(int index);
  void SendEvent(const std::string& json) { Exchange().Send(StrCat("data: ", json, "\n\n")); }
  // Text, log-probabilities and finish reason of a choice, as an element of "choices".
  std::string ChoiceJson(int index, bool is_event);
  std::string Body();
  // The fields of a choice's message, or of what is new of it.
  void AppendAnswer(int index, bool is_event, std::string* json);
  // `,"usage":...` of an event of a choice; empty: none was asked for.
  std::string EventUsage(int index) const;

  const Dialect dialect_;
  GenerateMethod& method_;
  CompletionRequest request_;  // without its prompts, which the method has
  size_t num_prompts_ = 0;
  int num_choices_ = 1;  // of each prompt
  TokenFormat format_;
  std::string prefix_;                    // of every reply and event: id, object, created, model
  std::string usage_;                     // with the timings
  std::vector<v1::Usage> prompt_usages_;  // of each prompt, where events tell the usage
  std::vector<Choice> choices_;           // of all prompts
  std::vector<PromptLogprobList> prompt_logprobs_;  // of each prompt, where asked for
};

absl::Status CompletionCodec::Decode(const HttpRequest& request) {
  const ParseContext context = Context().MakeParseContext();
  {
    ASSIGN_OR_RETURN(const nlohmann::json body, ParseBody(request));
    ASSIGN_OR_RETURN(request_, IsChat() ? ReadChatCompletion(body) : ReadCompletion(body, context));
  }
  KeepSchemaOrder(request.body, request_.constraint, &request_.prompts);
  if (IsChat()) {
    RETURN_IF_ERROR(AskForCall(request.body, request_.tools, &request_.prompts.front()));
  }
  if (dialect_ == Dialect::kLmEval) AddBosForLmEval(context, &request_);
  num_prompts_ = request_.prompts.size();
  method_.prompts = std::exchange(request_.prompts, {});
  method_.default_max_tokens = request_.max_tokens;
  method_.only_prompts = request_.max_tokens == 0;
  return absl::OkStatus();
}

FieldNames CompletionCodec::Names() const {
  if (IsChat()) return GenerateNames(request_, "messages");
  return GenerateNames(request_,
                       num_prompts_ == 1 ? "prompt" : StrCat("prompt[", method_.LastParsed(), "]"));
}

absl::Status CompletionCodec::OnParsed(CallContext* context, const std::vector<SubRequest>& items) {
  const Checkpoint& checkpoint = context->Model().GetCheckpoint();
  format_ = {.checkpoint = &checkpoint, .as_ids = request_.tokens_as_ids};
  num_choices_ = method_.NumChoices();
  for (const SubRequest& item : items) {
    Choice first{.answer = TextOrCall(request_.tools),
                 .legacy = LegacyLogprobs(format_, /*continues_text=*/!request_.echo),
                 .chat = ChatLogprobs(format_)};
    if (EchoesLogprobs() && !HasAddedBos(prompt_logprobs_.size())) {
      first.legacy.AddFirst(item.request.prompt.front());
    }
    choices_.insert(choices_.end(), size_t(num_choices_), first);
    prompt_logprobs_.emplace_back(format_);
    if (request_.continuous_usage) prompt_usages_.emplace_back();
  }
  RETURN_IF_ERROR(HoldReply(context, items));
  prefix_ = StrCat(
      "{\"id\":\"", IsChat() ? "chatcmpl-" : "cmpl-", context->RequestId(), "\",\"object\":\"",
      !IsChat()         ? "text_completion"
      : request_.stream ? "chat.completion.chunk"
                        : "chat.completion",
      "\",\"created\":", int64_t(std::time(nullptr)), ",\"model\":", JsonString(ModelName()),
      ",\"system_fingerprint\":\"fp_", checkpoint.hash, "\",\"choices\":[");
  return absl::OkStatus();
}

absl::Status CompletionCodec::HoldReply(CallContext* context,
                                        const std::vector<SubRequest>& items) const {
  int64_t num_tokens = 0, num_prompt_tokens = 0;  // in the lists of logprobs and prompt_logprobs
  const int num_top = std::max({request_.num_logprobs, request_.num_prompt_logprobs, 0});
  for (const SubRequest& item : items) {
    const Request& request = item.request;
    const int64_t size = NumPromptTokens(request);
    if (EchoesLogprobs()) num_tokens += num_choices_ * size;
    if (request_.num_prompt_logprobs >= 0) {
      num_prompt_tokens += (IsChat() ? 1 : num_choices_) * size;
    }
    const GenerateParams* const generate = request.Generate();
    if (HasLogprobs() && !request_.stream && generate != nullptr) {
      num_tokens += int64_t{num_choices_} * generate->max_tokens;
    }
  }
  const int64_t num_logprobs = (num_tokens + num_prompt_tokens) * (1 + num_top);
  RETURN_IF_ERROR(CheckReplyLogprobs(HasLogprobs() ? "logprobs" : "prompt_logprobs", num_logprobs,
                                     "send fewer prompts, ask for fewer tokens, or stream"));
  const int64_t token_bytes =
      IsChat() ? ChatLogprobs::kBytesPerLogprob : LegacyLogprobs::kBytesPerLogprob;
  return context->HoldReply(
      method_.NumEchoBytes() + std::ssize(choices_) * int64_t{sizeof(Choice)} +
      (1 + num_top) *
          (num_tokens * token_bytes + num_prompt_tokens * PromptLogprobList::kBytesPerLogprob));
}

void CompletionCodec::OnReply(int prompt, Message& message) {
  const auto& reply = static_cast<const v1::GenerateReply&>(message);
  const int first_choice = prompt * num_choices_;
  switch (reply.event_case()) {
    case v1::GenerateReply::kStarted:
      if (!request_.stream) return;
      if (request_.continuous_usage) {
        v1::Usage& usage = prompt_usages_[size_t(prompt)];
        usage.set_num_prompt_tokens(reply.started().num_prompt_tokens());
        usage.set_num_cached_tokens(reply.started().num_cached_tokens());
      }
      Exchange().BeginStream();
      for (int i = 0; IsChat() && i < num_choices_; ++i) SendRole(first_choice + i);
      return;
    case v1::GenerateReply::kPromptLogprobs:
      AddPromptTokens(prompt, reply.prompt_logprobs());
      return;
    case v1::GenerateReply::kDelta:
      AddDelta(first_choice + reply.delta().choice(), reply.delta());
      return;
    case v1::GenerateReply::kFinished:
      usage_ = StrCat(UsageJson(reply.finished().usage()),
                      ",\"timings\":", TimingsJson(reply.finished()));
      return;
    default: return;
  }
}

void CompletionCodec::AddPromptTokens(int prompt, const v1::PromptLogprobs& logprobs) {
  for (const v1::Token& token : logprobs.tokens()) {
    if (EchoesLogprobs()) {
      for (int i = 0; i < num_choices_; ++i) {
        choices_[size_t(prompt * num_choices_ + i)].legacy.Add(token, request_.num_logprobs);
      }
    }
    if (request_.num_prompt_logprobs >= 0) {
      prompt_logprobs_[size_t(prompt)].Add(token, request_.num_prompt_logprobs);
    }
  }
}

void CompletionCodec::AddDelta(int index, const v1::Delta& delta) {
  Choice& choice = choices_[size_t(index)];
  choice.answer.Add(delta);
  choice.num_tokens += delta.tokens_size();
  if (HasLogprobs()) {
    for (const v1::Token& token : delta.tokens()) {
      if (IsChat()) {
        choice.chat.Add(token, request_.num_logprobs);
      } else {
        choice.legacy.Add(token, request_.num_logprobs);
      }
    }
  }
  choice.finish = delta.finish_reason();
  // lm-eval drops the last entry of the lists: that of the token it asked for.
  if (dialect_ == Dialect::kLmEval && EchoesLogprobs() && request_.max_tokens == 0 &&
      choice.finish != v1::FINISH_REASON_UNSPECIFIED) {
    choice.legacy.AddNone();
  }
  if (choice.finish == v1::FINISH_REASON_STOP_STRING) {
    choice.stop_reason = JsonString(delta.stop_string());
  } else if (choice.finish == v1::FINISH_REASON_STOP_TOKEN && !delta.tokens().empty()) {
    choice.stop_reason = StrCat(delta.tokens().rbegin()->token().id());
  } else if (choice.finish == v1::FINISH_REASON_COMPLETE ||
             choice.finish == v1::FINISH_REASON_DEAD_END) {
    choice.stop_reason =
        choice.finish == v1::FINISH_REASON_COMPLETE ? "\"complete\"" : "\"dead_end\"";
  }
  if (!request_.stream) return;
  Exchange().BeginStream();
  SendChoice(index);
}

void CompletionCodec::OnEnd(const absl::Status& status) {
  if (!Exchange().HasStarted()) {
    Exchange().Reply({.status = 200, .body = Body()});
    return;
  }
  if (!status.ok()) {
    SendEvent(ErrorJson(status));
  } else {
    if (request_.include_usage) SendEvent(StrCat(prefix_, "],\"usage\":", usage_, "}"));
    SendEvent("[DONE]");
  }
  Exchange().EndStream();
}

void CompletionCodec::SendRole(int index) {
  SendEvent(StrCat(prefix_, "{\"index\":", index, ",\"delta\":{\"role\":\"assistant\",\"content\":",
                   request_.tools.MayCall() ? "null" : "\"\"",
                   "},\"logprobs\":null,\"finish_reason\":null}]", EventUsage(index), "}"));
}

std::string CompletionCodec::EventUsage(int index) const {
  if (!request_.include_usage) return {};
  if (!request_.continuous_usage) return ",\"usage\":null";
  v1::Usage usage = prompt_usages_[size_t(index / num_choices_)];
  usage.set_num_generated_tokens(choices_[size_t(index)].num_tokens);
  return ",\"usage\":" + UsageJson(usage);
}

void CompletionCodec::SendChoice(int index) {
  std::string event = prefix_;
  event += ChoiceJson(index, /*is_event=*/true);
  event += ']';
  const Choice& choice = choices_[size_t(index)];
  if (choice.finish != v1::FINISH_REASON_UNSPECIFIED) event += StrCat(",\"receipt\":", Receipt());
  event += EventUsage(index) + "}";
  SendEvent(event);
}

std::string CompletionCodec::ChoiceJson(int index, bool is_event) {
  Choice& choice = choices_[size_t(index)];
  std::string json = StrCat("{\"index\":", index);
  if (!IsChat()) {
    json += ",\"text\":";
    AppendJsonString(choice.answer.TakeText(), &json);
  } else {
    json += is_event ? ",\"delta\":{" : ",\"message\":{\"role\":\"assistant\",";
    AppendAnswer(index, is_event, &json);
    json += is_event ? "}" : ",\"refusal\":null}";
  }
  json += ",\"logprobs\":";
  if (!HasLogprobs()) {
    json += "null";
  } else if (IsChat()) {
    choice.chat.Take(&json);
  } else {
    choice.legacy.Take(&json);
  }
  json += StrCat(",\"finish_reason\":",
                 choice.answer.IsWholeCall() ? "\"tool_calls\"" : FinishReasonJson(choice.finish),
                 ",\"stop_reason\":", choice.stop_reason);
  if (!IsChat() && request_.num_prompt_logprobs >= 0) {
    json += ",\"prompt_logprobs\":" + prompt_logprobs_[size_t(index / num_choices_)].Json();
  }
  json += '}';
  return json;
}

void CompletionCodec::AppendAnswer(int index, bool is_event, std::string* json) {
  Choice& choice = choices_[size_t(index)];
  if (choice.answer.IsText()) {
    *json += "\"content\":";
    AppendJsonString(choice.answer.TakeText(), json);
  }
  if (!choice.answer.IsCall()) return;
  const std::string arguments = choice.answer.TakeArguments();
  const bool is_first = !std::exchange(choice.has_named_call, true);
  if (!is_first && arguments.empty()) return;
  if (!is_event) *json += "\"content\":null,";
  *json += "\"tool_calls\":[{";
  if (is_event) *json += "\"index\":0,";
  if (is_first) {
    *json +=
        StrCat("\"id\":\"call_", Context().RequestId(), "-", index, "\",\"type\":\"function\",");
  }
  *json += "\"function\":{";
  if (is_first) *json += StrCat("\"name\":\"", choice.answer.Name(), "\",");
  *json += "\"arguments\":";
  AppendJsonString(arguments, json);
  *json += "}}]";
}

std::string CompletionCodec::Body() {
  std::string json = prefix_;
  for (int i = 0; i < int(choices_.size()); ++i) {
    if (i > 0) json += ',';
    json += ChoiceJson(i, /*is_event=*/false);
  }
  json += StrCat("],\"usage\":", usage_, ",\"receipt\":", Receipt());
  if (IsChat() && request_.num_prompt_logprobs >= 0) {
    json += ",\"prompt_logprobs\":" + prompt_logprobs_[0].Json();
  }
  json += '}';
  choices_ = {};
  prompt_logprobs_ = {};
  return json;
}

HttpMethod Make(Dialect dialect) {
  return MakeHttpMethod<CompletionCodec, GenerateMethod>(dialect);
}

}  // namespace

HttpMethod MakeCompletion() { return Make(Dialect::kText); }
HttpMethod MakeChatCompletion() { return Make(Dialect::kChat); }
HttpMethod MakeLmEvalCompletion() { return Make(Dialect::kLmEval); }

}  // namespace lssar

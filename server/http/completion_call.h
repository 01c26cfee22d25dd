// POST /v1/completions and POST /v1/chat/completions.
#ifndef LSSAR_SERVER_HTTP_COMPLETION_CALL_H_
#define LSSAR_SERVER_HTTP_COMPLETION_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/http/engine_call.h"
#include "server/http/openai_reply.h"
#include "server/http/openai_request.h"

namespace lssar {

class CompletionCall final : public EngineCall {
 public:
  CompletionCall(bool is_chat, std::shared_ptr<HttpExchange> exchange, const ServiceParts& parts);

 private:
  struct Choice {
    std::string text;  // not sent yet
    LegacyLogprobs legacy;
    ChatLogprobs chat;
    int num_held_steps = 0;  // in a stream: since the last event
    std::optional<FinishReason> finish = {};
    std::string stop_reason = "null";      // vLLM's: what stopped the text, as JSON
    Clock::time_point last_token_at = {};  // the epoch: never
  };

  absl::StatusOr<std::vector<Item>> Parse() override;
  void OnItemAdmitted(int item, const RequestStats& stats) override;
  void OnPromptLogprobs(int item, PromptDelta delta) override;
  void OnTokens(int item, GenerateDelta delta) override;
  void OnScore(int item, ContinuationScore score) override;
  void OnItemFinished(int item, const RequestStats& stats) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

  // One prompt as an engine request, and what its choices begin with.
  absl::StatusOr<Item> ParsePrompt(const v1::GenerateRequest& prompt);
  // Takes memory for the reply, or for what a stream holds of it at once.
  // Errors  INVALID_ARGUMENT: more log-probabilities than one reply may have; those of
  //         CallContext::HoldReply
  absl::Status HoldReply(const std::vector<Item>& items);
  void AddPromptTokens(int item, const std::vector<TokenResult>& tokens);
  void MeasureTokens(Choice* choice, size_t num_tokens);

  bool HasLogprobs() const { return request_.num_logprobs >= 0; }
  bool EchoesLogprobs() const { return request_.echo && HasLogprobs(); }
  Choice& ChoiceOf(int item, int choice) { return choices_[size_t(item * num_choices_ + choice)]; }

  // The events of a stream.
  void BeginStream();
  void SendRole(int index);
  void SendChoice(int index);
  void SendEvent(const std::string& json);
  // Text, log-probabilities and finish reason of a choice, as an element of "choices".
  std::string ChoiceJson(int index, bool is_event);
  std::string Reply(const RequestStats& total);

  const bool is_chat_;
  CompletionRequest request_;
  TokenFormat format_;
  int num_choices_ = 1;  // of each prompt
  int stream_interval_ = 1;
  int64_t num_echo_bytes_ = 0;  // of all choices
  std::string prefix_;          // of every reply and event: id, object, created, model
  std::vector<Choice> choices_;
  std::vector<PromptLogprobList> prompt_logprobs_;  // of each prompt, where asked for
  bool has_token_ = false;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_COMPLETION_CALL_H_

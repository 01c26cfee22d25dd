// Generate: text that continues one or more prompts.
#ifndef LSSAR_SERVER_API_GENERATE_H_
#define LSSAR_SERVER_API_GENERATE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/api/method.h"

namespace lssar {

class GenerateMethod final : public Method {
 public:
  // Set before Parse.
  // The request, and where a port takes several prompts in one call, one for each: they have the
  // same fields but for the prompt.
  std::vector<v1::GenerateRequest> prompts{1};
  int default_max_tokens = limits::kDefaultMaxTokens;  // cut to what the context has left
  // Nothing is generated: each choice ends at once, with the prompt's log-probabilities if they are
  // asked for. The prompts have max_tokens 0.
  bool only_prompts = false;

  Message* Request() override { return &prompts.front(); }
  absl::StatusOr<std::vector<SubRequest>> Parse() override;
  void OnAdmitted(int prompt, const RequestStats& stats) override;
  void OnResult(int prompt, EngineResult result) override;
  void OnItemEnd(int prompt, const RequestStats& stats) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;
  std::optional<FinishReason> Finish() const override { return finish_; }
  MessageQueue::Entry* Merge(std::deque<MessageQueue::Entry>& waiting, Message& reply) override;

  // Valid once Parse has returned.
  int NumChoices() const { return num_choices_; }           // of each prompt
  int64_t NumEchoBytes() const { return num_echo_bytes_; }  // of all choices
  // The index of the prompt that Parse has refused.
  int LastParsed() const { return last_parsed_; }

 private:
  struct Choice {
    // The next delta, over up to stream_interval engine steps.
    v1::Delta pending;
    int num_steps = 0;
    Clock::time_point last_token_at = {};  // the epoch: never
  };

  absl::StatusOr<SubRequest> ParsePrompt(const v1::GenerateRequest& prompt);
  Choice& ChoiceOf(int prompt, int choice) {
    return choices_[size_t(prompt) * size_t(num_choices_) + size_t(choice)];
  }
  void OnTokens(int prompt, const GenerateDelta& delta);
  void ObserveLatency(const GenerateDelta& delta, Choice* choice);
  void SendPromptLogprobs(int prompt, const std::vector<TokenResult>& tokens, int first);
  void SendPending(int prompt, Choice* choice);

  int last_parsed_ = 0;
  int num_choices_ = 1;
  int stream_interval_ = 1;
  int64_t num_echo_bytes_ = 0;
  bool wants_logprobs_ = false;
  const Tokenizer* tokenizer_ = nullptr;
  std::vector<uint64_t> seeds_;  // of each prompt
  std::vector<Choice> choices_;  // [prompts, num_choices_]
  bool has_token_ = false;
  std::optional<FinishReason> finish_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_GENERATE_H_

// A chat: its messages, one answer at a time, and how full the context is.
#ifndef LSSAR_CLIENTS_CLI_CHAT_SESSION_H_
#define LSSAR_CLIENTS_CLI_CHAT_SESSION_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/generate_call.h"
#include "clients/cli/sampling_flags.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

class ChatSession {
 public:
  // `stub` outlives the session. `max_model_len`: tokens, as the server says.
  ChatSession(v1::Inference::StubInterface* stub, const SamplingFlags& sampling, int max_model_len);

  // Sends `text` after everything said so far. The answer, or as much of it as came before
  // `interrupt` fired, stays in the chat; when nothing came, `text` is taken back.
  // Errors  RESOURCE_EXHAUSTED "the context is full ...": nothing was said; those of Generate
  absl::Status Say(const std::string& text, Interrupt* interrupt, const OnDelta& on_delta,
                   GenerateResult* result);

  // Forgets everything but the system text.
  void Reset();

  // Puts `text` before the chat, from the next answer on; empty takes it away.
  void SetSystem(const std::string& text) { system_ = text; }

  // Tokens of the context that the last prompt and answer took.
  int NumContextTokens() const { return num_context_tokens_; }
  int MaxModelLen() const { return max_model_len_; }
  bool IsContextFull() const { return num_context_tokens_ >= max_model_len_; }

  int NumAnswers() const { return num_answers_; }
  // Generated since the session began.
  int64_t NumGeneratedTokens() const { return num_generated_tokens_; }

 private:
  // Errors  RESOURCE_EXHAUSTED, INVALID_ARGUMENT: as Say
  absl::StatusOr<v1::GenerateRequest> MakeRequest(const std::string& text) const;
  // Tokens left for an answer to `text`; negative when it does not fit itself.
  absl::StatusOr<int> EstimateRoom(const std::string& text) const;

  v1::Inference::StubInterface* stub_;
  SamplingFlags sampling_;
  int max_model_len_;
  std::string system_;
  v1::Chat chat_;
  int num_context_tokens_ = 0;
  int num_answers_ = 0;
  int64_t num_generated_tokens_ = 0;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CHAT_SESSION_H_

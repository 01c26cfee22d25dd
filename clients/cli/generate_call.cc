#include "clients/cli/generate_call.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/strip.h"
#include "clients/cli/connection.h"

namespace lssar::cli {
namespace {

// Of a request that can be answered at all; the server refuses more.
constexpr int kMostChoices = 1024;

int64_t MicrosSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

void AddDelta(const v1::Delta& delta, int64_t now_us, GenerateResult* result) {
  if (delta.choice() < 0 || delta.choice() >= static_cast<int>(result->choices.size())) return;
  GeneratedChoice& choice = result->choices[static_cast<size_t>(delta.choice())];
  choice.text += delta.text();
  choice.tokens.insert(choice.tokens.end(), delta.tokens().begin(), delta.tokens().end());
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    choice.finish_reason = delta.finish_reason();
    choice.stop_string = delta.stop_string();
  }
  if (delta.tokens().empty()) return;
  if (result->first_token_us < 0) {
    result->first_token_us = now_us;
    result->num_first_tokens = delta.tokens_size();
  }
  result->last_token_us = now_us;
}

}  // namespace

int GenerateResult::NumTokens() const {
  size_t num_tokens = 0;
  for (const GeneratedChoice& choice : choices) num_tokens += choice.tokens.size();
  return static_cast<int>(num_tokens);
}

double GenerateResult::TokensPerSecond() const {
  // The server's clock where there is one: deltas that merged on the way hide the steps from ours.
  if (finished.has_value() && finished->timings().decode_us() > 0) {
    const int num_firsts = static_cast<int>(
        std::ranges::count_if(choices, [](const auto& choice) { return !choice.tokens.empty(); }));
    return (NumTokens() - num_firsts) * 1e6 / static_cast<double>(finished->timings().decode_us());
  }
  const int64_t elapsed_us = last_token_us - first_token_us;
  if (elapsed_us <= 0) return 0;
  return (NumTokens() - num_first_tokens) * 1e6 / static_cast<double>(elapsed_us);
}

absl::Status RunGenerate(v1::Inference::StubInterface* stub, const v1::GenerateRequest& request,
                         Interrupt* interrupt, const OnDelta& on_delta, GenerateResult* result) {
  *result = GenerateResult();
  result->choices.resize(
      static_cast<size_t>(std::clamp(request.has_n() ? request.n() : 1, 1, kMostChoices)));
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  const auto start = std::chrono::steady_clock::now();
  const auto reader = stub->Generate(&context, request);
  v1::GenerateReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_started()) {
      result->started = reply.started();
    } else if (reply.has_prompt_logprobs()) {
      const auto& tokens = reply.prompt_logprobs().tokens();
      result->prompt_tokens.insert(result->prompt_tokens.end(), tokens.begin(), tokens.end());
    } else if (reply.has_delta()) {
      AddDelta(reply.delta(), MicrosSince(start), result);
      on_delta(reply.delta());
    } else if (reply.has_finished()) {
      result->finished = reply.finished();
    }
  }
  return ToStatus(reader->Finish());
}

std::string FinishReasonName(v1::FinishReason reason) {
  return std::string(absl::StripPrefix(v1::FinishReason_Name(reason), "FINISH_REASON_"));
}

}  // namespace lssar::cli

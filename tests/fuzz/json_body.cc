// The JSON bodies of the HTTP API: what ParseJson accepts survives writing and reading, and what
// the readers make of it is an engine request or an error that says something, in the names of the
// HTTP API.
// Input   the endpoint (one byte), the body
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "server/http/answer_request.h"
#include "server/http/json_text.h"
#include "server/http/openai_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/parsed_request.h"

namespace lssar {
namespace {

void CheckError(const absl::Status& status, const std::string& prompt_field) {
  const absl::Status renamed = WithHttpNames(status, PromptNames(prompt_field));
  LSSAR_CHECK(renamed.code() == status.code() && !renamed.message().empty());
  LSSAR_CHECK(!absl::StartsWith(renamed.message(), "sampling."));
}

void CheckCompletion(const absl::StatusOr<CompletionRequest>& completion,
                     const std::string& prompt_field) {
  if (!completion.ok()) return CheckError(completion.status(), prompt_field);
  LSSAR_CHECK(!completion->prompts.empty() && completion->max_tokens >= 0);
  for (const v1::GenerateRequest& prompt : completion->prompts) {
    auto parsed = ParseGenerate(prompt, FuzzContext());
    if (!parsed.ok()) return CheckError(parsed.status(), prompt_field);
    CheckRequest(std::move(parsed->request));
  }
}

}  // namespace

LSSAR_FUZZ_TARGET(json_body) {
  if (bytes.empty()) return;
  const auto body = ParseJson(TextOf(bytes.subspan(1)));
  if (!body.ok()) {
    LSSAR_CHECK(absl::IsInvalidArgument(body.status()) && !body.status().message().empty());
    return;
  }
  LSSAR_CHECK(ParseJson(body->dump()).value() == *body);
  switch (bytes[0] % 7) {
    case 0: return CheckCompletion(ReadCompletion(*body, FuzzContext()), "prompt");
    case 1: return CheckCompletion(ReadChatCompletion(*body), "messages");
    case 2: {
      const auto score = ReadScore(*body);
      if (!score.ok()) return CheckError(score.status(), "items");
      auto parsed = ParseScore(*score, FuzzContext());
      if (!parsed.ok()) return CheckError(parsed.status(), "items");
      for (Request& request : parsed->items) CheckRequest(std::move(request));
      return;
    }
    case 3: {
      auto embedding = ReadEmbedding(*body);
      if (!embedding.ok()) return CheckError(embedding.status(), "input");
      embedding->message.set_apply_head(false);  // asks the model, which is not loaded
      auto parsed = ParseEmbed(embedding->message, FuzzContext());
      if (!parsed.ok()) return CheckError(parsed.status(), "input");
      for (Request& request : *parsed) CheckRequest(std::move(request));
      return;
    }
    case 4: {
      const auto attention = ReadAttention(*body);
      if (!attention.ok()) return CheckError(attention.status(), "prompt");
      auto parsed = ParseCapture(attention->message, FuzzContext());
      if (!parsed.ok()) return CheckError(parsed.status(), "prompt");
      return CheckRequest(*std::move(parsed));
    }
    case 5: {
      const auto response = ReadResponse(*body);
      return CheckCompletion(response.ok() ? response->completion
                                           : absl::StatusOr<CompletionRequest>(response.status()),
                             "input");
    }
    default: {
      const auto message = ReadMessage(*body);
      return CheckCompletion(
          message.ok() ? message->completion : absl::StatusOr<CompletionRequest>(message.status()),
          "messages");
    }
  }
}

}  // namespace lssar

// The JSON bodies of the HTTP API: what ParseJson accepts survives writing and reading, and what
// the readers make of it is an engine request or an error that says something.
// Input   the endpoint (one byte), the body
#include <nlohmann/json.hpp>

#include "server/http/json_text.h"
#include "server/http/openai_request.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/parsed_request.h"

namespace lssar {
namespace {

void CheckCompletion(const absl::StatusOr<CompletionRequest>& completion) {
  if (!completion.ok()) {
    LSSAR_CHECK(!completion.status().message().empty());
    return;
  }
  LSSAR_CHECK(!completion->prompts.empty() && completion->max_tokens >= 0);
  for (const v1::GenerateRequest& prompt : completion->prompts) {
    auto parsed = ParseGenerate(prompt, FuzzContext());
    if (parsed.ok()) CheckRequest(std::move(parsed->request));
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
  const Checkpoint& checkpoint = *FuzzContext().checkpoint;
  switch (bytes[0] % 4) {
    case 0: return CheckCompletion(ReadCompletion(*body, FuzzContext()));
    case 1: return CheckCompletion(ReadChatCompletion(*body, checkpoint));
    case 2: {
      const auto score = ReadScore(*body, checkpoint);
      if (!score.ok()) return;
      auto parsed = ParseScore(*score, FuzzContext());
      if (!parsed.ok()) return;
      for (Request& request : parsed->items) CheckRequest(std::move(request));
      return;
    }
    default: {
      auto embedding = ReadEmbedding(*body, checkpoint);
      if (!embedding.ok()) return;
      embedding->message.set_apply_head(false);  // asks the model, which is not loaded
      auto parsed = ParseEmbed(embedding->message, FuzzContext());
      if (!parsed.ok()) return;
      for (Request& request : *parsed) CheckRequest(std::move(request));
    }
  }
}

}  // namespace lssar

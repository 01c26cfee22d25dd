// Errors about a field: each port names it in its own way.
#include "base/field_error.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/ascii.h"
#include "base/error_details.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "server/http/openai_request.h"

namespace lssar {
namespace {

TEST(FieldErrorTest, CarriesThePathAndTheProblem) {
  const absl::Status status = FieldError("sampling.top_p", "is 2; it must be in (0, 1]");
  EXPECT_EQ(status.message(), "sampling.top_p is 2; it must be in (0, 1]");
  EXPECT_EQ(FieldProblemOf(status).path, "sampling.top_p");
  EXPECT_EQ(FieldProblemOf(status).problem, "is 2; it must be in (0, 1]");
  EXPECT_EQ(RefusedField("chat", "no user").message(), "chat: no user");
  EXPECT_EQ(FieldError("prompt", "has 9 tokens", "the prompt").message(),
            "the prompt has 9 tokens");
  EXPECT_EQ(FieldProblemOf(absl::InvalidArgumentError("top_p is 2")).path, "")
      << "a message alone names no field";
}

TEST(FieldErrorTest, HttpHasNamesOfItsOwn) {
  const auto in_http = [](const std::string& path, const FieldNames& names) {
    return FieldProblemOf(WithHttpNames(FieldError(path, "is 2"), names)).path;
  };
  CompletionRequest chat;
  chat.is_chat = true;
  chat.max_tokens_field = "max_output_tokens";
  chat.constraint.name = "text.format.schema";
  const FieldNames names = GenerateNames(chat, "input");
  EXPECT_EQ(in_http("sampling.top_p", names), "top_p");
  EXPECT_EQ(in_http("stop_strings[3]", names), "stop[3]");
  EXPECT_EQ(in_http("tokens.ids[1]", names), "input[1]");
  EXPECT_EQ(in_http("text", names), "input");
  EXPECT_EQ(in_http("chat.messages[0].role", names), "input[0].role") << "messages, if it is them";
  EXPECT_EQ(in_http("prompt_logprobs", names), "prompt_logprobs") << "it only begins like prompt";
  EXPECT_EQ(in_http("n", names), "n");
  EXPECT_EQ(in_http("logprobs", names), "top_logprobs") << "logprobs of a chat is no number";
  EXPECT_EQ(in_http("max_tokens", names), "max_output_tokens");
  EXPECT_EQ(in_http("json_schema", names), "text.format.schema");
  EXPECT_EQ(in_http("logprobs", GenerateNames({}, "prompt")), "logprobs");
  EXPECT_EQ(in_http("inputs[2].text", {{"inputs", "input"}}), "input[2]");
  EXPECT_EQ(in_http("inputs[0].tokens.ids[7]", {{"inputs[0]", "input"}}), "input[7]");
  EXPECT_EQ(in_http("items[2].context.tokens.ids[0]", {}), "items[2].context[0]");
  EXPECT_EQ(in_http("items[2].continuations[1].text", {}), "items[2].continuations[1]");
  EXPECT_EQ(WithHttpNames(RefusedField("chat", "no user"), PromptNames("messages")).message(),
            "messages is refused: no user");
  const absl::Status unmet = WithHttpNames(UnmetField("text", "is text, and ..."), names);
  EXPECT_EQ(unmet.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(unmet.message(), "input is text, and ...");
  const absl::Status other = absl::FailedPreconditionError("no model");
  EXPECT_EQ(WithHttpNames(other, names), other);
}

TEST(StatusTest, AnotherMessageKeepsCodeAndPayloads) {
  const absl::Status full =
      RetryAfter(error_reason::kConstraints, std::chrono::seconds(3), "the cache is full");
  const absl::Status named = WithPrefix("json_schema: ", full);
  EXPECT_EQ(named.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(named.message(), "json_schema: the cache is full");
  EXPECT_EQ(StatedRetryDelay(named), std::chrono::seconds(3));
  EXPECT_EQ(ErrorReason(named), error_reason::kConstraints);
  EXPECT_FALSE(MayRetry(WithMessage(NeverRetry(error_reason::kMaxQueued, "no"), "never")));
  EXPECT_EQ(StatedRetryDelay(absl::ResourceExhaustedError("no wait is named")), std::nullopt);
  EXPECT_EQ(RetryDelay(absl::ResourceExhaustedError("no wait is named")), kDefaultRetryDelay);
}

TEST(StrCatTest, EmptyElementsHaveTheirSeparators) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(StrJoin(Texts{}), "");
  EXPECT_EQ(StrJoin(Texts{"", "a"}), ", a");
  EXPECT_EQ(StrJoin(Texts{"a", "", ""}), "a, , ");
}

TEST(AsciiTest, WhiteSpaceAndCaseAreTheAsciiOnes) {
  EXPECT_EQ(Trim(" \t\r\na b\f\v "), "a b");
  EXPECT_EQ(Trim(" \n"), "");
  EXPECT_TRUE(EqualsIgnoreCase("Content-Type", "content-tYPE"));
  EXPECT_FALSE(EqualsIgnoreCase("a", "a "));
  EXPECT_FALSE(EqualsIgnoreCase("\xC3\x84", "\xC3\xA4"));
  EXPECT_EQ(NumCharacters("a\xC3\xA4\xF0\x9F\x98\x80"), 3);
}

}  // namespace
}  // namespace lssar

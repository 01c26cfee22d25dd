// Errors about a field: each port names it in its own way.
#include "base/field_error.h"

#include <gtest/gtest.h>

#include <string>

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
  const auto in_http = [](const std::string& path) {
    return FieldProblemOf(WithHttpNames(FieldError(path, "is 2"), "input")).path;
  };
  EXPECT_EQ(in_http("sampling.top_p"), "top_p");
  EXPECT_EQ(in_http("stop_strings[3]"), "stop[3]");
  EXPECT_EQ(in_http("tokens.ids[1]"), "input[1]");
  EXPECT_EQ(in_http("inputs[2].text"), "input[2].text");
  EXPECT_EQ(in_http("text"), "input");
  EXPECT_EQ(in_http("chat.messages[0].role"), "input[0].role") << "messages, where it is them";
  EXPECT_EQ(in_http("prompt_logprobs"), "prompt_logprobs") << "it only begins like prompt";
  EXPECT_EQ(in_http("n"), "n");
  EXPECT_EQ(WithHttpNames(RefusedField("chat", "no user"), "messages").message(),
            "messages is refused: no user");
  const absl::Status other = absl::FailedPreconditionError("text is text, and ...");
  EXPECT_EQ(WithHttpNames(other, "input"), other);
}

}  // namespace
}  // namespace lssar

// The work of one request is bounded before it is begun, and can be stopped.
#include <gmock/gmock.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/field_error.h"
#include "server/config/limits.h"
#include "server/grpc/adapter.h"
#include "server/http/http_error.h"
#include "server/http/json_text.h"
#include "server/http/openai_request.h"
#include "tests/server/parse_fixture.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string Words(size_t num_bytes) {
  std::string text;
  while (text.size() < num_bytes) text += "Once upon a time there was a cat. ";
  return text;
}

class ParseBoundsTest : public ParseRequestTest {
 protected:
  // A context that counts how often parsing asks whether to stop, and stops at the `last` time.
  ParseContext StoppingAt(int last) {
    ParseContext context = Context();
    context.max_model_len = 1 << 20;
    context.should_stop = [this, last] { return ++num_polls_ >= last; };
    return context;
  }
  // Only counts.
  ParseContext Counting() { return StoppingAt(std::numeric_limits<int>::max()); }
  int num_polls_ = 0;
};

TEST_F(ParseBoundsTest, ATextThatCannotFitIsRefusedBeforeItIsTokenized) {
  const std::string text = Words(size_t{31} << 20);
  const int max_bytes = kMaxModelLen * Zoo().tokenizer->MaxPieceBytes();
  const std::string limit = "bytes; it must have at most " + std::to_string(max_bytes);
  v1::GenerateRequest generate;
  generate.set_text(text);
  v1::GenerateRequest chat;
  for (int i = 0; i < 31; ++i) {
    v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
    message.set_role("user");
    message.set_content(text.substr(0, 1 << 20));
  }
  v1::EmbedRequest embed;
  embed.add_inputs()->set_text(text);
  v1::ScoreRequest context, continuation;
  context.add_items()->mutable_context()->set_text(text);
  context.mutable_items(0)->add_continuations()->set_text("a");
  continuation.add_items()->mutable_context()->set_text("a");
  continuation.mutable_items(0)->add_continuations()->set_text(text);
  ParseContext parse = Counting();
  parse.max_model_len = kMaxModelLen;
  EXPECT_THAT(Message(ParseGenerate(generate, parse).status()),
              AllOf(HasSubstr("text has 325"), HasSubstr(limit)));
  EXPECT_THAT(Message(ParseGenerate(chat, parse).status()),
              AllOf(HasSubstr("chat.messages has 325"), HasSubstr(limit)));
  EXPECT_THAT(Message(ParseEmbed(embed, parse).status()),
              AllOf(HasSubstr("inputs[0].text has 325"), HasSubstr(limit)));
  EXPECT_THAT(Message(ParseScore(context, parse).status()),
              AllOf(HasSubstr("items[0].context.text has 325"), HasSubstr(limit)));
  EXPECT_THAT(Message(ParseScore(continuation, parse).status()),
              AllOf(HasSubstr("items[0].continuations[0].text has 325"), HasSubstr(limit)));
  // A MiB of text is tokenized with some 500 of them.
  EXPECT_LT(num_polls_, 100) << "31 MiB were tokenized";
}

TEST_F(ParseBoundsTest, ScoreTokenizesAContextOnce) {
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  const std::string context = Words(34'000) + "He sat";
  item.mutable_context()->set_text(context);
  for (int i = 0; i < limits::kMaxContinuations; ++i) {
    item.add_continuations()->set_text(i % 2 == 0 ? " down" : "isfied " + std::to_string(i));
  }
  ParseContext parse = Counting();
  parse.max_model_len = 16384;
  const auto parsed = ParseScore(request, parse);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  // Some four for a continuation, and a dozen more for the context.
  EXPECT_LT(num_polls_, 8 * limits::kMaxContinuations);
  // The ids are those of the whole text, for continuations that join the last word, too.
  const std::vector<int32_t> prompt = WithBos(Encode(context));
  EXPECT_EQ(parsed->items[0].prompt, prompt);
  for (const int i : {0, 1, 2, 1023}) {
    const std::vector<int32_t> whole = WithBos(Encode(context + item.continuations(i).text()));
    const auto num_context = std::ptrdiff_t(std::min(prompt.size(), whole.size()));
    EXPECT_EQ(parsed->items[0].Score()->continuations[size_t(i)],
              std::vector<int32_t>(whole.begin() + num_context, whole.end()))
        << i;
  }
}

TEST_F(ParseBoundsTest, AContextThatCannotBeSplitIsNotTokenizedForEachContinuation) {
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  std::string& context = *item.mutable_context()->mutable_text();
  while (context.size() < 34'000) context += "\u65e5\u672c\u8a9e";
  for (int i = 0; i < limits::kMaxContinuations; ++i) item.add_continuations()->set_text("a");
  ParseContext parse = Counting();
  parse.max_model_len = 1 << 17;
  const absl::Status status = ParseScore(request, parse).status();
  EXPECT_LT(num_polls_, 100);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(Message(status), AllOf(HasSubstr("items[0]"), HasSubstr("may repeat 16777216")));
  item.mutable_continuations()->DeleteSubrange(2, limits::kMaxContinuations - 2);
  EXPECT_TRUE(ParseScore(request, parse).ok());
}

TEST_F(ParseBoundsTest, ParsingStopsWhenItIsTold) {
  v1::GenerateRequest generate;
  generate.set_text(Words(1 << 20));
  EXPECT_TRUE(absl::IsCancelled(ParseGenerate(generate, StoppingAt(2)).status()));
  v1::TokenizeRequest tokenize;
  tokenize.set_text(Words(1 << 20));
  EXPECT_TRUE(absl::IsCancelled(ParseTokenize(tokenize, StoppingAt(4)).status()));
  v1::ScoreRequest score;
  score.add_items()->mutable_context()->set_text("The cat");
  for (int i = 0; i < 1000; ++i) score.mutable_items(0)->add_continuations()->set_text(" sat");
  EXPECT_TRUE(absl::IsCancelled(ParseScore(score, StoppingAt(100)).status()));
  EXPECT_LT(num_polls_, 150);
  std::string json = "[0";
  for (int i = 0; i < 1'000'000; ++i) json += ",0";
  int num_polls = 0;
  const auto stopped = ParseJson(json + "]", [&num_polls] { return ++num_polls == 3; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
}

TEST_F(ParseBoundsTest, AJsonBodyHasABoundedNumberOfValuesAndKeys) {
  std::string zeros = "[0";
  for (int i = 0; i < limits::kMaxJsonValues; ++i) zeros += ",0";
  EXPECT_THAT(Message(ParseJson(zeros + "]").status()), HasSubstr("more than 5242880 values"));
  std::string keys = "{\"\":0";
  for (int i = 0; i < limits::kMaxJsonKeys; ++i) keys += ",\"" + std::to_string(i) + "\":0";
  EXPECT_THAT(Message(ParseJson(keys + "}").status()), HasSubstr("more than 262144 keys"));
}

absl::Status Read(const std::string& bytes, google::protobuf::Message* message) {
  const grpc::Slice slice(bytes);
  return ReadMessage(grpc::ByteBuffer(&slice, 1), message);
}

// As a client of a newer server sends it.
void SetUnknownField(google::protobuf::Message* message) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(1234, 1);
}

TEST_F(ParseBoundsTest, AFieldThatTheServerDoesNotHaveIsRefused) {
  v1::GenerateRequest outer;
  outer.set_text("a");
  SetUnknownField(&outer);
  v1::GenerateRequest parsed;
  const absl::Status at_top = Read(outer.SerializeAsString(), &parsed);
  EXPECT_EQ(Message(at_top),
            "the request has a field of number 1234 and wire type 0; lssar.v1.GenerateRequest of "
            "lssar " LSSAR_VERSION " has none");
  EXPECT_TRUE(absl::IsInvalidArgument(at_top));

  v1::GenerateRequest sampling;
  SetUnknownField(sampling.mutable_sampling());
  const absl::Status in_sampling = Read(sampling.SerializeAsString(), &parsed);
  EXPECT_THAT(Message(in_sampling), HasSubstr("sampling has a field of number 1234 and wire type"));
  EXPECT_EQ(FieldProblemOf(in_sampling).path, "sampling");

  v1::ScoreRequest score;
  score.add_items();
  score.add_items()->add_continuations();
  SetUnknownField(score.mutable_items(1)->mutable_continuations(0));
  v1::ScoreRequest parsed_score;
  EXPECT_EQ(FieldProblemOf(Read(score.SerializeAsString(), &parsed_score)).path,
            "items.continuations");

  // GenerateRequest.max_tokens as a text.
  std::string other_type = "\x0a\x01\x61";
  v1::GenerateRequest number;
  number.set_max_tokens(1);
  other_type[0] = char((number.SerializeAsString()[0] & ~7) | 2);
  EXPECT_THAT(Message(Read(other_type, &parsed)), HasSubstr("and wire type 2; lssar.v1.Generate"));
}

TEST_F(ParseBoundsTest, AMessageHasABoundedNumberOfParts) {
  // ScoreRequest.items, and GenerateRequest.stop_strings, empty ones: two bytes each.
  std::string items, strings;
  for (int i = 0; i <= limits::kMaxMessageObjects; ++i) {
    items += std::string("\x0a\x00", 2);
    strings += std::string("\x42\x00", 2);
  }
  v1::ScoreRequest score;
  EXPECT_THAT(Message(Read(items, &score)), HasSubstr("more than 5242880 strings"));
  EXPECT_EQ(score.items_size(), 0);
  v1::GenerateRequest generate;
  EXPECT_THAT(Message(Read(strings, &generate)), HasSubstr("more than 5242880 strings"));
  v1::ScoreRequest largest;
  for (int i = 0; i < 1024; ++i) {
    v1::ScoreItem& item = *largest.add_items();
    for (int k = 0; k < 64; ++k) item.add_continuations()->mutable_tokens()->add_ids(5);
  }
  EXPECT_TRUE(Read(largest.SerializeAsString(), &score).ok());
  EXPECT_EQ(score.items_size(), 1024);
}

TEST_F(ParseBoundsTest, AnErrorQuotesAFewBytesOfAUsersValue) {
  const std::string huge(size_t{30} << 20, 'r');
  v1::GenerateRequest chat;
  v1::ChatMessage& message = *chat.mutable_chat()->add_messages();
  message.set_role(huge);
  message.set_content("Hello");
  const absl::Status role = ParseGenerate(chat, Context()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(role));
  EXPECT_THAT(Message(role), HasSubstr("(31457280 bytes)"));
  EXPECT_LT(role.message().size(), 250u);

  const auto read = [&](const std::string& body) {
    const auto json = ParseJson(body);
    if (!json.ok()) return json.status();
    absl::Status status = ReadCompletion(*json, Context()).status();
    if (status.ok()) status = ReadEmbedding(*json).status();
    return status;
  };
  for (const std::string& body :
       {"{\"model\": \"" + huge + "\"}",
        "{\"prompt\": \"a\", \"logit_bias\": {\"" + huge + "\": 1}}",
        "{\"prompt\": \"a\", \"logit_bias\": {\"7\": \"x\"}, \"" + huge + "\": 1}",
        "{\"prompt\": \"a\", \"encoding_format\": \"" + huge + "\"}",
        "{\"prompt\": \"a\", \"pooling\": \"" + huge + "\"}",
        "{\"" + huge + "\": 1, \"" + huge + "\": 2}", huge, "{\"prompt\": \"" + huge}) {
    const absl::Status status = read(body);
    EXPECT_FALSE(status.ok());
    EXPECT_LT(status.message().size(), 300u) << Message(status).substr(0, 400);
    EXPECT_LT(ErrorReply(status).body.size(), 600u);
  }
}

TEST_F(ParseBoundsTest, PromptsDoNotMultiplyTheOtherFields) {
  nlohmann::json body = {{"prompt", nlohmann::json::array()}};
  for (int i = 0; i < 1024; ++i) body["prompt"].push_back("a");
  body["allowed_token_ids"] = nlohmann::json::array();
  for (int i = 0; i < 50'000; ++i) body["allowed_token_ids"].push_back(4000);
  const absl::Status status = ReadCompletion(body, Context()).status();
  EXPECT_THAT(Message(status), AllOf(HasSubstr("prompt has 1024 entries"), HasSubstr("33554432")));
}

}  // namespace
}  // namespace lssar

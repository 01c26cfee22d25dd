#include "server/api/parse_request.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/limits.h"
#include "server/api/sampling_fields.h"
#include "tests/server/parse_fixture.h"

namespace lssar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

v1::GenerateRequest HelloRequest() {
  v1::GenerateRequest request;
  request.set_text("Hello");
  return request;
}

// The table has each number of v1::Sampling but the seed, and each row reads and writes its own.
TEST_F(ParseRequestTest, EachNumberOfSamplingIsARowOfTheTable) {
  const auto& descriptor = *v1::Sampling::descriptor();
  std::set<std::string> numbers = {"seed"};
  for (const SamplingField& field : SamplingFields()) numbers.insert(std::string(field.name));
  SamplingParams params;
  v1::Sampling message;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto& field = *descriptor.field(i);
    EXPECT_EQ(numbers.contains(field.name()), !field.is_repeated()) << field.name();
    const auto* reflection = message.GetReflection();
    const float value = 1.0f / float(i + 2);  // in every range
    if (field.cpp_type() == field.CPPTYPE_FLOAT) reflection->SetFloat(&message, &field, value);
    if (field.cpp_type() == field.CPPTYPE_INT32 && !field.is_repeated()) {
      reflection->SetInt32(&message, &field, i + 2);
    }
  }
  ASSERT_TRUE(ReadSamplingFields(message, 100, &params).ok());
  EXPECT_EQ(params.min_p, message.min_p());
  EXPECT_EQ(ToMessage(params).ShortDebugString(), message.ShortDebugString());
}

TEST_F(ParseRequestTest, UnsetFieldsHaveTheDocumentedDefaults) {
  const auto call = ParseGenerate(HelloRequest(), Context());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.prompt, WithBos(Encode("Hello")));
  const GenerateParams& params = *call->request.Generate();
  EXPECT_EQ(params.sampling.temperature, 1.0f);
  EXPECT_EQ(params.sampling.top_k, 0);
  EXPECT_EQ(params.sampling.top_p, 1.0f);
  EXPECT_EQ(params.sampling.min_p, 0.0f);
  EXPECT_EQ(params.sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(params.sampling.presence_penalty, 0.0f);
  EXPECT_EQ(params.sampling.frequency_penalty, 0.0f);
  EXPECT_EQ(params.sampling.seed, 77u);
  EXPECT_EQ(params.num_choices, 1);
  EXPECT_EQ(params.max_tokens, kMaxModelLen - static_cast<int>(call->request.prompt.size()));
  EXPECT_EQ(params.min_tokens, 0);
  EXPECT_FALSE(params.ignore_eos);
  EXPECT_FALSE(params.includes_stop);
  EXPECT_TRUE(params.skips_special_tokens);
  EXPECT_EQ(params.speculative_tokens, 64);
  EXPECT_EQ(params.num_logprobs, -1);
  EXPECT_EQ(params.num_prompt_logprobs, -1);
  EXPECT_EQ(call->stream_interval, 1);
  EXPECT_EQ(call->echo, "");
  EXPECT_EQ(call->request.priority, 0);
  EXPECT_TRUE(call->request.use_prefix_cache);
  EXPECT_EQ(call->request.cache_salt, "");
}

TEST_F(ParseRequestTest, MaxTokensDefaultsTo256IfTheContextAllows) {
  ParseContext context = Context();
  context.max_model_len = 4096;
  const auto call = ParseGenerate(HelloRequest(), context);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.Generate()->max_tokens, 256);
}

TEST_F(ParseRequestTest, DefaultMaxTokensKeepTheRopeBaseOfThePromptAndAnAnswer) {
  Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  checkpoint.config.max_position_embeddings = 1024;
  checkpoint.config.dynamic_ntk_factor = 1.0;
  ParseContext context = Context();
  context.checkpoint = &checkpoint;
  context.max_model_len = 4096;
  context.default_max_tokens = std::numeric_limits<int>::max();
  // Prompt and max_tokens, of a prompt of `num_prompt_tokens`.
  const auto length_of = [&](int num_prompt_tokens, std::optional<int> max_tokens) {
    v1::GenerateRequest request;
    for (int i = 0; i < num_prompt_tokens; ++i) request.mutable_tokens()->add_ids(5);
    if (max_tokens) request.set_max_tokens(*max_tokens);
    const auto call = ParseGenerate(request, context);
    EXPECT_TRUE(call.ok()) << call.status();
    return call.ok() ? num_prompt_tokens + call->request.Generate()->max_tokens : 0;
  };
  EXPECT_EQ(length_of(10, {}), 1025);  // the last is not read
  EXPECT_EQ(length_of(769, {}), 1025);
  EXPECT_EQ(length_of(770, {}), 2049);  // 255 tokens are less than an answer may need
  EXPECT_EQ(length_of(4095, {}), 4096);
  EXPECT_EQ(length_of(10, 3000), 3010);  // as asked
  checkpoint.config.dynamic_ntk_factor.reset();
  EXPECT_EQ(length_of(10, {}), 4096);
}

TEST_F(ParseRequestTest, SetFieldsAreKeptIncludingZeros) {
  v1::GenerateRequest request = HelloRequest();
  v1::Sampling& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_k(5);
  sampling.set_top_p(0.5f);
  sampling.set_min_p(0.1f);
  sampling.set_repetition_penalty(1.5f);
  sampling.set_presence_penalty(-2);
  sampling.set_frequency_penalty(2);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[7] = -100;
  sampling.add_allowed_token_ids(7);
  sampling.add_allowed_token_ids(8);
  sampling.add_banned_token_ids(8);
  request.set_max_tokens(10);
  request.set_min_tokens(10);
  request.set_ignore_eos(true);
  request.set_include_stop_str_in_output(true);
  request.set_skip_special_tokens(false);
  request.add_stop_strings("\n");
  request.add_stop_token_ids(9);
  request.set_n(16);
  request.set_logprobs(0);
  request.set_prompt_logprobs(20);
  request.set_echo(true);
  request.set_stream_interval(1024);
  request.set_priority(-10);
  request.set_speculative_tokens(0);
  request.set_use_prefix_cache(false);
  request.set_cache_salt(std::string(128, 's'));
  const auto call = ParseGenerate(request, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  const GenerateParams& params = *call->request.Generate();
  EXPECT_EQ(params.sampling.temperature, 0.0f);
  EXPECT_EQ(params.sampling.top_k, 5);
  EXPECT_EQ(params.sampling.top_p, 0.5f);
  EXPECT_EQ(params.sampling.min_p, 0.1f);
  EXPECT_EQ(params.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(params.sampling.presence_penalty, -2.0f);
  EXPECT_EQ(params.sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(params.sampling.seed, 0u);
  EXPECT_THAT(params.sampling.logit_bias, ElementsAre(std::pair(7, -100.0f)));
  EXPECT_THAT(params.sampling.allowed_ids, ElementsAre(7, 8));
  EXPECT_THAT(params.sampling.banned_ids, ElementsAre(8));
  EXPECT_EQ(params.max_tokens, 10);
  EXPECT_EQ(params.min_tokens, 10);
  EXPECT_TRUE(params.ignore_eos);
  EXPECT_TRUE(params.includes_stop);
  EXPECT_FALSE(params.skips_special_tokens);
  EXPECT_THAT(params.stop_strings, ElementsAre("\n"));
  EXPECT_THAT(params.stop_ids, ElementsAre(9));
  EXPECT_EQ(params.num_choices, 16);
  EXPECT_EQ(params.num_logprobs, 0);
  EXPECT_EQ(params.num_prompt_logprobs, 20);
  EXPECT_EQ(params.speculative_tokens, 0);
  EXPECT_EQ(call->echo, "Hello");
  EXPECT_EQ(call->stream_interval, 1024);
  EXPECT_EQ(call->request.priority, -10);
  EXPECT_FALSE(call->request.use_prefix_cache);
  EXPECT_EQ(call->request.cache_salt, std::string(128, 's'));
}

TEST_F(ParseRequestTest, IdsAreUsedUnchanged) {
  v1::GenerateRequest request;
  for (const int32_t id : Encode("Hello there")) request.mutable_tokens()->add_ids(id);
  request.set_echo(true);
  const auto call = ParseGenerate(request, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.prompt, Encode("Hello there"));
  EXPECT_EQ(call->echo, "Hello there");
}

TEST_F(ParseRequestTest, ChatIsRenderedAndAddsItsStopStrings) {
  v1::GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hi");
  request.add_stop_strings("\n");
  const auto call = ParseGenerate(request, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.prompt, WithBos(Encode("<|user|>Hi<|assistant|>")));
  EXPECT_THAT(call->request.Generate()->stop_strings, ElementsAre("\n", "<|user|>"));

  // What ends a turn is EOS of a chat.
  request.set_ignore_eos(true);
  const auto endless = ParseGenerate(request, Context());
  ASSERT_TRUE(endless.ok()) << endless.status();
  EXPECT_THAT(endless->request.Generate()->stop_strings, ElementsAre("\n"));
}

// One field out of range and a substring of the message.
struct BadField {
  const char* name;
  std::function<void(v1::GenerateRequest&)> spoil;
  std::vector<std::string> sentence;
};

class BadFieldTest : public ParseRequestTest, public testing::WithParamInterface<BadField> {};

TEST_P(BadFieldTest, IsRejectedNamingFieldValueAndLimit) {
  v1::GenerateRequest request = HelloRequest();
  GetParam().spoil(request);
  const auto call = ParseGenerate(request, Context());
  ASSERT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument) << call.status();
  for (const std::string& part : GetParam().sentence) {
    EXPECT_THAT(std::string(call.status().message()), HasSubstr(part));
  }
}

template <typename Value>
BadField Bad(const char* name, void (v1::Sampling::*set)(Value), Value value,
             std::string sentence) {
  return {name,
          [=](v1::GenerateRequest& request) { (request.mutable_sampling()->*set)(value); },
          {std::move(sentence)}};
}

template <typename Value>
BadField Bad(const char* name, void (v1::GenerateRequest::*set)(Value), Value value,
             std::string sentence) {
  return {
      name, [=](v1::GenerateRequest& request) { (request.*set)(value); }, {std::move(sentence)}};
}

using S = v1::Sampling;
using G = v1::GenerateRequest;

INSTANTIATE_TEST_SUITE_P(
    Sampling, BadFieldTest,
    testing::Values(
        Bad("TemperatureLow", &S::set_temperature, -0.5f,
            "sampling.temperature is -0.5; it must be in [0, 100]"),
        Bad("TemperatureHigh", &S::set_temperature, 100.5f, "sampling.temperature is 100.5;"),
        Bad("TemperatureNan", &S::set_temperature, kNan, "sampling.temperature is nan;"),
        Bad("TemperatureInf", &S::set_temperature, kInf, "sampling.temperature is inf;"),
        Bad("TopKLow", &S::set_top_k, -1, "sampling.top_k is -1; it must be in [0, 4096]"),
        Bad("TopKHigh", &S::set_top_k, 4097, "sampling.top_k is 4097;"),
        Bad("TopPLow", &S::set_top_p, -0.25f, "sampling.top_p is -0.25; it must be in [0, 1]"),
        Bad("TopPHigh", &S::set_top_p, 1.5f, "sampling.top_p is 1.5; it must be in [0, 1]"),
        Bad("TopPNan", &S::set_top_p, kNan, "sampling.top_p is nan;"),
        Bad("MinPLow", &S::set_min_p, -0.25f, "sampling.min_p is -0.25; it must be in [0, 1]"),
        Bad("MinPHigh", &S::set_min_p, 1.25f, "sampling.min_p is 1.25;"),
        Bad("MinPNan", &S::set_min_p, kNan, "sampling.min_p is nan;"),
        Bad("RepetitionZero", &S::set_repetition_penalty, 0.0f,
            "sampling.repetition_penalty is 0; it must be in (0, 10]"),
        Bad("RepetitionHigh", &S::set_repetition_penalty, 11.0f,
            "sampling.repetition_penalty is 11;"),
        Bad("RepetitionInf", &S::set_repetition_penalty, kInf,
            "sampling.repetition_penalty is inf;"),
        Bad("PresenceLow", &S::set_presence_penalty, -2.5f,
            "sampling.presence_penalty is -2.5; it must be in [-2, 2]"),
        Bad("PresenceNan", &S::set_presence_penalty, kNan, "sampling.presence_penalty is nan;"),
        Bad("FrequencyHigh", &S::set_frequency_penalty, 2.5f,
            "sampling.frequency_penalty is 2.5; it must be in [-2, 2]"),
        Bad("FrequencyInf", &S::set_frequency_penalty, -kInf,
            "sampling.frequency_penalty is -inf;"),
        BadField{"BiasId",
                 [](G& r) { (*r.mutable_sampling()->mutable_logit_bias())[4096] = 1; },
                 {"sampling.logit_bias id is 4096; it must be in [0, 4096)"}},
        BadField{"BiasValue",
                 [](G& r) { (*r.mutable_sampling()->mutable_logit_bias())[3] = 101; },
                 {"sampling.logit_bias[3] is 101; it must be in [-100, 100]"}},
        BadField{"BiasNan",
                 [](G& r) { (*r.mutable_sampling()->mutable_logit_bias())[3] = kNan; },
                 {"sampling.logit_bias[3] is nan;"}},
        BadField{"BiasCount",
                 [](G& r) {
                   for (int i = 0; i < 1025; ++i)
                     (*r.mutable_sampling()->mutable_logit_bias())[i] = 1;
                 },
                 {"sampling.logit_bias has 1025 entries; it must have 0 to 1024"}},
        BadField{"AllowedId",
                 [](G& r) { r.mutable_sampling()->add_allowed_token_ids(-1); },
                 {"sampling.allowed_token_ids[0] is -1; it must be in [0, 4096)"}},
        BadField{"BannedId",
                 [](G& r) { r.mutable_sampling()->add_banned_token_ids(4096); },
                 {"sampling.banned_token_ids[0] is 4096;"}},
        BadField{"AllowedCount",
                 [](G& r) {
                   for (int i = 0; i < 4097; ++i) r.mutable_sampling()->add_allowed_token_ids(1);
                 },
                 {"sampling.allowed_token_ids has 4097 entries; it must have 0 to 4096"}},
        BadField{"NothingAllowed",
                 [](G& r) {
                   r.mutable_sampling()->add_allowed_token_ids(5);
                   r.mutable_sampling()->add_banned_token_ids(5);
                 },
                 {"sampling.banned_token_ids", "leaves no id to sample"}},
        BadField{"EverythingBanned",
                 [](G& r) {
                   for (int i = 0; i < 4096; ++i) r.mutable_sampling()->add_banned_token_ids(i);
                 },
                 {"sampling.banned_token_ids has 4096 entries and leaves no id to sample"}}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Request, BadFieldTest,
    testing::Values(
        Bad("MaxTokensZero", &G::set_max_tokens, 0, "max_tokens is 0; it must be in [1, 12"),
        Bad("MaxTokensNegative", &G::set_max_tokens, -5, "max_tokens is -5;"),
        Bad("MaxTokensOverContext", &G::set_max_tokens, kMaxModelLen, "max_model_len 128 -"),
        Bad("MaxTokensHuge", &G::set_max_tokens, std::numeric_limits<int32_t>::max(),
            "max_tokens is 2147483647;"),
        Bad("MinTokensNegative", &G::set_min_tokens, -1, "min_tokens is -1; it must be in [0, "),
        BadField{"MinOverMax",
                 [](G& r) {
                   r.set_max_tokens(3);
                   r.set_min_tokens(4);
                 },
                 {"min_tokens is 4; it must be in [0, 3]"}},
        Bad("ChoicesZero", &G::set_n, 0, "n is 0; it must be in [1, 16]"),
        Bad("ChoicesHigh", &G::set_n, 17, "n is 17;"),
        Bad("LogprobsLow", &G::set_logprobs, -1, "logprobs is -1; it must be in [0, 20]"),
        Bad("LogprobsHigh", &G::set_logprobs, 21, "logprobs is 21;"),
        Bad("PromptLogprobsLow", &G::set_prompt_logprobs, -1, "prompt_logprobs is -1;"),
        Bad("PromptLogprobsHigh", &G::set_prompt_logprobs, 21,
            "prompt_logprobs is 21; it must be in [0, 20]"),
        Bad("IntervalZero", &G::set_stream_interval, 0,
            "stream_interval is 0; it must be in [1, 1024]"),
        Bad("IntervalHigh", &G::set_stream_interval, 1025, "stream_interval is 1025;"),
        Bad("PriorityLow", &G::set_priority, -11, "priority is -11; it must be in [-10, 10]"),
        Bad("PriorityHigh", &G::set_priority, 11, "priority is 11; it must be in [-10, 10]"),
        BadField{"SaltLong",
                 [](G& r) { r.set_cache_salt(std::string(129, 's')); },
                 {"cache_salt has 129 bytes; it must have 0 to 128"}},
        BadField{"SaltNotUtf8",
                 [](G& r) { r.set_cache_salt(std::string("ab\xff")); },
                 {"cache_salt is not UTF-8 at byte 2"}},
        BadField{"StopEmpty",
                 [](G& r) { r.add_stop_strings(std::string()); },
                 {"stop_strings[0] has 0 bytes; it must have 1 to 256"}},
        BadField{"StopLong",
                 [](G& r) { r.add_stop_strings(std::string(257, 'x')); },
                 {"stop_strings[0] has 257 bytes; it must have 1 to 256"}},
        BadField{"StopNotUtf8",
                 [](G& r) { r.add_stop_strings(std::string("ab\xff")); },
                 {"stop_strings[0] is not UTF-8 at byte 2"}},
        BadField{"StopCount",
                 [](G& r) {
                   for (int i = 0; i < 17; ++i) r.add_stop_strings(std::string(1, 'x'));
                 },
                 {"stop_strings has 17 entries; it must have 0 to 16"}},
        BadField{"StopId",
                 [](G& r) { r.add_stop_token_ids(4096); },
                 {"stop_token_ids[0] is 4096; it must be in [0, 4096)"}},
        BadField{"StopIdCount",
                 [](G& r) {
                   for (int i = 0; i < 65; ++i) r.add_stop_token_ids(i);
                 },
                 {"stop_token_ids has 65 entries; it must have 0 to 64"}},
        BadField{"NoPrompt",
                 [](G& r) { r.clear_prompt(); },
                 {"prompt is not set; it must be one of text, tokens, chat"}},
        BadField{"EmptyText", [](G& r) { r.set_text(""); }, {"text is empty"}},
        BadField{"EmptyTokens", [](G& r) { r.mutable_tokens(); }, {"tokens.ids is empty"}},
        BadField{
            "TextNotUtf8", [](G& r) { r.set_text("abc\xc3"); }, {"text is not UTF-8 at byte 3"}},
        BadField{"TokenHigh",
                 [](G& r) {
                   r.mutable_tokens()->add_ids(1);
                   r.mutable_tokens()->add_ids(4096);
                 },
                 {"tokens.ids[1] is 4096; it must be in [0, 4096)"}},
        BadField{"TokenNegative",
                 [](G& r) { r.mutable_tokens()->add_ids(-1); },
                 {"tokens.ids[0] is -1;"}},
        BadField{
            "PromptLong",
            [](G& r) {
              for (int i = 0; i < kMaxModelLen; ++i) r.mutable_tokens()->add_ids(5);
            },
            {"the prompt has 128 tokens; it must have at most 127: max_model_len 128 less one"}},
        BadField{"ChatEmpty", [](G& r) { r.mutable_chat(); }, {"chat.messages is empty"}},
        BadField{"ChatRole",
                 [](G& r) { r.mutable_chat()->add_messages()->set_role("robot"); },
                 {"chat.messages[0].role is \"robot\"; it must be \"user\""}},
        BadField{"ChatNotUtf8",
                 [](G& r) {
                   auto* message = r.mutable_chat()->add_messages();
                   message->set_role("user");
                   message->set_content("\xf0\x9f");
                 },
                 {"chat.messages[0].content is not UTF-8 at byte 0"}}),
    [](const auto& test) { return test.param.name; });

TEST_F(ParseRequestTest, AMissingTemplateOrTokenizerIsAFailedPrecondition) {
  Checkpoint bare;
  bare.name = "bare";
  bare.config = Zoo().config;
  const ParseContext context = {
      .checkpoint = &bare, .max_model_len = kMaxModelLen, .default_seed = 0};
  v1::GenerateRequest chat;
  chat.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(ParseGenerate(chat, context).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ParseGenerate(HelloRequest(), context).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ParseDetokenize({}, context).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::GenerateRequest ids;
  ids.mutable_tokens()->add_ids(3);
  EXPECT_TRUE(ParseGenerate(ids, context).ok());
}

TEST_F(ParseRequestTest, TokenizersOfAnotherCheckpointAreRefused) {
  v1::TokenizeRequest tokenize;
  tokenize.set_checkpoint_hash(Zoo().hash);
  EXPECT_TRUE(ParseTokenize(tokenize, Context()).ok());
  tokenize.set_checkpoint_hash("other");
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseTokenize(tokenize, Context()).status()));
  v1::DetokenizeRequest detokenize;
  detokenize.set_checkpoint_hash(Zoo().hash);
  EXPECT_TRUE(ParseDetokenize(detokenize, Context()).ok());
  detokenize.set_checkpoint_hash("other");
  EXPECT_TRUE(absl::IsFailedPrecondition(ParseDetokenize(detokenize, Context()).status()));
}

TEST_F(ParseRequestTest, TokenizeAddsBosByDefaultOrOnRequest) {
  v1::TokenizeRequest request;
  request.set_text("Hello");
  EXPECT_EQ(ParseTokenize(request, Context()).value(), WithBos(Encode("Hello")));
  request.set_add_bos(false);
  EXPECT_EQ(ParseTokenize(request, Context()).value(), Encode("Hello"));
  request.set_text("\xff");
  EXPECT_EQ(ParseTokenize(request, Context()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ParseRequestTest, TokenizeAndDetokenizeAreBounded) {
  v1::TokenizeRequest text;
  text.set_text(std::string(limits::kMaxTokenizeBytes + 1, 'x'));
  EXPECT_THAT(std::string(ParseTokenize(text, Context()).status().message()),
              HasSubstr("text has 8388609 bytes; it must have at most 8388608"));
  v1::DetokenizeRequest ids;
  ids.mutable_ids()->Resize(limits::kMaxDetokenizeIds + 1, 5);
  EXPECT_THAT(std::string(ParseDetokenize(ids, Context()).status().message()),
              HasSubstr("ids has 1048577 entries; it must have 0 to 1048576"));
}

TEST_F(ParseRequestTest, DetokenizeNamesTheIdOutOfRange) {
  v1::DetokenizeRequest request;
  request.add_ids(0);
  request.add_ids(4096);
  const auto ids = ParseDetokenize(request, Context());
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()),
              HasSubstr("ids[1] is 4096; it must be in [0, 4096)"));
}

// Checks the guarantees that the engine relies on.
void CheckPromises(const ParsedGenerate& call) {
  const GenerateParams& params = *call.request.Generate();
  ASSERT_FALSE(call.request.prompt.empty());
  ASSERT_GE(params.max_tokens, 1);
  ASSERT_LE(std::ssize(call.request.prompt) + params.max_tokens, kMaxModelLen);
  ASSERT_GE(params.sampling.temperature, 0.0f);
  ASSERT_GE(params.sampling.top_p, 0.0f);
  ASSERT_LE(params.sampling.top_p, 1.0f);
  ASSERT_GT(params.sampling.repetition_penalty, 0.0f);
  ASSERT_GE(params.num_choices, 1);
  ASSERT_LE(params.num_choices, limits::kMaxChoices);
  ASSERT_LE(std::abs(call.request.priority), limits::kMaxPriority);
  ASSERT_LE(std::ssize(call.request.cache_salt), limits::kMaxCacheSaltBytes);
  for (const int32_t id : call.request.prompt) {
    ASSERT_GE(id, 0);
    ASSERT_LT(id, 4096);
  }
}

// Random bytes as messages never crash the parser, and no invalid value passes.
TEST_F(ParseRequestTest, RandomBytesNeverBreakTheParsersGuarantees) {
  google::protobuf::SetLogHandler(nullptr);  // it would log every field that is not UTF-8
  std::mt19937 random(2501);
  v1::GenerateRequest seed = HelloRequest();
  seed.mutable_sampling()->set_temperature(0.5f);
  seed.mutable_sampling()->set_top_p(0.5f);
  (*seed.mutable_sampling()->mutable_logit_bias())[3] = 1;
  seed.mutable_sampling()->add_banned_token_ids(4);
  seed.set_max_tokens(4);
  seed.add_stop_strings("stop");
  seed.set_n(2);
  seed.set_priority(3);
  seed.set_use_prefix_cache(true);
  seed.set_cache_salt("salt");
  const std::string seed_bytes = seed.SerializeAsString();
  int num_parsed = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = seed_bytes;
    const int num_changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < num_changes; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    }
    v1::GenerateRequest request;
    if (!request.ParseFromString(bytes)) continue;
    const auto call = ParseGenerate(request, Context());
    if (!call.ok()) {
      ASSERT_FALSE(call.status().message().empty());
      continue;
    }
    ++num_parsed;
    CheckPromises(*call);
    v1::ScoreRequest score;
    if (score.ParseFromString(bytes)) ParseScore(score, Context()).IgnoreError();
  }
  EXPECT_GT(num_parsed, 100);
}

TEST_F(ParseRequestTest, BadWordsAreBannedAsTheyAreAndWithASpace) {
  v1::GenerateRequest request = HelloRequest();
  request.mutable_sampling()->add_bad_words("dog");
  request.mutable_sampling()->add_bad_words("elephant's house");
  const auto call = ParseGenerate(request, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  const GenerateParams& params = *call->request.Generate();
  // The tokenizer adds a space to a text, but not behind the end of a line.
  const auto behind_line_end = [](const std::string& word) {
    std::vector<int32_t> ids = Encode("\n" + word);
    ids.erase(ids.begin(), ids.begin() + long(Encode("\n").size()));
    return ids;
  };
  EXPECT_EQ(params.sampling.banned_ids, Encode("dog"));
  EXPECT_THAT(params.banned_sequences,
              ElementsAre(behind_line_end("dog"), Encode("elephant's house"),
                          behind_line_end("elephant's house")));
  std::string inside;
  for (const int32_t id : behind_line_end("dog")) inside += Zoo().tokenizer->PieceBytes(id);
  EXPECT_EQ(inside, "dog");
  v1::GenerateRequest the = HelloRequest();
  the.mutable_sampling()->add_bad_words("The");
  std::vector<std::string> banned;
  const auto parsed = ParseGenerate(the, Context());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  for (const int32_t id : parsed->request.Generate()->sampling.banned_ids) {
    banned.emplace_back(Zoo().tokenizer->PieceBytes(id));
  }
  EXPECT_THAT(banned, ElementsAre(" The", "The"));

  request.mutable_sampling()->add_bad_words("");
  EXPECT_THAT(ParseGenerate(request, Context()).status().message(),
              HasSubstr("sampling.bad_words[2] has 0 bytes; it must have 1 to 256"));
  request.mutable_sampling()->set_bad_words(2, " ");
  EXPECT_THAT(ParseGenerate(request, Context()).status().message(),
              HasSubstr("sampling.bad_words[2] has no token"));
  request.mutable_sampling()->mutable_bad_words()->RemoveLast();
  request.mutable_sampling()->add_allowed_token_ids(Encode("elephant's house").back());
  EXPECT_THAT(ParseGenerate(request, Context()).status().message(),
              HasSubstr("sampling.bad_words has 2 entries, whose last tokens leave no id"));
}

TEST_F(ParseRequestTest, TheServerBoundsTheChoices) {
  v1::GenerateRequest request = HelloRequest();
  request.set_n(17);
  EXPECT_THAT(ParseGenerate(request, Context()).status().message(),
              HasSubstr("n is 17; it must be in [1, 16]"));
  ParseContext context = Context();
  context.max_choices = 100;
  EXPECT_TRUE(ParseGenerate(request, context).ok());
}

TEST_F(ParseRequestTest, AChatMayContinueItsLastMessage) {
  v1::GenerateRequest request;
  const auto add = [&](const char* role, const std::string& content) {
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role(role);
    message.set_content(content);
  };
  add("user", "Hi");
  const auto prompt = [&]() -> std::string {
    const auto call = ParseGenerate(request, Context());
    if (!call.ok()) return std::string(call.status().message());
    return Decode(*Zoo().tokenizer, call->request.prompt);
  };
  EXPECT_EQ(prompt(), "<|user|>Hi<|assistant|>");
  request.mutable_chat()->set_add_generation_prompt(false);
  EXPECT_EQ(prompt(), "<|user|>Hi");
  add("assistant", "Once upon ");
  request.mutable_chat()->clear_add_generation_prompt();
  EXPECT_EQ(prompt(), "<|user|>Hi<|assistant|>Once upon <|assistant|>");
  request.mutable_chat()->set_continue_final_message(true);
  EXPECT_EQ(prompt(), "<|user|>Hi<|assistant|>Once upon ");
  request.mutable_chat()->set_add_generation_prompt(true);
  EXPECT_THAT(prompt(), HasSubstr("chat.add_generation_prompt is true; it must be false"));
  request.mutable_chat()->clear_add_generation_prompt();
  request.mutable_chat()->mutable_messages(1)->set_content(" \n");
  EXPECT_THAT(prompt(), HasSubstr("ends with a message without text"));
}

// ChatML ends each message with a text in which a short content may occur.
TEST_F(ParseRequestTest, AContinuedMessageMayOccurInWhatTheTemplateWritesBehindIt) {
  Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  ParseContext context = Context();
  context.checkpoint = &checkpoint;
  const auto prompt = [&](const std::string& content, const std::string& written) -> std::string {
    checkpoint.chat_template =
        ChatTemplate::Parse("{% for m in messages %}<|im_start|>{{ m.role }}\n" + written +
                            "<|im_end|>\n{% endfor %}")
            .value();
    v1::GenerateRequest request;
    request.set_echo(true);
    v1::ChatMessage& message = *request.mutable_chat()->add_messages();
    message.set_role("assistant");
    message.set_content(content);
    request.mutable_chat()->set_continue_final_message(true);
    const auto call = ParseGenerate(request, context);
    return call.ok() ? call->echo : std::string(call.status().message());
  };
  const std::string begin = "<|im_start|>assistant\n";
  for (const std::string content : {"<", "m", "end", "|", "\n<|im_end|>", "Once "}) {
    const std::string trimmed = content.substr(content.find_first_not_of('\n'));
    EXPECT_EQ(prompt(content, "{{ m.content }}"), begin + content);
    EXPECT_EQ(prompt(content, "{{ m.content | trim }}"),
              begin + (content == "Once " ? "Once" : trimmed));
  }
  // Contents that the template drops, changes, or writes twice.
  for (const std::string written :
       {"", "{{ m.content }}{{ m.content }}",
        "{% if m.content == 'm' %}a{{ m.content }}{% else %}b{{ m.content }}{% endif %}"}) {
    EXPECT_THAT(prompt("m", written), HasSubstr("whose content the chat template changes"));
  }
}

// An id of padding, which may be among stop_token_ids, is not one that is left to sample.
TEST_F(ParseRequestTest, MinTokensCountsNoPadding) {
  Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  const int num_token_ids = checkpoint.config.vocab_size;
  checkpoint.config.unpadded_vocab_size = num_token_ids;
  checkpoint.config.vocab_size += 8;
  ParseContext context = Context();
  context.checkpoint = &checkpoint;
  v1::GenerateRequest request = HelloRequest();
  request.set_max_tokens(4);
  request.set_min_tokens(1);
  request.set_ignore_eos(true);
  for (int32_t id = 0; id < num_token_ids; ++id) {
    if (id != 100) request.mutable_sampling()->add_banned_token_ids(id);
  }
  request.add_stop_token_ids(num_token_ids + 3);
  EXPECT_TRUE(ParseGenerate(request, context).ok());
  request.add_stop_token_ids(100);
  EXPECT_THAT(ParseGenerate(request, context).status().message(),
              HasSubstr("min_tokens is 1; it must be 0 where each id that may be sampled ends"));
}

TEST_F(ParseRequestTest, LogprobsAreAtMostTheVocabulary) {
  Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  checkpoint.tokenizer = nullptr;
  checkpoint.config.vocab_size = 12;
  ParseContext context = Context();
  context.checkpoint = &checkpoint;
  v1::GenerateRequest request;
  request.mutable_tokens()->add_ids(5);
  request.set_logprobs(12);
  request.set_prompt_logprobs(12);
  EXPECT_TRUE(ParseGenerate(request, context).ok());
  request.set_prompt_logprobs(13);
  EXPECT_EQ(ParseGenerate(request, context).status().message(),
            "prompt_logprobs is 13; it must be in [0, 12]");
  request.set_logprobs(13);
  EXPECT_EQ(ParseGenerate(request, context).status().message(),
            "logprobs is 13; it must be in [0, 12]");
  v1::ScoreRequest score;
  score.set_per_token(true);
  score.set_top_logprobs(13);
  score.add_items()->add_continuations()->mutable_tokens()->add_ids(5);
  EXPECT_EQ(ParseScore(score, context).status().message(),
            "top_logprobs is 13; it must be in [0, 12]");
}

TEST_F(ParseRequestTest, MinTokensNeedsAnIdThatDoesNotEndTheText) {
  v1::GenerateRequest request = HelloRequest();
  request.set_max_tokens(4);
  request.set_min_tokens(2);
  const int32_t eos = *Zoo().config.eos_id;
  request.mutable_sampling()->add_allowed_token_ids(eos);
  request.mutable_sampling()->add_allowed_token_ids(300);
  EXPECT_TRUE(ParseGenerate(request, Context()).ok());
  request.add_stop_token_ids(300);
  const auto call = ParseGenerate(request, Context());
  EXPECT_THAT(call.status().message(),
              HasSubstr("min_tokens is 2; it must be 0 where each id that may be sampled ends"));
  request.set_min_tokens(0);
  EXPECT_TRUE(ParseGenerate(request, Context()).ok());
  request.set_min_tokens(2);
  request.set_ignore_eos(true);
  EXPECT_TRUE(ParseGenerate(request, Context()).ok());
}

}  // namespace
}  // namespace lssar

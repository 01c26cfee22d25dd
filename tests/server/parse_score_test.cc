#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/api/parse_request.h"
#include "tests/server/parse_fixture.h"

namespace lssar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ParseScoreTest : public ParseRequestTest {};

v1::ScoreRequest PairRequest(const std::string& context, const std::string& continuation) {
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  item.mutable_context()->set_text(context);
  item.add_continuations()->set_text(continuation);
  return request;
}

TEST_F(ParseScoreTest, ScoreTokenisesContextAndContinuationAsOneString) {
  const auto call = ParseScore(PairRequest("The cat sat on", " the mat"), Context());
  ASSERT_TRUE(call.ok()) << call.status();
  const std::vector<int32_t> context = WithBos(Encode("The cat sat on"));
  const std::vector<int32_t> whole = WithBos(Encode("The cat sat on the mat"));
  EXPECT_EQ(call->items[0].prompt, context);
  EXPECT_EQ(call->items[0].Score()->continuations[0],
            std::vector<int32_t>(whole.begin() + std::ssize(context), whole.end()));
}

TEST_F(ParseScoreTest, ScoreMovesTrailingSpaceToTheContinuation) {
  const auto plain = ParseScore(PairRequest("The cat", " sat"), Context());
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto moved = ParseScore(PairRequest("The cat ", "sat"), Context());
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->items[0].prompt, plain->items[0].prompt);
  EXPECT_EQ(moved->items[0].Score()->continuations, plain->items[0].Score()->continuations);
  // As Python's rstrip: U+2003, a no-break space and a line feed are white space too.
  const auto wide = ParseScore(PairRequest("The cat\u2003\u00a0\n", "sat"), Context());
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(wide->items[0].prompt, plain->items[0].prompt);
}

TEST_F(ParseScoreTest, AnItemThatCannotBeScoredLeavesTheOthers) {
  v1::ScoreRequest request = PairRequest("The cat", " sat");
  *request.add_items() = PairRequest("The cat", "").items(0);
  *request.add_items() = PairRequest("The dog", " ran").items(0);
  const auto call = ParseScore(request, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->item_indices, ElementsAre(0, 2));
  EXPECT_EQ(call->items[1].prompt, WithBos(Encode("The dog")));
  ASSERT_EQ(call->errors.size(), 1u);
  EXPECT_EQ(call->errors.at(1).message(),
            "items[1].continuations[0] adds no token to the context; it must add at least 1");
  // What the whole call is over is no error of one item.
  request.mutable_items(0)->mutable_continuations(0)->set_text("");
  request.mutable_items(2)->mutable_continuations(0)->set_text("");
  EXPECT_EQ(ParseScore(request, Context()).status().message(),
            "items[0].continuations[0] adds no token to the context; it must add at least 1");
  request.set_priority(11);
  EXPECT_THAT(std::string(ParseScore(request, Context()).status().message()),
              HasSubstr("priority is 11"));
}

TEST_F(ParseScoreTest, AnEmptyContextIsReplacedByBos) {
  for (const char* context : {"", "  "}) {
    const auto call = ParseScore(PairRequest(context, "Hello"), Context());
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_THAT(call->items[0].prompt, ElementsAre(*Zoo().config.bos_id));
  }
  v1::ScoreRequest unset;
  unset.add_items()->add_continuations()->mutable_tokens()->add_ids(5);
  const auto call = ParseScore(unset, Context());
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->items[0].prompt, ElementsAre(*Zoo().config.bos_id));
  EXPECT_THAT(call->items[0].Score()->continuations[0], ElementsAre(5));
}

TEST_F(ParseScoreTest, ScoreWithoutBosNeedsAContext) {
  Checkpoint bare;
  bare.config = Zoo().config;
  bare.config.bos_id.reset();
  v1::ScoreRequest request;
  request.add_items()->add_continuations()->mutable_tokens()->add_ids(5);
  const auto call =
      ParseScore(request, {.checkpoint = &bare, .max_model_len = kMaxModelLen, .default_seed = 0});
  EXPECT_EQ(call.status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ParseScoreTest, WithDynamicNtkAContinuationsBaseDoesNotDependOnTheOthers) {
  Checkpoint ntk;
  ntk.config = Zoo().config;
  ntk.config.dynamic_ntk_factor = 2;
  const int trained = ntk.config.max_position_embeddings;
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  for (int i = 0; i < trained - 10; ++i) item.mutable_context()->mutable_tokens()->add_ids(5);
  // The second one passes the trained length; the last token of the fourth is not read.
  for (const int length : {3, 20, 4, 11}) {
    v1::TokenIds& tokens = *item.add_continuations()->mutable_tokens();
    for (int i = 0; i < length; ++i) tokens.add_ids(6);
  }
  *request.add_items() = item;
  const auto call =
      ParseScore(request, {.checkpoint = &ntk, .max_model_len = 2 * trained, .default_seed = 0});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->item_indices, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(call->items[0].Score()->indices, ElementsAre(0, 2, 3));
  EXPECT_THAT(call->items[1].Score()->indices, ElementsAre(1));
  EXPECT_EQ(call->items[1].Score()->continuations[0].size(), 20u);
  EXPECT_EQ(call->items[0].prompt, call->items[1].prompt);
}

TEST_F(ParseScoreTest, SharedFieldsApplyToEveryItem) {
  v1::ScoreRequest request = PairRequest("The cat", " sat");
  *request.add_items() = request.items(0);
  const auto unset = ParseScore(request, Context());
  ASSERT_TRUE(unset.ok()) << unset.status();
  request.set_priority(10);
  request.set_use_prefix_cache(false);
  request.set_cache_salt("salt");
  const auto set = ParseScore(request, Context());
  ASSERT_TRUE(set.ok()) << set.status();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(unset->items[i].priority, 0);
    EXPECT_TRUE(unset->items[i].use_prefix_cache);
    EXPECT_EQ(unset->items[i].cache_salt, "");
    EXPECT_EQ(set->items[i].priority, 10);
    EXPECT_FALSE(set->items[i].use_prefix_cache);
    EXPECT_EQ(set->items[i].cache_salt, "salt");
  }
}

struct BadScore {
  const char* name;
  std::function<void(v1::ScoreRequest&)> spoil;
  std::string sentence;
};

class BadScoreTest : public ParseScoreTest, public testing::WithParamInterface<BadScore> {};

TEST_P(BadScoreTest, IsRejectedNamingFieldValueAndLimit) {
  v1::ScoreRequest request = PairRequest("The cat", " sat");
  GetParam().spoil(request);
  const auto call = ParseScore(request, Context());
  ASSERT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument) << call.status();
  EXPECT_THAT(std::string(call.status().message()), HasSubstr(GetParam().sentence));
}

using R = v1::ScoreRequest;

INSTANTIATE_TEST_SUITE_P(
    Score, BadScoreTest,
    testing::Values(
        BadScore{"NoItems", [](R& r) { r.clear_items(); },
                 "items has 0 entries; it must have 1 to 1024"},
        BadScore{"ManyItems",
                 [](R& r) {
                   for (int i = 0; i < 1024; ++i) *r.add_items() = r.items(0);
                 },
                 "items has 1025 entries;"},
        BadScore{"NoContinuations", [](R& r) { r.mutable_items(0)->clear_continuations(); },
                 "items[0].continuations has 0 entries; it must have 1 to 1024"},
        BadScore{"ManyContinuations",
                 [](R& r) {
                   for (int i = 0; i < 1024; ++i) {
                     r.mutable_items(0)->add_continuations()->set_text(" x");
                   }
                 },
                 "items[0].continuations has 1025 entries;"},
        BadScore{"EmptyContinuation",
                 [](R& r) { r.mutable_items(0)->mutable_continuations(0)->set_text(""); },
                 "items[0].continuations[0] adds no token to the context; it must add at least 1"},
        BadScore{"UnsetContinuation",
                 [](R& r) { r.mutable_items(0)->mutable_continuations(0)->clear_value(); },
                 "items[0].continuations[0] adds no token"},
        BadScore{
            "ContextId",
            [](R& r) { r.mutable_items(0)->mutable_context()->mutable_tokens()->add_ids(4096); },
            "items[0].context.tokens.ids[0] is 4096; it must be in [0, 4096)"},
        BadScore{"ContinuationId",
                 [](R& r) {
                   r.mutable_items(0)->mutable_continuations(0)->mutable_tokens()->add_ids(-1);
                 },
                 "items[0].continuations[0].tokens.ids[0] is -1;"},
        BadScore{"ContextNotUtf8",
                 [](R& r) { r.mutable_items(0)->mutable_context()->set_text("a\xff"); },
                 "items[0].context.text is not UTF-8 at byte 1"},
        BadScore{"TooLong",
                 [](R& r) {
                   auto* tokens = r.mutable_items(0)->mutable_continuations(0)->mutable_tokens();
                   for (int i = 0; i < kMaxModelLen; ++i) tokens->add_ids(5);
                 },
                 "together they must be at most max_model_len 128"},
        BadScore{"TopLow", [](R& r) { r.set_top_logprobs(-1); },
                 "top_logprobs is -1; it must be in [0, 20]"},
        BadScore{"TopAlone", [](R& r) { r.set_top_logprobs(2); },
                 "top_logprobs is 2; it may be set only where per_token is true"},
        BadScore{"TopHigh", [](R& r) { r.set_top_logprobs(21); }, "top_logprobs is 21;"},
        BadScore{"PriorityLow", [](R& r) { r.set_priority(-11); },
                 "priority is -11; it must be in [-10, 10]"},
        BadScore{"PriorityHigh", [](R& r) { r.set_priority(11); }, "priority is 11;"},
        BadScore{"SaltLong", [](R& r) { r.set_cache_salt(std::string(129, 's')); },
                 "cache_salt has 129 bytes; it must have 0 to 128"},
        BadScore{"SaltNotUtf8", [](R& r) { r.set_cache_salt("a\xff"); },
                 "cache_salt is not UTF-8 at byte 1"},
        BadScore{"MixedAfterSpace",
                 [](R& r) {
                   r.mutable_items(0)->mutable_context()->set_text("The cat ");
                   r.mutable_items(0)->add_continuations()->mutable_tokens()->add_ids(5);
                 },
                 "items[0].continuations[1] is token ids while others are text"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lssar

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "server/api/parse_request.h"
#include "tests/server/parse_fixture.h"

namespace lssar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ParseCaptureTest : public ParseRequestTest {};

v1::CaptureAttentionRequest TenTokens() {
  v1::CaptureAttentionRequest request;
  for (int id = 10; id < 20; ++id) request.mutable_tokens()->add_ids(id);
  return request;
}

TEST_F(ParseCaptureTest, DefaultsAreTheLastRowAndAllHeadsOfAllLayers) {
  const auto request = ParseCapture(TenTokens(), Context());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->prompt, ElementsAre(10, 11, 12, 13, 14, 15, 16, 17, 18, 19));
  EXPECT_THAT(request->Capture()->layers, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(request->Capture()->heads, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(request->Capture()->rows, ElementsAre(9));
  EXPECT_EQ(request->Capture()->top_k, 0);
  EXPECT_TRUE(request->use_prefix_cache);
}

TEST_F(ParseCaptureTest, IndicesAreSortedAndUnique) {
  v1::CaptureAttentionRequest message = TenTokens();
  for (const int layer : {5, 2, 5}) message.add_layers(layer);
  for (const int head : {3, 0}) message.add_heads(head);
  for (const int row : {-1, 4, 9, -10, 0, -6}) message.add_rows(row);
  message.set_top_k(7);
  message.set_priority(3);
  message.set_use_prefix_cache(false);
  message.set_cache_salt("salt");
  const auto request = ParseCapture(message, Context());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->Capture()->layers, ElementsAre(2, 5));
  EXPECT_THAT(request->Capture()->heads, ElementsAre(0, 3));
  EXPECT_THAT(request->Capture()->rows, ElementsAre(0, 4, 9));
  EXPECT_EQ(request->Capture()->top_k, 7);
  EXPECT_EQ(request->priority, 3);
  EXPECT_FALSE(request->use_prefix_cache);
  EXPECT_EQ(request->cache_salt, "salt");
}

TEST_F(ParseCaptureTest, TextIsTokenizedAsInGenerate) {
  v1::CaptureAttentionRequest message;
  message.set_text("The cat sat");
  const auto request = ParseCapture(message, Context());
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->prompt, WithBos(Encode("The cat sat")));
}

// No token follows the prompt, so it may fill the context.
TEST_F(ParseCaptureTest, APromptMayFillTheContext) {
  v1::CaptureAttentionRequest message = TenTokens();
  while (message.tokens().ids_size() < kMaxModelLen) message.mutable_tokens()->add_ids(5);
  EXPECT_TRUE(ParseCapture(message, Context()).ok());
  message.mutable_tokens()->add_ids(5);
  EXPECT_THAT(std::string(ParseCapture(message, Context()).status().message()),
              HasSubstr("the prompt has 129 tokens; it must have at most max_model_len 128"));
}

// 24 heads of a row of 200,000 keys; 24 heads of all rows of 3,000 tokens.
TEST_F(ParseCaptureTest, TooManyKeysAreRejectedWithTheArithmetic) {
  const auto refused = [](int num_tokens, int first_row) {
    v1::CaptureAttentionRequest message;
    for (int i = 0; i < num_tokens; ++i) message.mutable_tokens()->add_ids(5);
    for (int row = first_row; row < num_tokens; ++row) message.add_rows(row);
    return ParseCapture(message,
                        {.checkpoint = &Zoo(), .max_model_len = 1 << 20, .default_seed = 0})
        .status();
  };
  const absl::Status row = refused(200000, 199999);
  EXPECT_EQ(row.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(row.message()),
              HasSubstr("keys of row 199999 are 6 x 4 x 200000; they must be at most 4194304"));
  const absl::Status all = refused(3000, 0);
  EXPECT_EQ(all.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(all.message()),
      HasSubstr("keys of all 3000 rows are 6 x 4 x 4501500; they must be at most 67108864"));
  EXPECT_TRUE(refused(3000, 2500).ok());
}

using Capture = v1::CaptureAttentionRequest;

struct BadCapture {
  const char* name;
  std::function<void(Capture&)> spoil;
  std::string sentence;
};

class BadCaptureTest : public ParseCaptureTest, public testing::WithParamInterface<BadCapture> {};

TEST_P(BadCaptureTest, IsRejectedNamingFieldValueAndLimit) {
  Capture request = TenTokens();
  GetParam().spoil(request);
  const auto parsed = ParseCapture(request, Context());
  ASSERT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << parsed.status();
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().sentence));
}

INSTANTIATE_TEST_SUITE_P(
    Capture, BadCaptureTest,
    testing::Values(
        BadCapture{"NoPrompt", [](Capture& r) { r.clear_prompt(); }, "prompt is not set"},
        BadCapture{"EmptyText", [](Capture& r) { r.set_text(""); }, "text is empty"},
        BadCapture{"NoIds", [](Capture& r) { r.mutable_tokens()->clear_ids(); },
                   "tokens.ids is empty"},
        BadCapture{"Id", [](Capture& r) { r.mutable_tokens()->add_ids(4096); },
                   "tokens.ids[10] is 4096; it must be in [0, 4096)"},
        BadCapture{"LayerHigh", [](Capture& r) { r.add_layers(6); },
                   "layers[0] is 6; it must be in [0, 6)"},
        BadCapture{"LayerLow", [](Capture& r) { r.add_layers(-1); }, "layers[0] is -1;"},
        BadCapture{"HeadHigh", [](Capture& r) { r.add_heads(4); },
                   "heads[0] is 4; it must be in [0, 4)"},
        BadCapture{"RowHigh", [](Capture& r) { r.add_rows(10); },
                   "rows[0] is 10; it must be in [-10, 10): the prompt has 10 tokens"},
        BadCapture{"RowLow", [](Capture& r) { r.add_rows(-11); }, "rows[0] is -11;"},
        BadCapture{"TopLow", [](Capture& r) { r.set_top_k(-1); },
                   "top_k is -1; it must be in [0, 1048576]"},
        BadCapture{"TopHigh", [](Capture& r) { r.set_top_k(1048577); }, "top_k is 1048577;"},
        BadCapture{"Priority", [](Capture& r) { r.set_priority(11); }, "priority is 11;"},
        BadCapture{"Salt", [](Capture& r) { r.set_cache_salt("a\xff"); },
                   "cache_salt is not UTF-8 at byte 1"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lssar

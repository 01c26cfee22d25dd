#include "clients/cli/attention_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lssar::cli {
namespace {

using ::testing::HasSubstr;

constexpr Terminal kPipe = {};
constexpr Terminal kPlain = {.is_tty = true};
constexpr Terminal kColour = {.is_tty = true, .has_colour = true};

CapturedAttention PromptOf(const std::vector<std::string>& pieces) {
  CapturedAttention captured;
  for (const std::string& piece : pieces) captured.prompt.emplace_back().set_piece(piece);
  return captured;
}

v1::RowWeights Row(int position, const std::vector<std::pair<int, float>>& keys) {
  v1::RowWeights row;
  row.set_layer(2);
  row.set_head(1);
  row.set_row(position);
  row.set_num_nonzero(int(keys.size()));
  for (const auto& [key, weight] : keys) {
    row.add_keys(key);
    row.add_weights(weight);
  }
  return row;
}

TEST(RenderRow, LargestWeightsFirstThenOneLineForTheRest) {
  const CapturedAttention captured = PromptOf({"", " cat", "\n", " mat"});
  v1::RowWeights row = Row(3, {{0, 0.125f}, {2, 0.5f}});
  row.set_num_nonzero(4);
  row.set_entropy(0.6931472);
  row.set_dropped_mass(0.375);
  EXPECT_EQ(RenderRow(captured, row, kPipe),
            "layer 2, head 1, row 3 ' mat': 4 of 4 keys, effectively 2.0\n"
            "  0.5000  ############                   2  '\\n'\n"
            "  0.1250  ###                            0  <id 0>\n"
            "  0.3750  in 2 others\n");
  EXPECT_THAT(RenderRow(captured, row, kPlain), HasSubstr("  0.1250  ███                     "));
}

TEST(RenderRow, NegativeWeightsCountByAbsoluteValue) {
  const CapturedAttention captured = PromptOf({"a", "b", "c"});
  const v1::RowWeights row = Row(2, {{0, -0.5f}, {1, 0.25f}, {2, 2.0f}});
  EXPECT_THAT(RenderRow(captured, row, kPipe),
              HasSubstr("  2.0000  ########################       2  'c'\n"
                        "  -0.5000  ############                   0  'a'\n"
                        "  0.2500  ######                         1  'b'\n"));
}

TEST(RenderMap, EachRowEndsAtItsOwnKey) {
  const CapturedAttention captured = PromptOf({"a", "b", "c"});
  const v1::RowWeights first = Row(0, {{0, 1.0f}}), last = Row(2, {{0, 0.5f}, {1, 1e-6f}});
  EXPECT_EQ(RenderMap(captured, {&first, &last}, kPipe),
            "layer 2, head 1: 1 key per column, keys 0 to 2\n"
            "     0 'a' @|\n"
            "     2 'c' @  |\n");
  EXPECT_THAT(RenderMap(captured, {&first, &last}, kPlain), HasSubstr("'c' █  |\n"));
  EXPECT_THAT(RenderMap(captured, {&first, &last}, kColour),
              HasSubstr("\x1b[48;5;229m \x1b[0m  |"));
}

// 1000 keys on 80 columns; a column's weights add up.
TEST(RenderMap, ColumnsSumKeysToFitTheWidth) {
  const CapturedAttention captured = PromptOf(std::vector<std::string>(1000, "x"));
  const v1::RowWeights row = Row(999, {{0, 0.2f}, {14, 0.3f}, {15, 0.5f}});
  const std::string map = RenderMap(captured, {&row}, kPipe);
  EXPECT_THAT(map, HasSubstr("15 keys per column, keys 0 to 999\n   999 'x' @@"));
  for (size_t at = 0, end; (end = map.find('\n', at)) != std::string::npos; at = end + 1) {
    EXPECT_LE(end - at, 80u);
  }
}

TEST(MapLegend, NamesTheLimits) {
  EXPECT_EQ(MapLegend(kPipe), "blank: a weight under 0.002; brightest: 0.45 or more");
  EXPECT_EQ(MapLegend(kPlain), "blank: a weight under 0.008; brightest: 0.38 or more");
}

}  // namespace
}  // namespace lssar::cli

#include "clients/cli/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/loss_by_length.h"
#include "clients/cli/score_file.h"

namespace lssar::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NearestMatch, FindsTyposAndLeavesTheRest) {
  EXPECT_EQ(NearestMatch("genrate", {"chat", "generate", "score"}), "generate");
  EXPECT_EQ(NearestMatch("--temprature", {"--top-k", "--temperature"}), "--temperature");
  EXPECT_EQ(NearestMatch("hcat", {"chat", "score"}), "chat");
  EXPECT_EQ(NearestMatch("frobnicate", {"chat", "score"}), "");
}

TEST(ParseCounts, TakesListsAndK) {
  const auto counts = ParseCounts("--lengths", "1024, 2K,16k", 1, 1 << 20);
  ASSERT_TRUE(counts.ok());
  EXPECT_THAT(*counts, ElementsAre(1024, 2048, 16384));
  EXPECT_EQ(FormatCount(16384), "16K");
  EXPECT_EQ(FormatCount(1000), "1000");
}

TEST(ParseCounts, NamesFlagEntryAndLimits) {
  for (const char* list : {"1K,x", "", "0", "-1", "2000K", "1.5K", "4294967297"}) {
    const auto counts = ParseCounts("--lengths", list, 1, 1 << 20);
    ASSERT_FALSE(counts.ok()) << list;
    EXPECT_THAT(std::string(counts.status().message()),
                ::testing::AllOf(HasSubstr("--lengths"), HasSubstr("from 1 to 1048576")));
  }
}

TEST(ParsePlaces, TakesPlacesRangesAndAll) {
  const auto places = ParsePlaces("--rows", "0, 4..6,-1,-3..-2", 10);
  ASSERT_TRUE(places.ok()) << places.status();
  EXPECT_THAT(*places, ElementsAre(0, 4, 5, 6, 9, 7, 8));
  EXPECT_THAT(*ParsePlaces("--rows", "all", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*ParsePlaces("--rows", "1..-1", 3), ElementsAre(1, 2));
}

TEST(ParsePlaces, NamesFlagEntryAndCount) {
  for (const char* list : {"10", "-11", "", "x", "3..2", "1..", "..1", "0,10", "1..2..3", "1.5"}) {
    const auto places = ParsePlaces("--rows", list, 10);
    ASSERT_FALSE(places.ok()) << list;
    EXPECT_EQ(places.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(places.status().message()),
                ::testing::AllOf(HasSubstr("--rows: '"), HasSubstr("is none of 10")));
  }
}

TEST(ParseScoreLines, TakesTextsAndIds) {
  const auto items = ParseScoreLines(
      "{\"context\": \"a\", \"continuations\": [\"b\", [3, 4]]}\n"
      "\n"
      "{\"continuations\": [\"c\"]}\n");
  ASSERT_TRUE(items.ok()) << items.status();
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].context().text(), "a");
  EXPECT_EQ((*items)[0].continuations(0).text(), "b");
  EXPECT_THAT((*items)[0].continuations(1).tokens().ids(), ElementsAre(3, 4));
  EXPECT_FALSE((*items)[1].has_context());
}

TEST(ParseScoreLines, NamesLineAndField) {
  const auto expect_error = [](const char* lines, const char* part) {
    const auto items = ParseScoreLines(lines);
    ASSERT_FALSE(items.ok()) << lines;
    EXPECT_EQ(items.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(items.status().message()), HasSubstr(part));
  };
  expect_error("", "empty");
  expect_error("{\"continuations\": [\"a\"]}\n{oops", "line 2");
  expect_error("[1]", "line 1");
  expect_error("{\"context\": 5, \"continuations\": [\"a\"]}", "\"context\"");
  expect_error("{\"context\": \"a\"}", "\"continuations\"");
  expect_error("{\"continuations\": []}", "\"continuations\"");
  expect_error("{\"continuations\": [[-1]]}", "\"continuations\"");
  expect_error("{\"continuations\": [[99999999999]]}", "\"continuations\"");
  expect_error("{\"continuation\": [\"a\"]}", "\"continuation\"");
}

// train.py: step = (len - L - 1) // B; rows val[i * step : i * step + L + 1].
TEST(EvaluationRow, IsCutAsTheTrainingCodeCuts) {
  std::vector<int32_t> ids(100);
  for (int i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = i;
  const std::vector<int32_t> row = EvaluationRow(ids, 4, 8, 3);
  EXPECT_THAT(row, ElementsAre(33, 34, 35, 36, 37));
  EXPECT_THAT(EvaluationRow(ids, 4, 8, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(EvaluationRow(ids, 99, 1, 0), ::testing::SizeIs(100));
}

TEST(NumEvaluationRows, Is8OrWhat32KTokensHold) {
  EXPECT_EQ(NumEvaluationRows(1024), 8);
  EXPECT_EQ(NumEvaluationRows(4096), 8);
  EXPECT_EQ(NumEvaluationRows(8192), 4);
  EXPECT_EQ(NumEvaluationRows(16384), 2);
  EXPECT_EQ(NumEvaluationRows(65536), 1);
}

}  // namespace
}  // namespace lssar::cli

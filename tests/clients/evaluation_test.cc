#include "clients/cli/evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace lssar::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// train.py: step = (len - L - 1) // B; rows val[i * step : i * step + L + 1].
TEST(EvaluationRow, EqualsTheRowsOfTheTrainingCode) {
  std::vector<int32_t> ids(100);
  for (int i = 0; i < 100; ++i) ids[static_cast<size_t>(i)] = i;
  const std::vector<int32_t> row = EvaluationRow(ids, 4, 8, 3);
  EXPECT_THAT(row, ElementsAre(33, 34, 35, 36, 37));
  EXPECT_THAT(EvaluationRow(ids, 4, 8, 0), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(EvaluationRow(ids, 99, 1, 0), ::testing::SizeIs(100));
}

TEST(NumEvaluationRows, IsEightOrWhatFitsIn32KTokens) {
  constexpr int kNumIds = 400000;
  EXPECT_EQ(NumEvaluationRows(1024, kNumIds), 8);
  EXPECT_EQ(NumEvaluationRows(4096, kNumIds), 8);
  EXPECT_EQ(NumEvaluationRows(8192, kNumIds), 4);
  EXPECT_EQ(NumEvaluationRows(16384, kNumIds), 2);
  EXPECT_EQ(NumEvaluationRows(65536, kNumIds), 1);
}

TEST(NumEvaluationRows, IsWhatTheIdsHoldWithoutAnOverlap) {
  EXPECT_EQ(NumEvaluationRows(256, 2001), 6);
  EXPECT_EQ(NumEvaluationRows(256, 257), 1);
}

// Among so many rows none shares a predicted token with the next; of one more some do.
TEST(NumDisjointRows, IsTheMostWithoutAnOverlap) {
  const auto step = [](int num_ids, int length, int num_rows) {
    std::vector<int32_t> ids(static_cast<size_t>(num_ids));
    std::iota(ids.begin(), ids.end(), 0);
    return EvaluationRow(ids, length, num_rows, 1)[0];
  };
  for (const int length : {1, 7, 50}) {
    for (int num_ids = length + 1; num_ids < 8 * length + 9; ++num_ids) {
      const int most = NumDisjointRows(length, num_ids);
      if (most > 1) {
        EXPECT_GE(step(num_ids, length, most), length) << num_ids;
      }
      EXPECT_LT(step(num_ids, length, most + 1), length) << num_ids;
    }
  }
}

// lm-evaluation-harness, get_rolling_token_windows(token_list=[1..9], prefix_token=0,
// max_seq_len=3, context_len=1), as (inputs + last prediction, number of predictions).
TEST(RollingWindows, EqualThoseOfLmEvaluationHarness) {
  EXPECT_THAT(RollingWindows(10, 3, 3),
              ElementsAre(RollingWindow{0, 1, 4}, RollingWindow{3, 4, 7}, RollingWindow{6, 7, 10}));
  // The last window has as much context as fits: its inputs are [5, 6, 7].
  EXPECT_THAT(RollingWindows(9, 3, 3),
              ElementsAre(RollingWindow{0, 1, 4}, RollingWindow{3, 4, 7}, RollingWindow{5, 7, 9}));
}

TEST(RollingWindows, ASmallerStrideLeavesMoreContext) {
  EXPECT_THAT(RollingWindows(9, 3, 2), ElementsAre(RollingWindow{0, 1, 4}, RollingWindow{2, 4, 6},
                                                   RollingWindow{4, 6, 8}, RollingWindow{5, 8, 9}));
}

TEST(RollingWindows, ATextThatFitsIsOneWindow) {
  EXPECT_THAT(RollingWindows(4, 3, 1), ElementsAre(RollingWindow{0, 1, 4}));
  EXPECT_THAT(RollingWindows(2, 99, 99), ElementsAre(RollingWindow{0, 1, 2}));
  EXPECT_THAT(RollingWindows(1, 99, 99), IsEmpty());
}

TEST(RollingWindows, EachTokenIsScoredOnceAndNoWindowIsTooLong) {
  for (int max_length = 1; max_length < 8; ++max_length) {
    for (int stride = 1; stride <= max_length; ++stride) {
      for (int num_ids = 2; num_ids < 40; ++num_ids) {
        int64_t next = 1;
        for (const RollingWindow& w : RollingWindows(num_ids, max_length, stride)) {
          EXPECT_EQ(w.scored, next);
          EXPECT_LT(w.first, w.scored);
          EXPECT_LE(w.end - w.first, max_length + 1);
          EXPECT_TRUE(w.first == 0 || w.end - w.first == max_length + 1);
          next = w.end;
        }
        EXPECT_EQ(next, num_ids);
      }
    }
  }
}

TEST(PositionRanges, CoverEachPositionOnceInRangesOfOneSize) {
  for (int max_position = 1; max_position < 100; ++max_position) {
    const auto ranges = MakePositionRanges(max_position, 32);
    EXPECT_LE(ranges.size(), 32u);
    int next = 1;
    for (const PositionRange& range : ranges) {
      EXPECT_EQ(range.first, next);
      EXPECT_LE(range.end - range.first, ranges[0].end - ranges[0].first);
      next = range.end;
    }
    EXPECT_EQ(next, max_position + 1);
  }
}

TEST(PositionRanges, MeanAndItsStandardError) {
  const PositionRange three = {.num_tokens = 3, .sum = 6, .sum_squares = 14};  // 1, 2, 3
  EXPECT_DOUBLE_EQ(three.Loss(), 2);
  EXPECT_DOUBLE_EQ(three.StandardError(), std::sqrt(1.0 / 3));
  EXPECT_EQ(PositionRange().Loss(), 0);
  const PositionRange one = {.num_tokens = 1, .sum = 5, .sum_squares = 25};
  EXPECT_EQ(one.StandardError(), 0);
}

TEST(KvCachePrecisionNote, NamesTheBoundAndTheFlagUnlessTheCacheIsExact) {
  v1::GetInfoReply served;
  served.set_kv_cache_dtype("fp32");
  EXPECT_EQ(KvCachePrecisionNote(served), "");
  served.set_kv_cache_dtype("fp16");
  EXPECT_THAT(KvCachePrecisionNote(served), HasSubstr("fp16: log-probabilities may differ"));
  EXPECT_THAT(KvCachePrecisionNote(served), HasSubstr("up to 0.03"));
  EXPECT_THAT(KvCachePrecisionNote(served), HasSubstr("--kv-cache-dtype fp32"));
}

}  // namespace
}  // namespace lssar::cli

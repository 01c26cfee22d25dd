#include "clients/cli/rolling_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lssar::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RollingWindows, ShareOneTokenWhereTheStrideIsTheLargest) {
  // Ids 0 to 9, four at a time: 1 to 3, then 4 to 6, then 7 to 9.
  EXPECT_THAT(RollingWindows(10, 4, 3),
              ElementsAre(RollingWindow{0, 1, 4}, RollingWindow{3, 4, 7}, RollingWindow{6, 7, 10}));
}

TEST(RollingWindows, ASmallerStrideLeavesMoreContext) {
  EXPECT_THAT(RollingWindows(9, 4, 2), ElementsAre(RollingWindow{0, 1, 4}, RollingWindow{2, 4, 6},
                                                   RollingWindow{4, 6, 8}, RollingWindow{5, 8, 9}));
}

TEST(RollingWindows, ATextThatFitsIsOneWindow) {
  EXPECT_THAT(RollingWindows(4, 4, 1), ElementsAre(RollingWindow{0, 1, 4}));
  EXPECT_THAT(RollingWindows(2, 100, 99), ElementsAre(RollingWindow{0, 1, 2}));
  EXPECT_THAT(RollingWindows(1, 100, 99), IsEmpty());
}

TEST(RollingWindows, EachTokenIsScoredOnceAndNoWindowIsTooLong) {
  for (int window = 2; window < 9; ++window) {
    for (int stride = 1; stride < window; ++stride) {
      for (int num_ids = 2; num_ids < 40; ++num_ids) {
        int64_t next = 1;
        for (const RollingWindow& w : RollingWindows(num_ids, window, stride)) {
          EXPECT_EQ(w.scored, next);
          EXPECT_LT(w.first, w.scored);
          EXPECT_LE(w.end - w.first, window);
          EXPECT_TRUE(w.first == 0 || w.end - w.first == window);
          next = w.end;
        }
        EXPECT_EQ(next, num_ids);
      }
    }
  }
}

}  // namespace
}  // namespace lssar::cli

#include "clients/cli/wilson_interval.h"

#include <gtest/gtest.h>

namespace lssar::cli {
namespace {

void ExpectInterval(int num_hits, int num_trials, double low, double high) {
  const Interval interval = WilsonInterval(num_hits, num_trials);
  EXPECT_NEAR(interval.low, low, 1e-12) << num_hits << " of " << num_trials;
  EXPECT_NEAR(interval.high, high, 1e-12) << num_hits << " of " << num_trials;
}

// The formula in Python's double arithmetic.
TEST(WilsonInterval, OfSmallAndLargeShares) {
  ExpectInterval(5, 10, 0.236593090512564, 0.7634069094874361);
  ExpectInterval(1, 3, 0.06149194472039621, 0.7923403991979522);
  ExpectInterval(57, 100, 0.47215389549212305, 0.6626670147588988);
}

TEST(WilsonInterval, IsNotEmptyAtTheEnds) {
  ExpectInterval(0, 10, 0, 0.2775327998628892);
  ExpectInterval(10, 10, 0.7224672001371107, 1);
  ExpectInterval(0, 0, 0, 1);
}

}  // namespace
}  // namespace lssar::cli

// Expected values: CPython 3.11, e.g. r = random.Random(7); [r.randint(1, 50000) for _ in
// range(5)].
#include "clients/cli/python_random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lssar::cli {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> DrawKeys(PythonRandom* rng, int num_keys) {
  std::vector<int64_t> keys;
  for (int i = 0; i < num_keys; ++i) keys.push_back(rng->RandInt(1, 50000));
  return keys;
}

TEST(PythonRandom, DrawsAsCPythonDoes) {
  PythonRandom rng(7);
  EXPECT_THAT(DrawKeys(&rng, 5), ElementsAre(21223, 9887, 25876, 42660, 3165));
  EXPECT_EQ(rng.Random(), 0x1.28b2f3a47e100p-4);
  EXPECT_EQ(rng.Random(), 0x1.125f2046063a0p-1);
  EXPECT_EQ(rng.Random(), 0x1.767727ca98cc2p-2);
  EXPECT_EQ(rng.RandInt(3, 3), 3);
  EXPECT_EQ(rng.RandInt(0, (int64_t{1} << 31) - 1), 922121676);
}

TEST(PythonRandom, SeedZero) {
  PythonRandom rng(0);
  EXPECT_THAT(DrawKeys(&rng, 5), ElementsAre(25248, 49674, 27563, 2654, 16969));
  EXPECT_EQ(rng.Random(), 0x1.ee5169e0b8b99p-1);
}

TEST(PythonRandom, SeedOfTwoWords) {
  PythonRandom rng(12345678901234567890u);
  EXPECT_THAT(DrawKeys(&rng, 5), ElementsAre(33556, 35835, 42095, 29331, 21408));
  EXPECT_EQ(rng.Random(), 0x1.6a86bec34d808p-2);
}

TEST(PythonRandom, FarIntoTheSequence) {
  PythonRandom rng(1);
  for (int i = 0; i < 2000; ++i) rng.Random();
  EXPECT_THAT(DrawKeys(&rng, 3), ElementsAre(25542, 19054, 22859));
  EXPECT_EQ(rng.Random(), 0x1.8d3f3b7064b4bp-1);
}

}  // namespace
}  // namespace lssar::cli

#include "server/http/body_memory.h"

#include <gtest/gtest.h>

namespace lssar {
namespace {

TEST(BodyMemoryTest, AnAddressHasItsShareAndNoMore) {
  BodyMemory bodies(/*max_total=*/100, /*max_per_address=*/60);
  EXPECT_TRUE(bodies.Add("a", 40).ok());
  EXPECT_TRUE(bodies.Add("a", 20).ok());
  const absl::Status refused = bodies.Add("a", 1);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(refused.message(),
            "the requests of this address that are being read have 61 bytes; they may have 60; "
            "retry later");
  EXPECT_TRUE(bodies.Add("b", 39).ok());
  EXPECT_TRUE(absl::IsUnavailable(bodies.Add("b", 1)));
}

TEST(BodyMemoryTest, WhatIsRefusedCountsUntilItIsFreed) {
  BodyMemory bodies(100, 60);
  EXPECT_FALSE(bodies.Add("a", 70).ok());
  EXPECT_FALSE(bodies.Add("a", 1).ok());
  EXPECT_TRUE(bodies.Add("a", -71).ok());
  EXPECT_TRUE(bodies.Add("a", 60).ok());
  EXPECT_TRUE(bodies.Add("b", 40).ok());
}

TEST(BodyMemoryTest, WithoutALimitPerAddressOnlyTheTotalCounts) {
  BodyMemory bodies(100, 0);
  EXPECT_TRUE(bodies.Add("a", 100).ok());
  EXPECT_TRUE(absl::IsUnavailable(bodies.Add("a", 1)));
  EXPECT_TRUE(bodies.Add("a", 0).ok());
}

}  // namespace
}  // namespace lssar

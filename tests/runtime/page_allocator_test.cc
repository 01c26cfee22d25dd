#include "runtime/page_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace lssar {
namespace {

TEST(PageAllocator, TakesAllOrNothing) {
  PageAllocator pages(4);
  std::vector<int32_t> held;
  ASSERT_TRUE(pages.Acquire(3, &held));
  EXPECT_EQ(held.size(), 3u);
  EXPECT_FALSE(pages.Acquire(2, &held));
  EXPECT_EQ(held.size(), 3u);
  EXPECT_EQ(pages.NumFree(), 1);
  EXPECT_TRUE(pages.Acquire(0, &held));
  EXPECT_TRUE(pages.Acquire(1, &held));
  EXPECT_EQ(pages.NumFree(), 0);
}

TEST(PageAllocator, ConservesPagesThroughAnyUse) {
  constexpr int kNumPages = 97;
  PageAllocator pages(kNumPages);
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> owners;
  for (int round = 0; round < 20000; ++round) {
    if (owners.empty() || random() % 2 == 0) {
      std::vector<int32_t> held;
      const int wanted = int(random() % 30);
      const bool fits = wanted <= pages.NumFree();
      ASSERT_EQ(pages.Acquire(wanted, &held), fits);
      ASSERT_EQ(held.size(), fits ? size_t(wanted) : 0u);
      owners.push_back(held);
    } else {
      const size_t i = random() % owners.size();
      pages.Release(&owners[i]);
      ASSERT_TRUE(owners[i].empty());
      owners.erase(owners.begin() + std::ptrdiff_t(i));
    }
    std::set<int32_t> held;
    size_t num_held = 0;
    for (const auto& owner : owners) {
      num_held += owner.size();
      held.insert(owner.begin(), owner.end());
    }
    ASSERT_EQ(held.size(), num_held) << "a page has two owners";
    ASSERT_EQ(int(num_held) + pages.NumFree(), kNumPages);
    for (const int32_t page_id : held) ASSERT_TRUE(page_id >= 0 && page_id < kNumPages);
  }
}

TEST(PageAllocator, ASharedPageIsFreeWhenItsLastHolderGoes) {
  PageAllocator pages(2);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Acquire(1, &first));
  second = first;
  pages.Share(first[0]);
  EXPECT_EQ(pages.NumHolders(first[0]), 2);
  pages.Release(&first);
  EXPECT_EQ(pages.NumFree(), 1);
  pages.Release(&second);
  EXPECT_EQ(pages.NumFree(), 2);
}

TEST(PageAllocator, AKeptPageIsIdleUntilItIsDroppedOrShared) {
  PageAllocator pages(4);
  std::vector<int32_t> held;
  ASSERT_TRUE(pages.Acquire(3, &held));
  const std::vector<int32_t> ids = held;
  for (const int32_t page_id : ids) pages.Keep(page_id);
  pages.Release(&held);
  EXPECT_EQ(pages.NumFree(), 1);
  EXPECT_EQ(pages.NumIdle(), 3);
  EXPECT_EQ(pages.OldestIdle(), ids[2]) << "the last page of a text goes first";
  pages.Share(ids[1]);
  EXPECT_EQ(pages.NumIdle(), 2);
  pages.Drop(ids[2]);
  EXPECT_EQ(pages.NumFree(), 2);
  EXPECT_EQ(pages.OldestIdle(), ids[0]);
  pages.Release(ids[1]);
  EXPECT_EQ(pages.OldestIdle(), ids[0]) << "the page used last is the youngest";
  pages.Drop(ids[0]);
  pages.Drop(ids[1]);
  EXPECT_EQ(pages.OldestIdle(), -1);
  EXPECT_EQ(pages.NumFree(), 4);
}

TEST(PageAllocatorDeathTest, APageThatIsNotHeldIsABug) {
  PageAllocator pages(4);
  std::vector<int32_t> held;
  ASSERT_TRUE(pages.Acquire(1, &held));
  std::vector<int32_t> again = held;
  pages.Release(&held);
  EXPECT_DEATH(pages.Release(&again), "CHECK failed");
  std::vector<int32_t> unknown = {4};
  EXPECT_DEATH(pages.Release(&unknown), "CHECK failed");
}

}  // namespace
}  // namespace lssar

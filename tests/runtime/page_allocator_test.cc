#include "runtime/page_allocator.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace lssar {
namespace {

TEST(PageAllocator, AllocatesAllOrNothing) {
  PageAllocator pages(4);
  std::vector<int32_t> used;
  ASSERT_TRUE(pages.Allocate(3, &used));
  EXPECT_EQ(used.size(), 3u);
  EXPECT_FALSE(pages.Allocate(2, &used));
  EXPECT_EQ(used.size(), 3u);
  EXPECT_EQ(pages.NumFree(), 1);
  EXPECT_TRUE(pages.Allocate(0, &used));
  EXPECT_TRUE(pages.Allocate(1, &used));
  EXPECT_EQ(pages.NumFree(), 0);
}

TEST(PageAllocator, ConservesPagesThroughAnyUse) {
  constexpr int kNumPages = 97;
  PageAllocator pages(kNumPages);
  std::mt19937 random(7);
  std::vector<std::vector<int32_t>> owners;
  for (int round = 0; round < 20000; ++round) {
    if (owners.empty() || random() % 2 == 0) {
      std::vector<int32_t> used;
      const int wanted = int(random() % 30);
      const bool fits = wanted <= pages.NumFree();
      ASSERT_EQ(pages.Allocate(wanted, &used), fits);
      ASSERT_EQ(used.size(), fits ? size_t(wanted) : 0u);
      owners.push_back(used);
    } else {
      const size_t i = random() % owners.size();
      pages.Free(&owners[i]);
      ASSERT_TRUE(owners[i].empty());
      owners.erase(owners.begin() + std::ptrdiff_t(i));
    }
    std::set<int32_t> used;
    size_t num_used = 0;
    for (const auto& owner : owners) {
      num_used += owner.size();
      used.insert(owner.begin(), owner.end());
    }
    ASSERT_EQ(used.size(), num_used) << "a page has two owners";
    ASSERT_EQ(int(num_used) + pages.NumFree(), kNumPages);
    for (const int32_t page_id : used) ASSERT_TRUE(page_id >= 0 && page_id < kNumPages);
  }
}

TEST(PageAllocator, ASharedPageIsFreedWithItsLastReference) {
  PageAllocator pages(2);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Allocate(1, &first));
  second = first;
  pages.AddRef(first[0]);
  EXPECT_EQ(pages.RefCount(first[0]), 2);
  pages.Free(&first);
  EXPECT_EQ(pages.NumFree(), 1);
  pages.Free(&second);
  EXPECT_EQ(pages.NumFree(), 2);
}

TEST(PageAllocator, ACachedPageIsEvictableUntilItIsEvictedOrReferenced) {
  PageAllocator pages(4);
  std::vector<int32_t> used;
  ASSERT_TRUE(pages.Allocate(3, &used));
  const std::vector<int32_t> ids = used;
  for (const int32_t page_id : ids) pages.MarkCached(page_id);
  pages.Free(&used);
  EXPECT_EQ(pages.NumFree(), 1);
  EXPECT_EQ(pages.NumEvictable(), 3);
  EXPECT_EQ(pages.OldestEvictable(), ids[2]) << "the last page of a text is evicted first";
  pages.AddRef(ids[1]);
  EXPECT_EQ(pages.NumEvictable(), 2);
  pages.Evict(ids[2]);
  EXPECT_EQ(pages.NumFree(), 2);
  EXPECT_EQ(pages.OldestEvictable(), ids[0]);
  pages.Free(ids[1]);
  EXPECT_EQ(pages.OldestEvictable(), ids[0]) << "the page that was used last is evicted last";
  pages.Evict(ids[0]);
  pages.Evict(ids[1]);
  EXPECT_EQ(pages.OldestEvictable(), -1);
  EXPECT_EQ(pages.NumFree(), 4);
}

int NumBlocks(const std::vector<int32_t>& pages) {
  int num_blocks = 0;
  for (size_t i = 0; i < pages.size(); ++i) num_blocks += i == 0 || pages[i] != pages[i - 1] + 1;
  return num_blocks;
}

TEST(PageAllocatorBlocks, OneSequenceGrowsInOneBlock) {
  PageAllocator pages(256);
  std::vector<int32_t> used;
  for (int i = 0; i < 86; ++i) ASSERT_TRUE(pages.Allocate(i == 0 ? 1 : 3, &used));
  EXPECT_EQ(used.size(), 256u);
  EXPECT_EQ(NumBlocks(used), 1);
}

TEST(PageAllocatorBlocks, SixteenGrowSideBySide) {
  PageAllocator pages(1024);
  std::vector<std::vector<int32_t>> sequences(16);
  for (auto& used : sequences) ASSERT_TRUE(pages.Allocate(8, &used));
  for (int i = 8; i < 40; ++i) {
    for (auto& used : sequences) ASSERT_TRUE(pages.Allocate(1, &used));
  }
  for (const auto& used : sequences) EXPECT_EQ(NumBlocks(used), 1);
}

TEST(PageAllocatorBlocks, ANewBlockStartsWhereMostPagesAreFree) {
  PageAllocator pages(64);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Allocate(4, &first));
  ASSERT_TRUE(pages.Allocate(4, &second));
  EXPECT_EQ(second[0], 4 + 30) << "the first sequence keeps half of the free pages";
  ASSERT_TRUE(pages.Allocate(32, &first));
  EXPECT_EQ(NumBlocks(first), 2);
  EXPECT_EQ(first[34], 38 + 13) << "after the second, which keeps half of its free pages";
}

TEST(PageAllocatorBlocks, NoPagesAreReservedAfterACachedPage) {
  PageAllocator pages(64);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Allocate(4, &first));
  EXPECT_TRUE(pages.HasFreeBlock(second, 30));
  EXPECT_FALSE(pages.HasFreeBlock(second, 31));
  EXPECT_TRUE(pages.HasFreeBlock(first, 31)) << "it starts no block";
  pages.MarkCached(first[3]);
  EXPECT_TRUE(pages.HasFreeBlock(second, 60));
  EXPECT_FALSE(pages.HasFreeBlock(second, 61));
  ASSERT_TRUE(pages.Allocate(60, &second));
  EXPECT_EQ(second[0], 4);
  EXPECT_EQ(NumBlocks(second), 1);
  EXPECT_FALSE(pages.HasFreeBlock(first, 1));
}

// Sixteen sequences that grow by single pages up to 96 each: half of the pool is in use on average,
// and at times nearly all of it.
TEST(PageAllocatorBlocks, StayLongWhileSequencesStartAndEnd) {
  PageAllocator pages(1024);
  std::mt19937 random(3);
  struct Growing {
    std::vector<int32_t> used;
    size_t end = 0;
  };
  std::vector<Growing> sequences(16);
  size_t num_pages = 0, num_ended = 0;
  int num_blocks = 0;
  for (int round = 0; round < 20000; ++round) {
    Growing& sequence = sequences[random() % sequences.size()];
    if (sequence.used.size() == sequence.end) {
      num_pages += sequence.end;
      num_blocks += NumBlocks(sequence.used);
      num_ended += !sequence.used.empty();
      pages.Free(&sequence.used);
      sequence.end = 1 + random() % 96;
    }
    ASSERT_TRUE(pages.Allocate(1, &sequence.used) || pages.NumFree() == 0);
  }
  EXPECT_GT(num_ended, 300u);
  EXPECT_GT(num_pages, 16 * size_t(num_blocks));
}

// The same rules, implemented on sets.
class PageSets {
 public:
  explicit PageSets(int num_pages) {
    for (int32_t page_id = 0; page_id < num_pages; ++page_id) free.insert(page_id);
  }

  // Allocates the next page of a sequence whose last page is `last`; -1: it has none yet.
  int32_t Allocate(int32_t last) {
    int32_t allocated = last + 1;
    if (last < 0 || !free.contains(allocated)) {
      int most = 0;
      for (const int32_t first : free) {
        if (free.contains(first - 1)) continue;
        int num_free = 0;
        while (free.contains(first + num_free)) ++num_free;
        const int left = written.contains(first - 1) ? num_free / 2 : 0;
        if (num_free - left <= most) continue;
        most = num_free - left;
        allocated = first + left;
      }
    }
    free.erase(allocated);
    written.insert(allocated);
    return allocated;
  }

  std::set<int32_t> free, written, full;  // a page in none of them is evictable
};

TEST(PageAllocatorBlocks, AreThoseOfTheModelOnSets) {
  for (const int num_pages : {1, 63, 64, 65, 128, 200}) {
    PageAllocator pages(num_pages);
    PageSets sets(num_pages);
    std::mt19937 random{uint32_t(num_pages)};
    std::vector<std::vector<int32_t>> owners(7);
    for (int round = 0; round < 5000; ++round) {
      std::vector<int32_t>& used = owners[random() % owners.size()];
      const auto choice = random() % 8;
      if (choice == 0) {
        for (const int32_t page_id : used) {
          if (sets.written.erase(page_id) > 0) sets.free.insert(page_id);
          sets.full.erase(page_id);
        }
        pages.Free(&used);
      } else if (choice == 1 && !used.empty() && !pages.IsCached(used.back())) {
        pages.MarkCached(used.back());
        sets.written.erase(used.back());
        sets.full.insert(used.back());
      } else if (choice == 2 && pages.NumEvictable() > 0) {
        sets.free.insert(pages.OldestEvictable());
        pages.Evict(pages.OldestEvictable());
      } else {
        const int num_wanted = int(random() % 5);
        std::vector<int32_t> expected = used;
        const bool fits = num_wanted <= int(sets.free.size());
        for (int i = 0; fits && i < num_wanted; ++i) {
          expected.push_back(sets.Allocate(expected.empty() ? -1 : expected.back()));
        }
        ASSERT_EQ(pages.Allocate(num_wanted, &used), fits);
        ASSERT_EQ(used, expected) << num_pages << " pages, round " << round;
      }
      ASSERT_EQ(pages.NumFree(), int(sets.free.size()));
      ASSERT_EQ(pages.NumEvictable(),
                num_pages - int(sets.free.size() + sets.written.size() + sets.full.size()));
    }
  }
}

TEST(PageAllocatorDeathTest, FreeingAPageThatIsNotInUseIsABug) {
  PageAllocator pages(4);
  std::vector<int32_t> used;
  ASSERT_TRUE(pages.Allocate(1, &used));
  std::vector<int32_t> again = used;
  pages.Free(&used);
  EXPECT_DEATH(pages.Free(&again), "CHECK failed");
  std::vector<int32_t> unknown = {4};
  EXPECT_DEATH(pages.Free(&unknown), "CHECK failed");
}

}  // namespace
}  // namespace lssar

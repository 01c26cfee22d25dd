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

int NumRuns(const std::vector<int32_t>& pages) {
  int num_runs = 0;
  for (size_t i = 0; i < pages.size(); ++i) num_runs += i == 0 || pages[i] != pages[i - 1] + 1;
  return num_runs;
}

TEST(PageAllocatorRuns, OneSequenceGrowsInOneRun) {
  PageAllocator pages(256);
  std::vector<int32_t> held;
  for (int i = 0; i < 86; ++i) ASSERT_TRUE(pages.Acquire(i == 0 ? 1 : 3, &held));
  EXPECT_EQ(held.size(), 256u);
  EXPECT_EQ(NumRuns(held), 1);
}

TEST(PageAllocatorRuns, SixteenGrowSideBySide) {
  PageAllocator pages(1024);
  std::vector<std::vector<int32_t>> sequences(16);
  for (auto& held : sequences) ASSERT_TRUE(pages.Acquire(8, &held));
  for (int i = 8; i < 40; ++i) {
    for (auto& held : sequences) ASSERT_TRUE(pages.Acquire(1, &held));
  }
  for (const auto& held : sequences) EXPECT_EQ(NumRuns(held), 1);
}

TEST(PageAllocatorRuns, ANextOneBeginsWhereThereIsMostRoom) {
  PageAllocator pages(64);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Acquire(4, &first));
  ASSERT_TRUE(pages.Acquire(4, &second));
  EXPECT_EQ(second[0], 4 + 30) << "half of the room is the first one's";
  ASSERT_TRUE(pages.Acquire(32, &first));
  EXPECT_EQ(NumRuns(first), 2);
  EXPECT_EQ(first[34], 38 + 13) << "behind the second, which keeps half of what it had";
}

// Nobody grows behind a page that is full.
TEST(PageAllocatorRuns, BehindAKeptPageAllRoomIsFree) {
  PageAllocator pages(64);
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pages.Acquire(4, &first));
  EXPECT_TRUE(pages.HasRoom(second, 30));
  EXPECT_FALSE(pages.HasRoom(second, 31));
  EXPECT_TRUE(pages.HasRoom(first, 31)) << "it begins no run";
  pages.Keep(first[3]);
  EXPECT_TRUE(pages.HasRoom(second, 60));
  EXPECT_FALSE(pages.HasRoom(second, 61));
  ASSERT_TRUE(pages.Acquire(60, &second));
  EXPECT_EQ(second[0], 4);
  EXPECT_EQ(NumRuns(second), 1);
  EXPECT_FALSE(pages.HasRoom(first, 1));
}

// Sixteen at a time that grow by single pages up to 96 each: half of the pool is held on average,
// and at times nearly all of it.
TEST(PageAllocatorRuns, StayLongWhileSequencesComeAndGo) {
  PageAllocator pages(1024);
  std::mt19937 random(3);
  struct Growing {
    std::vector<int32_t> held;
    size_t end = 0;
  };
  std::vector<Growing> sequences(16);
  size_t num_pages = 0, num_ended = 0;
  int num_runs = 0;
  for (int round = 0; round < 20000; ++round) {
    Growing& sequence = sequences[random() % sequences.size()];
    if (sequence.held.size() == sequence.end) {
      num_pages += sequence.end;
      num_runs += NumRuns(sequence.held);
      num_ended += !sequence.held.empty();
      pages.Release(&sequence.held);
      sequence.end = 1 + random() % 96;
    }
    ASSERT_TRUE(pages.Acquire(1, &sequence.held) || pages.NumFree() == 0);
  }
  EXPECT_GT(num_ended, 300u);
  EXPECT_GT(num_pages, 16 * size_t(num_runs));
}

// The same rules, on sets.
class PageSets {
 public:
  explicit PageSets(int num_pages) {
    for (int32_t page_id = 0; page_id < num_pages; ++page_id) free.insert(page_id);
  }

  // The page that a sequence takes whose last one is `last`; -1: it has none yet.
  int32_t Take(int32_t last) {
    int32_t taken = last + 1;
    if (last < 0 || !free.contains(taken)) {
      int most = 0;
      for (const int32_t first : free) {
        if (free.contains(first - 1)) continue;
        int num_free = 0;
        while (free.contains(first + num_free)) ++num_free;
        const int left = written.contains(first - 1) ? num_free / 2 : 0;
        if (num_free - left <= most) continue;
        most = num_free - left;
        taken = first + left;
      }
    }
    free.erase(taken);
    written.insert(taken);
    return taken;
  }

  std::set<int32_t> free, written, full;  // a page in none of them is idle
};

TEST(PageAllocatorRuns, AreThoseOfAModelOnSets) {
  for (const int num_pages : {1, 63, 64, 65, 128, 200}) {
    PageAllocator pages(num_pages);
    PageSets sets(num_pages);
    std::mt19937 random{uint32_t(num_pages)};
    std::vector<std::vector<int32_t>> owners(7);
    for (int round = 0; round < 5000; ++round) {
      std::vector<int32_t>& held = owners[random() % owners.size()];
      const auto choice = random() % 8;
      if (choice == 0) {
        for (const int32_t page_id : held) {
          if (sets.written.erase(page_id) > 0) sets.free.insert(page_id);
          sets.full.erase(page_id);
        }
        pages.Release(&held);
      } else if (choice == 1 && !held.empty() && !pages.IsKept(held.back())) {
        pages.Keep(held.back());
        sets.written.erase(held.back());
        sets.full.insert(held.back());
      } else if (choice == 2 && pages.NumIdle() > 0) {
        sets.free.insert(pages.OldestIdle());
        pages.Drop(pages.OldestIdle());
      } else {
        const int num_wanted = int(random() % 5);
        std::vector<int32_t> expected = held;
        const bool fits = num_wanted <= int(sets.free.size());
        for (int i = 0; fits && i < num_wanted; ++i) {
          expected.push_back(sets.Take(expected.empty() ? -1 : expected.back()));
        }
        ASSERT_EQ(pages.Acquire(num_wanted, &held), fits);
        ASSERT_EQ(held, expected) << num_pages << " pages, round " << round;
      }
      ASSERT_EQ(pages.NumFree(), int(sets.free.size()));
      ASSERT_EQ(pages.NumIdle(),
                num_pages - int(sets.free.size() + sets.written.size() + sets.full.size()));
    }
  }
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

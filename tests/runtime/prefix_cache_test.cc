#include "runtime/prefix_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace lssar {
namespace {

constexpr int kPageSize = 4;
using Ids = std::vector<int32_t>;

// A pool of pages with a cache on it; `hash` as bad as one likes.
struct Pool {
  explicit Pool(int num_pages, PrefixCache::Hash hash = PrefixCache::HashIds)
      : pages(num_pages), cache(&pages, kPageSize, std::move(hash)) {}

  // Puts a text of whole pages into the cache and lets go of it; its pages.
  Ids Put(const Ids& text, const PrefixRoot& root = {},
          const std::vector<TokenScore>& scores = {}) {
    Ids held;
    for (size_t i = 0; i < text.size(); i += kPageSize) {
      const int32_t parent = held.empty() ? PrefixCache::kNone : held.back();
      Ids taken;
      while (!pages.Acquire(1, &taken)) cache.EvictOldest();
      const int32_t kept =
          cache.Insert({.root = root,
                        .parent = parent,
                        .ids = std::span(text).subspan(i, kPageSize),
                        .scores = scores.empty() ? std::span<const TokenScore>()
                                                 : std::span(scores).subspan(i, kPageSize)},
                       taken[0]);
      if (kept != taken[0]) {
        pages.Share(kept);
        pages.Release(taken[0]);
      }
      held.push_back(kept);
    }
    const Ids ids = held;
    pages.Release(&held);
    return ids;
  }

  Ids Find(const Ids& text, const PrefixRoot& root = {}) const {
    Ids found;
    int32_t parent = PrefixCache::kNone;
    for (size_t i = 0; i + kPageSize <= text.size(); i += kPageSize) {
      parent = cache.Find(root, parent, std::span(text).subspan(i, kPageSize));
      if (parent == PrefixCache::kNone) break;
      found.push_back(parent);
    }
    return found;
  }

  PageAllocator pages;
  PrefixCache cache;
};

TEST(PrefixCache, FindsTheLongestBeginning) {
  Pool pool(8);
  const Ids pages = pool.Put({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(pool.Find({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), pages);
  EXPECT_EQ(pool.Find({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), (Ids{pages[0], pages[1]}));
  EXPECT_EQ(pool.Find({1, 2, 3, 4, 5, 6, 7, 0}), (Ids{pages[0]}));
  EXPECT_EQ(pool.Find({5, 6, 7, 8}), Ids{}) << "the same tokens after others are another page";
  EXPECT_EQ(pool.Find({}), Ids{});
}

TEST(PrefixCache, RootsKeepTextsApart) {
  Pool pool(16);
  const Ids text = {1, 2, 3, 4, 5, 6, 7, 8};
  const Ids plain = pool.Put(text, {.rope_base = 10000});
  EXPECT_EQ(pool.Find(text, {.rope_base = 20000}), Ids{});
  EXPECT_EQ(pool.Find(text, {.rope_base = 10000, .salt = "a"}), Ids{});
  const Ids salted = pool.Put(text, {.rope_base = 10000, .salt = "a"});
  EXPECT_EQ(pool.Find(text, {.rope_base = 10000}), plain);
  EXPECT_EQ(pool.Find(text, {.rope_base = 10000, .salt = "a"}), salted);
  EXPECT_NE(plain, salted);
}

TEST(PrefixCache, ATextThatWasComputedTwiceIsKeptOnce) {
  Pool pool(8);
  const Ids text = {1, 2, 3, 4, 5, 6, 7, 8};
  const Ids first = pool.Put(text);
  EXPECT_EQ(pool.Put(text), first);
  EXPECT_EQ(pool.pages.NumIdle(), 2);
  EXPECT_EQ(pool.pages.NumFree(), 6);
}

TEST(PrefixCache, KnowsWhatWasScoredAndLearnsMore) {
  Pool pool(8);
  const Ids text = {1, 2, 3, 4};
  const TokenScore known{.logprob = -1.5f, .is_known = true, .is_greedy = true};
  const int32_t page = pool.Put(text, {}, {{}, known, {}, {}})[0];
  EXPECT_FALSE(pool.cache.Scores(page)[0].is_known);
  EXPECT_EQ(pool.cache.Scores(page)[1].logprob, -1.5f);
  EXPECT_TRUE(pool.cache.Scores(page)[1].is_greedy);
  pool.Put(text, {}, {{}, {}, {}, {.logprob = -2, .is_known = true}});
  EXPECT_TRUE(pool.cache.Scores(page)[1].is_known) << "what is not known does not erase";
  EXPECT_EQ(pool.cache.Scores(page)[3].logprob, -2);
}

TEST(PrefixCache, TheOldestLeafGoesFirst) {
  Pool pool(4);
  pool.Put({1, 1, 1, 1, 2, 2, 2, 2});
  pool.Put({3, 3, 3, 3, 4, 4, 4, 4});
  pool.cache.EvictOldest();
  EXPECT_EQ(pool.Find({1, 1, 1, 1, 2, 2, 2, 2}).size(), 1u) << "the child, not its parent";
  EXPECT_EQ(pool.Find({3, 3, 3, 3, 4, 4, 4, 4}).size(), 2u);
  pool.Put({1, 1, 1, 1});  // used again
  pool.cache.EvictOldest();
  EXPECT_EQ(pool.Find({1, 1, 1, 1}).size(), 1u);
  EXPECT_EQ(pool.Find({3, 3, 3, 3, 4, 4, 4, 4}).size(), 1u);
}

// With any hash, even one that gives every page the same value, the cache answers as a map from
// texts to pages would.
class PrefixCacheHash : public testing::TestWithParam<int> {};

TEST_P(PrefixCacheHash, ACollisionNeverGivesAWrongPage) {
  const int num_values = GetParam();
  Pool pool(24, [num_values](uint64_t seed, std::span<const int32_t> ids) {
    const uint64_t hash = PrefixCache::HashIds(seed, ids);
    return num_values == 0 ? hash : hash % uint64_t(num_values);
  });
  std::map<int32_t, std::pair<std::string, Ids>> texts;  // of the page that ends them, with salts
  std::mt19937 random(5);
  for (int round = 0; round < 4000; ++round) {
    const std::string salt(random() % 2, 's');
    Ids text;
    for (uint64_t i = random() % 5 * kPageSize; i-- > 0;) text.push_back(int32_t(random() % 2));
    const Ids found = pool.Find(text, {.salt = salt});
    for (size_t i = 0; i < found.size(); ++i) {
      const Ids prefix(text.begin(), text.begin() + std::ptrdiff_t(i + 1) * kPageSize);
      ASSERT_EQ(texts.at(found[i]), std::make_pair(salt, prefix));
    }
    const Ids pages = pool.Put(text, {.salt = salt});
    for (size_t i = 0; i < pages.size(); ++i) {
      texts[pages[i]] = {salt, Ids(text.begin(), text.begin() + std::ptrdiff_t(i + 1) * kPageSize)};
    }
    ASSERT_EQ(pool.Find(text, {.salt = salt}), pages);
    ASSERT_EQ(pool.pages.NumFree() + pool.pages.NumIdle(), 24);
  }
}

INSTANTIATE_TEST_SUITE_P(Hashes, PrefixCacheHash, testing::Values(0, 1, 3));

}  // namespace
}  // namespace lssar

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

// A pool of pages with a prefix cache. Tests may pass a bad `hash`.
struct Pool {
  explicit Pool(int num_pages, PrefixCache::Hash hash = PrefixCache::HashIds)
      : pages(num_pages), cache(&pages, kPageSize, std::move(hash)) {}

  // Inserts a text of whole pages and frees it. Its pages, which are evictable then.
  Ids Put(const Ids& text, const PrefixRoot& root = {},
          const std::vector<TokenScore>& scores = {}) {
    Ids used;
    for (size_t i = 0; i < text.size(); i += kPageSize) {
      const int32_t parent = used.empty() ? PrefixCache::kNone : used.back();
      Ids allocated;
      while (!pages.Allocate(1, &allocated)) cache.EvictOldest();
      const int32_t cached =
          cache.Insert({.root = root,
                        .parent = parent,
                        .ids = std::span(text).subspan(i, kPageSize),
                        .scores = scores.empty() ? std::span<const TokenScore>()
                                                 : std::span(scores).subspan(i, kPageSize)},
                       allocated[0]);
      if (cached != allocated[0]) {
        pages.AddRef(cached);
        pages.Free(allocated[0]);
      }
      used.push_back(cached);
    }
    const Ids ids = used;
    pages.Free(&used);
    return ids;
  }

  Ids Match(const Ids& text, const PrefixRoot& root = {}) const {
    Ids matched;
    int32_t parent = PrefixCache::kNone;
    for (size_t i = 0; i + kPageSize <= text.size(); i += kPageSize) {
      parent = cache.Match(root, parent, std::span(text).subspan(i, kPageSize));
      if (parent == PrefixCache::kNone) break;
      matched.push_back(parent);
    }
    return matched;
  }

  PageAllocator pages;
  PrefixCache cache;
};

TEST(PrefixCache, MatchesTheLongestPrefix) {
  Pool pool(8);
  const Ids pages = pool.Put({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  EXPECT_EQ(pool.Match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}), pages);
  EXPECT_EQ(pool.Match({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), (Ids{pages[0], pages[1]}));
  EXPECT_EQ(pool.Match({1, 2, 3, 4, 5, 6, 7, 0}), (Ids{pages[0]}));
  EXPECT_EQ(pool.Match({5, 6, 7, 8}), Ids{}) << "the same tokens after others are another page";
  EXPECT_EQ(pool.Match({}), Ids{});
}

TEST(PrefixCache, TextsUnderDifferentRootsAreDistinct) {
  Pool pool(16);
  const Ids text = {1, 2, 3, 4, 5, 6, 7, 8};
  const Ids plain = pool.Put(text, {.rope_base = 10000});
  EXPECT_EQ(pool.Match(text, {.rope_base = 20000}), Ids{});
  EXPECT_EQ(pool.Match(text, {.rope_base = 10000, .salt = "a"}), Ids{});
  const Ids salted = pool.Put(text, {.rope_base = 10000, .salt = "a"});
  EXPECT_EQ(pool.Match(text, {.rope_base = 10000}), plain);
  EXPECT_EQ(pool.Match(text, {.rope_base = 10000, .salt = "a"}), salted);
  EXPECT_NE(plain, salted);
}

TEST(PrefixCache, ATextThatWasComputedTwiceIsCachedOnce) {
  Pool pool(8);
  const Ids text = {1, 2, 3, 4, 5, 6, 7, 8};
  const Ids first = pool.Put(text);
  EXPECT_EQ(pool.Put(text), first);
  EXPECT_EQ(pool.pages.NumEvictable(), 2);
  EXPECT_EQ(pool.pages.NumFree(), 6);
}

TEST(PrefixCache, StoresScoresAndAddsNewOnes) {
  Pool pool(8);
  const Ids text = {1, 2, 3, 4};
  const TokenScore known{.logprob = -1.5f, .is_known = true, .is_greedy = true};
  const int32_t page = pool.Put(text, {}, {{}, known, {}, {}})[0];
  EXPECT_FALSE(pool.cache.Scores(page)[0].is_known);
  EXPECT_EQ(pool.cache.Scores(page)[1].logprob, -1.5f);
  EXPECT_TRUE(pool.cache.Scores(page)[1].is_greedy);
  pool.Put(text, {}, {{}, {}, {}, {.logprob = -2, .is_known = true}});
  EXPECT_TRUE(pool.cache.Scores(page)[1].is_known) << "unknown scores do not overwrite known ones";
  EXPECT_EQ(pool.cache.Scores(page)[3].logprob, -2);
}

TEST(PrefixCache, TheOldestLeafIsEvictedFirst) {
  Pool pool(4);
  pool.Put({1, 1, 1, 1, 2, 2, 2, 2});
  pool.Put({3, 3, 3, 3, 4, 4, 4, 4});
  pool.cache.EvictOldest();
  EXPECT_EQ(pool.Match({1, 1, 1, 1, 2, 2, 2, 2}).size(), 1u) << "the child, not its parent";
  EXPECT_EQ(pool.Match({3, 3, 3, 3, 4, 4, 4, 4}).size(), 2u);
  pool.Put({1, 1, 1, 1});  // used again
  pool.cache.EvictOldest();
  EXPECT_EQ(pool.Match({1, 1, 1, 1}).size(), 1u);
  EXPECT_EQ(pool.Match({3, 3, 3, 3, 4, 4, 4, 4}).size(), 1u);
}

// With any hash, even a constant one, the cache behaves like a map from texts to pages.
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
    const Ids matched = pool.Match(text, {.salt = salt});
    for (size_t i = 0; i < matched.size(); ++i) {
      const Ids prefix(text.begin(), text.begin() + std::ptrdiff_t(i + 1) * kPageSize);
      ASSERT_EQ(texts.at(matched[i]), std::make_pair(salt, prefix));
    }
    const Ids pages = pool.Put(text, {.salt = salt});
    for (size_t i = 0; i < pages.size(); ++i) {
      texts[pages[i]] = {salt, Ids(text.begin(), text.begin() + std::ptrdiff_t(i + 1) * kPageSize)};
    }
    ASSERT_EQ(pool.Match(text, {.salt = salt}), pages);
    ASSERT_EQ(pool.pages.NumFree() + pool.pages.NumEvictable(), 24);
  }
}

INSTANTIATE_TEST_SUITE_P(Hashes, PrefixCacheHash, testing::Values(0, 1, 3));

}  // namespace
}  // namespace lssar

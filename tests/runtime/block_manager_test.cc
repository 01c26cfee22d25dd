#include "runtime/block_manager.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

// Inserts the pages of a new text into the prefix cache and frees them.
void InsertText(BlockManager* blocks, int text_id, int num_pages) {
  std::vector<int32_t> used;
  for (int i = 0; i < num_pages; ++i) {
    const int32_t parent = used.empty() ? PrefixCache::kNone : used.back();
    ASSERT_TRUE(blocks->Allocate(1, &used));
    const std::vector<int32_t> ids(16, text_id);
    blocks->Prefixes().Insert({.root = {}, .parent = parent, .ids = ids, .scores = {}},
                              used.back());
  }
  blocks->Pages().Free(&used);
}

// The pool is full of cached texts that are not in use. Four sequences grow into it in turns.
TEST(BlockManager, EvictsBlocksFromAFullCache) {
  MemoryBackend backend;
  const EngineOptions options{
      .max_model_len = 100, .page_size = 16, .kv_cache_bytes = 512 * 2 * 2 * 3 * 16 * 8 * 2};
  const auto cache = *KvCache::Create(SmallConfig(), options, &backend);
  BlockManager blocks(cache.get());
  EXPECT_EQ(blocks.Pages().NumFree(), 512);
  for (int text_id = 0; text_id < 64; ++text_id) InsertText(&blocks, text_id, 12);
  ASSERT_LE(blocks.Pages().NumFree(), 512 / 8);
  std::vector<std::vector<int32_t>> sequences(4);
  for (int i = 0; i < 64; ++i) {
    for (auto& pages : sequences) ASSERT_TRUE(blocks.Allocate(1, &pages));
    ASSERT_LE(blocks.Pages().NumFree(), 512 / 8) << "the cache loses no more pages";
  }
  for (const auto& pages : sequences) {
    int num_blocks = 1;
    for (size_t i = 1; i < pages.size(); ++i) num_blocks += pages[i] != pages[i - 1] + 1;
    EXPECT_LE(num_blocks, 64 / 8);
  }
  std::vector<int32_t> rest;
  EXPECT_FALSE(blocks.Allocate(257, &rest));
  EXPECT_TRUE(blocks.Allocate(256, &rest)) << "all evictable pages can be allocated";
  EXPECT_EQ(blocks.NumAvailable(), 0);
}

}  // namespace
}  // namespace lssar

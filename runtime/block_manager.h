// The pages of sequences: allocate, match a cached prefix, fork, copy-on-write, free.
#ifndef LSSAR_RUNTIME_BLOCK_MANAGER_H_
#define LSSAR_RUNTIME_BLOCK_MANAGER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv_cache.h"
#include "runtime/page_allocator.h"
#include "runtime/prefix_cache.h"
#include "runtime/sequence.h"

namespace lssar {

// A sequence uses its pages in token order: as many as its computed tokens and the tokens of the
// step need. The first num_read_only_pages are full and may be shared, through the prefix cache or
// by a fork. All pages after them belong to the sequence alone, which writes them. A sequence that
// has to write into a shared page gets a copy of it.
// Cost      no call allocates memory once the sequence's vectors have their capacity
// Threads   the engine's thread only
class BlockManager {
 public:
  // `kv_cache` must outlive this.
  explicit BlockManager(KvCache* kv_cache);

  const KvLayout& Layout() const { return kv_cache_->Layout(); }
  PageAllocator& Pages() { return pages_; }
  const PageAllocator& Pages() const { return pages_; }
  PrefixCache& Prefixes() { return prefixes_; }

  // Pages that Allocate can give: free and evictable ones.
  int NumAvailable() const { return pages_.NumFree() + pages_.NumEvictable(); }
  // As PageAllocator::Allocate, but evicts cached pages before it fails, the oldest first. Evicts a
  // few more where `pages` would otherwise start a small block.
  bool Allocate(int num_pages, std::vector<int32_t>* pages);

  // Allocates pages for the first `num_tokens` tokens of `sequence`. False: out of pages, and
  // nothing changed.
  bool AllocateFor(Sequence* sequence, int num_tokens);
  // The most tokens of `sequence` that AllocateFor can give pages for.
  int MaxTokens(const Sequence& sequence) const;

  // As AllocateFor, without evicting a cached page, not even for adjacent pages.
  bool AllocateFreeFor(Sequence* sequence, int num_tokens);
  // Frees the pages after those of the computed tokens. What else a page in use holds after them
  // is never read.
  void FreeUncomputed(Sequence* sequence);

  // Takes over cached pages for the tokens after the computed ones, up to the first token whose
  // logits are needed. Where that token lies inside a page, the sequence gets a copy of the page.
  // False: nothing changed.
  // Requires  the computed tokens end at a page boundary, or num_computed_tokens was just lowered
  bool MatchPrefix(Sequence* sequence);
  // The number of cached pages at the beginning of `ids` that running sequences use: another
  // sequence can share them at no cost to the pool.
  int NumSharedPrefixPages(const PrefixRoot& root, std::span<const int32_t> ids) const;

  // Inserts the full pages of `sequence` into the prefix cache. Called before the task handles its
  // results, while it still has the scores of these tokens.
  void InsertFullPages(Sequence* sequence);

  // `to` shares the pages of the first `num_tokens` tokens that `from` has computed. The last page
  // is copied when it is partly filled; out of pages, `to` shares only the full pages before it.
  // Requires  `to` has no pages
  void Fork(const Sequence& from, Sequence* to, int num_tokens);

  // num_computed_tokens was lowered: frees the pages after it, and matches what may follow.
  void Truncate(Sequence* sequence);

  // Frees all pages; no token counts as computed then.
  void Free(Sequence* sequence);

 private:
  int FullPages(int num_tokens) const { return num_tokens / page_size_; }
  std::span<const int32_t> IdsOfPage(std::span<const int32_t> ids, int page_idx) const;
  // Appends a copy of `from` to the pages of `sequence`. False: out of pages, nothing is appended.
  bool AppendCopy(Sequence* sequence, int32_t from);
  // Frees the pages of `sequence` from index `page_idx` on.
  void FreeFrom(Sequence* sequence, int page_idx);

  KvCache* const kv_cache_;
  const int page_size_;
  PageAllocator pages_;
  PrefixCache prefixes_;
  std::vector<int32_t> matched_;    // of MatchPrefix
  std::vector<TokenScore> scores_;  // of InsertFullPages, one page
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_BLOCK_MANAGER_H_

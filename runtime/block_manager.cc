#include "runtime/block_manager.h"

#include <algorithm>

#include "base/check.h"

namespace lssar {
namespace {

// A pool full of cached pages has no blocks to give: the page that one call evicts is the one that
// the next call gets. So when a block would start with fewer free pages than kMinBlockPages, as
// many pages are evicted, as long as no more than 1 / kFreeShare of the pool is free.
constexpr int kMinBlockPages = 16;
constexpr int kFreeShare = 8;

}  // namespace

BlockManager::BlockManager(KvCache* kv_cache)
    : kv_cache_(kv_cache),
      page_size_(kv_cache->Layout().page_size),
      pages_(kv_cache->Layout().num_pages),
      prefixes_(&pages_, page_size_),
      scores_(size_t(page_size_)) {
  matched_.reserve(size_t(kv_cache->Layout().num_pages));
}

bool BlockManager::Allocate(int num_pages, std::vector<int32_t>* pages) {
  if (num_pages > NumAvailable()) return false;
  while (pages_.NumFree() < num_pages) prefixes_.EvictOldest();
  if (!pages_.HasFreeBlock(*pages, kMinBlockPages)) {
    const int most_free =
        std::min(pages_.NumFree() + kMinBlockPages, pages_.NumPages() / kFreeShare);
    while (pages_.NumFree() < most_free && pages_.NumEvictable() > 0) prefixes_.EvictOldest();
  }
  return pages_.Allocate(num_pages, pages);
}

bool BlockManager::AllocateFor(Sequence* sequence, int num_tokens) {
  const int num_missing = Layout().PagesFor(num_tokens) - int(sequence->pages.size());
  return num_missing <= 0 || Allocate(num_missing, &sequence->pages);
}

int BlockManager::MaxTokens(const Sequence& sequence) const {
  return (int(sequence.pages.size()) + NumAvailable()) * page_size_;
}

bool BlockManager::AllocateFreeFor(Sequence* sequence, int num_tokens) {
  const int num_missing = Layout().PagesFor(num_tokens) - int(sequence->pages.size());
  return num_missing <= 0 || pages_.Allocate(num_missing, &sequence->pages);
}

void BlockManager::FreeUncomputed(Sequence* sequence) {
  FreeFrom(sequence, Layout().PagesFor(sequence->num_computed_tokens));
}

bool BlockManager::MatchPrefix(Sequence* sequence) {
  if (!sequence->prefix_root) return false;
  const int first = FullPages(sequence->num_computed_tokens);
  matched_.clear();
  int32_t parent = first > 0 ? sequence->pages[size_t(first) - 1] : PrefixCache::kNone;
  for (int i = first; (i + 1) * page_size_ <= int(sequence->tokens.size()); ++i) {
    parent = prefixes_.Match(*sequence->prefix_root, parent, IdsOfPage(sequence->tokens, i));
    if (parent == PrefixCache::kNone) break;
    matched_.push_back(parent);
    sequence->task->OnCachedScores(i * page_size_, prefixes_.Scores(parent));
  }
  const int end = (first + int(matched_.size())) * page_size_;
  const int num_tokens = std::min(end, sequence->task->FirstLogitsPosition(*sequence));
  if (num_tokens <= sequence->num_computed_tokens) return false;

  // All matched pages are referenced until the copy is made: its allocation may evict pages.
  for (const int32_t page_id : matched_) pages_.AddRef(page_id);
  FreeFrom(sequence, first);
  const size_t num_used = size_t(FullPages(num_tokens) - first);
  sequence->pages.insert(sequence->pages.end(), matched_.begin(),
                         matched_.begin() + std::ptrdiff_t(num_used));
  sequence->num_read_only_pages = int(sequence->pages.size());
  sequence->num_computed_tokens = num_tokens;
  if (num_tokens % page_size_ != 0 && !AppendCopy(sequence, matched_[num_used])) {
    sequence->num_computed_tokens = sequence->num_read_only_pages * page_size_;
  }
  for (size_t i = matched_.size(); i-- > num_used;) pages_.Free(matched_[i]);
  return true;
}

int BlockManager::NumSharedPrefixPages(const PrefixRoot& root, std::span<const int32_t> ids) const {
  int num_shared = 0;
  int32_t parent = PrefixCache::kNone;
  for (; (num_shared + 1) * page_size_ <= int(ids.size()); ++num_shared) {
    parent = prefixes_.Match(root, parent, IdsOfPage(ids, num_shared));
    if (parent == PrefixCache::kNone || pages_.RefCount(parent) == 0) break;
  }
  return num_shared;
}

void BlockManager::InsertFullPages(Sequence* sequence) {
  if (!sequence->prefix_root) return;
  while (sequence->num_read_only_pages < FullPages(sequence->num_computed_tokens)) {
    const int i = sequence->num_read_only_pages++;
    std::ranges::fill(scores_, TokenScore{});
    sequence->task->GetScores(i * page_size_, scores_);
    int32_t& page_id = sequence->pages[size_t(i)];
    const int32_t cached =
        prefixes_.Insert({.root = *sequence->prefix_root,
                          .parent = i > 0 ? sequence->pages[size_t(i) - 1] : PrefixCache::kNone,
                          .ids = IdsOfPage(sequence->tokens, i),
                          .scores = scores_},
                         page_id);
    if (cached == page_id) continue;
    pages_.AddRef(cached);
    pages_.Free(page_id);
    page_id = cached;
  }
}

void BlockManager::Fork(const Sequence& from, Sequence* to, int num_tokens) {
  LSSAR_CHECK(to->pages.empty() && from.num_computed_tokens >= num_tokens);
  const int num_shared = FullPages(num_tokens);
  for (int i = 0; i < num_shared; ++i) {
    pages_.AddRef(from.pages[size_t(i)]);
    to->pages.push_back(from.pages[size_t(i)]);
  }
  to->num_read_only_pages = num_shared;
  to->num_computed_tokens = num_shared * page_size_;
  if (num_tokens % page_size_ != 0 && AppendCopy(to, from.pages[size_t(num_shared)])) {
    to->num_computed_tokens = num_tokens;
  }
}

void BlockManager::Truncate(Sequence* sequence) {
  if (MatchPrefix(sequence)) return;
  const int num_full = FullPages(sequence->num_computed_tokens);
  FreeFrom(sequence, Layout().PagesFor(sequence->num_computed_tokens));
  if (sequence->num_read_only_pages <= num_full) return;
  sequence->num_read_only_pages = num_full;
  if (int(sequence->pages.size()) == num_full) return;
  const int32_t read_only = sequence->pages.back();
  sequence->pages.pop_back();
  if (!AppendCopy(sequence, read_only)) sequence->num_computed_tokens = num_full * page_size_;
  pages_.Free(read_only);
}

void BlockManager::Free(Sequence* sequence) {
  pages_.Free(&sequence->pages);
  sequence->num_read_only_pages = 0;
  sequence->num_computed_tokens = 0;
}

std::span<const int32_t> BlockManager::IdsOfPage(std::span<const int32_t> ids, int page_idx) const {
  return ids.subspan(size_t(page_idx) * size_t(page_size_), size_t(page_size_));
}

bool BlockManager::AppendCopy(Sequence* sequence, int32_t from) {
  if (!Allocate(1, &sequence->pages)) return false;
  kv_cache_->CopyPage(from, sequence->pages.back());
  return true;
}

void BlockManager::FreeFrom(Sequence* sequence, int page_idx) {
  while (int(sequence->pages.size()) > page_idx) {
    pages_.Free(sequence->pages.back());
    sequence->pages.pop_back();
  }
}

}  // namespace lssar

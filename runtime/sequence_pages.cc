#include "runtime/sequence_pages.h"

#include <algorithm>

#include "kernels/check.h"

namespace lssar {

SequencePages::SequencePages(KvCache* kv_cache)
    : kv_cache_(kv_cache), page_size_(kv_cache->Layout().page_size), scores_(size_t(page_size_)) {
  matched_.reserve(size_t(kv_cache->Layout().num_pages));
}

std::span<const int32_t> SequencePages::IdsAt(std::span<const int32_t> ids, int page_idx) const {
  return ids.subspan(size_t(page_idx) * size_t(page_size_), size_t(page_size_));
}

bool SequencePages::Grow(Sequence* sequence, int num_tokens) {
  const int num_missing = kv_cache_->Layout().PagesFor(num_tokens) - int(sequence->pages.size());
  return num_missing <= 0 || kv_cache_->Acquire(num_missing, &sequence->pages);
}

int SequencePages::MaxTokens(const Sequence& sequence) const {
  return (int(sequence.pages.size()) + kv_cache_->NumAvailable()) * page_size_;
}

bool SequencePages::TakeCached(Sequence* sequence) {
  if (!sequence->root) return false;
  PrefixCache& cache = kv_cache_->Prefixes();
  PageAllocator& pages = kv_cache_->Pages();
  const int first = FullPages(sequence->num_computed);
  matched_.clear();
  int32_t parent = first > 0 ? sequence->pages[size_t(first) - 1] : PrefixCache::kNone;
  for (int i = first; (i + 1) * page_size_ <= int(sequence->tokens.size()); ++i) {
    parent = cache.Find(*sequence->root, parent, IdsAt(sequence->tokens, i));
    if (parent == PrefixCache::kNone) break;
    matched_.push_back(parent);
    sequence->task->TakeCached(i * page_size_, cache.Scores(parent));
  }
  const int end = (first + int(matched_.size())) * page_size_;
  const int num_tokens = std::min(end, sequence->task->FirstWantedRow(*sequence));
  if (num_tokens <= sequence->num_computed) return false;

  // All are held until the copy is made: taking a page for it may evict others.
  for (const int32_t page_id : matched_) pages.Share(page_id);
  ReleaseFrom(sequence, first);
  const size_t num_used = size_t(FullPages(num_tokens) - first);
  sequence->pages.insert(sequence->pages.end(), matched_.begin(),
                         matched_.begin() + std::ptrdiff_t(num_used));
  sequence->num_sealed_pages = int(sequence->pages.size());
  sequence->num_computed = num_tokens;
  if (num_tokens % page_size_ != 0 && !AppendCopy(sequence, matched_[num_used])) {
    sequence->num_computed = sequence->num_sealed_pages * page_size_;
  }
  for (size_t i = matched_.size(); i-- > num_used;) pages.Release(matched_[i]);
  return true;
}

int SequencePages::NumHeld(const PrefixRoot& root, std::span<const int32_t> ids) const {
  int num_held = 0;
  int32_t parent = PrefixCache::kNone;
  for (; (num_held + 1) * page_size_ <= int(ids.size()); ++num_held) {
    parent = kv_cache_->Prefixes().Find(root, parent, IdsAt(ids, num_held));
    if (parent == PrefixCache::kNone || kv_cache_->Pages().NumHolders(parent) == 0) break;
  }
  return num_held;
}

void SequencePages::Seal(Sequence* sequence) {
  if (!sequence->root) return;
  while (sequence->num_sealed_pages < FullPages(sequence->num_computed)) {
    const int i = sequence->num_sealed_pages++;
    std::ranges::fill(scores_, TokenScore{});
    sequence->task->ReadScores(i * page_size_, scores_);
    int32_t& page_id = sequence->pages[size_t(i)];
    const int32_t kept = kv_cache_->Prefixes().Insert(
        {.root = *sequence->root,
         .parent = i > 0 ? sequence->pages[size_t(i) - 1] : PrefixCache::kNone,
         .ids = IdsAt(sequence->tokens, i),
         .scores = scores_},
        page_id);
    if (kept == page_id) continue;
    kv_cache_->Pages().Share(kept);
    kv_cache_->Pages().Release(page_id);
    page_id = kept;
  }
}

void SequencePages::Fork(const Sequence& from, Sequence* to, int num_tokens) {
  LSSAR_CHECK(to->pages.empty() && from.num_computed >= num_tokens);
  const int num_shared = FullPages(num_tokens);
  for (int i = 0; i < num_shared; ++i) {
    kv_cache_->Pages().Share(from.pages[size_t(i)]);
    to->pages.push_back(from.pages[size_t(i)]);
  }
  to->num_sealed_pages = num_shared;
  to->num_computed = num_shared * page_size_;
  if (num_tokens % page_size_ != 0 && AppendCopy(to, from.pages[size_t(num_shared)])) {
    to->num_computed = num_tokens;
  }
}

void SequencePages::Rewind(Sequence* sequence) {
  if (TakeCached(sequence)) return;
  const int num_full = FullPages(sequence->num_computed);
  ReleaseFrom(sequence, kv_cache_->Layout().PagesFor(sequence->num_computed));
  if (sequence->num_sealed_pages <= num_full) return;
  sequence->num_sealed_pages = num_full;
  if (int(sequence->pages.size()) == num_full) return;
  const int32_t sealed = sequence->pages.back();
  sequence->pages.pop_back();
  if (!AppendCopy(sequence, sealed)) sequence->num_computed = num_full * page_size_;
  kv_cache_->Pages().Release(sealed);
}

void SequencePages::Release(Sequence* sequence) {
  kv_cache_->Pages().Release(&sequence->pages);
  sequence->num_sealed_pages = 0;
  sequence->num_computed = 0;
}

bool SequencePages::AppendCopy(Sequence* sequence, int32_t from) {
  if (!kv_cache_->Acquire(1, &sequence->pages)) return false;
  kv_cache_->CopyPage(from, sequence->pages.back());
  return true;
}

void SequencePages::ReleaseFrom(Sequence* sequence, int page_idx) {
  while (int(sequence->pages.size()) > page_idx) {
    kv_cache_->Pages().Release(sequence->pages.back());
    sequence->pages.pop_back();
  }
}

}  // namespace lssar

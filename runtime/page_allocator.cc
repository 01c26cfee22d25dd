#include "runtime/page_allocator.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lssar {
namespace {

constexpr int kWordBits = 64;

}  // namespace

PageAllocator::PageAllocator(int num_pages)
    : pages_(size_t(num_pages)), free_((size_t(num_pages) + kWordBits - 1) / kWordBits) {
  for (int32_t page_id = 0; page_id < num_pages; ++page_id) SetFree(page_id, true);
}

PageAllocator::Page& PageAllocator::At(int32_t page_id) {
  LSSAR_CHECK(page_id >= 0 && page_id < NumPages());
  return pages_[size_t(page_id)];
}

const PageAllocator::Page& PageAllocator::At(int32_t page_id) const {
  LSSAR_CHECK(page_id >= 0 && page_id < NumPages());
  return pages_[size_t(page_id)];
}

bool PageAllocator::Allocate(int num_pages, std::vector<int32_t>* pages) {
  LSSAR_CHECK(num_pages >= 0);
  if (num_pages > NumFree()) return false;
  for (int i = 0; i < num_pages; ++i) {
    const int32_t next = pages->empty() ? NumPages() : pages->back() + 1;
    const int32_t page_id = IsFree(next) ? next : LargestFreeBlock().page_id;
    SetFree(page_id, false);
    At(page_id).ref_count = 1;
    pages->push_back(page_id);
  }
  return true;
}

bool PageAllocator::HasFreeBlock(const std::vector<int32_t>& pages, int block_pages) const {
  return (!pages.empty() && IsFree(pages.back() + 1)) ||
         LargestFreeBlock().num_pages >= block_pages;
}

void PageAllocator::AddRef(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.ref_count > 0 || page.is_cached);
  if (page.ref_count++ == 0) RemoveEvictable(page_id);
}

void PageAllocator::Free(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.ref_count > 0);
  if (--page.ref_count > 0) return;
  if (page.is_cached) {
    AppendEvictable(page_id);
  } else {
    SetFree(page_id, true);
  }
}

void PageAllocator::Free(std::vector<int32_t>* pages) {
  for (size_t i = pages->size(); i-- > 0;) Free((*pages)[i]);
  pages->clear();
}

void PageAllocator::MarkCached(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.ref_count > 0 && !page.is_cached);
  page.is_cached = true;
}

void PageAllocator::Evict(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.ref_count == 0 && page.is_cached);
  RemoveEvictable(page_id);
  page.is_cached = false;
  SetFree(page_id, true);
}

bool PageAllocator::IsFree(int32_t page_id) const {
  return page_id < NumPages() &&
         (free_[size_t(page_id) / kWordBits] >> (page_id % kWordBits) & 1) != 0;
}

void PageAllocator::SetFree(int32_t page_id, bool is_free) {
  LSSAR_CHECK(IsFree(page_id) != is_free);
  free_[size_t(page_id) / kWordBits] ^= uint64_t{1} << (page_id % kWordBits);
  num_free_ += is_free ? 1 : -1;
}

int32_t PageAllocator::Next(bool is_free, int32_t page_id) const {
  uint64_t ahead = ~uint64_t{0} << (page_id % kWordBits);
  for (size_t word = size_t(page_id) / kWordBits; word < free_.size(); ++word) {
    const uint64_t found = (is_free ? free_[word] : ~free_[word]) & ahead;
    if (found != 0) return std::min(int(word) * kWordBits + std::countr_zero(found), NumPages());
    ahead = ~uint64_t{0};
  }
  return NumPages();
}

// A sequence that grows into a free block from the left keeps the first half of it.
PageAllocator::Block PageAllocator::LargestFreeBlock() const {
  Block largest;
  for (int32_t first = Next(true, 0); first < NumPages();) {
    const int32_t end = Next(false, first);
    const int num_pages = IsPartlyFilled(first - 1) ? (end - first + 1) / 2 : end - first;
    if (num_pages > largest.num_pages) {
      largest = {.page_id = end - num_pages, .num_pages = num_pages};
    }
    first = Next(true, end);
  }
  return largest;
}

// A page is cached once it is full.
bool PageAllocator::IsPartlyFilled(int32_t page_id) const {
  return page_id >= 0 && At(page_id).ref_count > 0 && !At(page_id).is_cached;
}

void PageAllocator::AppendEvictable(int32_t page_id) {
  Page& page = At(page_id);
  page.previous = newest_evictable_;
  page.next = -1;
  (newest_evictable_ < 0 ? oldest_evictable_ : At(newest_evictable_).next) = page_id;
  newest_evictable_ = page_id;
  ++num_evictable_;
}

void PageAllocator::RemoveEvictable(int32_t page_id) {
  const Page& page = At(page_id);
  (page.previous < 0 ? oldest_evictable_ : At(page.previous).next) = page.next;
  (page.next < 0 ? newest_evictable_ : At(page.next).previous) = page.previous;
  --num_evictable_;
}

}  // namespace lssar

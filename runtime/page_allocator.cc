#include "runtime/page_allocator.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"

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

bool PageAllocator::Acquire(int num_pages, std::vector<int32_t>* pages) {
  LSSAR_CHECK(num_pages >= 0);
  if (num_pages > NumFree()) return false;
  for (int i = 0; i < num_pages; ++i) {
    const int32_t next = pages->empty() ? NumPages() : pages->back() + 1;
    const int32_t page_id = IsFree(next) ? next : BestStart().page_id;
    SetFree(page_id, false);
    At(page_id).num_holders = 1;
    pages->push_back(page_id);
  }
  return true;
}

bool PageAllocator::HasRoom(const std::vector<int32_t>& pages, int run_pages) const {
  return (!pages.empty() && IsFree(pages.back() + 1)) || BestStart().room >= run_pages;
}

void PageAllocator::Share(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.num_holders > 0 || page.is_kept);
  if (page.num_holders++ == 0) RemoveIdle(page_id);
}

void PageAllocator::Release(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.num_holders > 0);
  if (--page.num_holders > 0) return;
  if (page.is_kept) {
    AppendIdle(page_id);
  } else {
    SetFree(page_id, true);
  }
}

void PageAllocator::Release(std::vector<int32_t>* pages) {
  for (size_t i = pages->size(); i-- > 0;) Release((*pages)[i]);
  pages->clear();
}

void PageAllocator::Keep(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.num_holders > 0 && !page.is_kept);
  page.is_kept = true;
}

void PageAllocator::Drop(int32_t page_id) {
  Page& page = At(page_id);
  LSSAR_CHECK(page.num_holders == 0 && page.is_kept);
  RemoveIdle(page_id);
  page.is_kept = false;
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

// Of a run of free pages that someone grows into, the one half is theirs.
PageAllocator::Start PageAllocator::BestStart() const {
  Start best;
  for (int32_t first = Next(true, 0); first < NumPages();) {
    const int32_t end = Next(false, first);
    const int room = IsWritten(first - 1) ? (end - first + 1) / 2 : end - first;
    if (room > best.room) best = {.page_id = end - room, .room = room};
    first = Next(true, end);
  }
  return best;
}

// A page is kept from when it is full.
bool PageAllocator::IsWritten(int32_t page_id) const {
  return page_id >= 0 && At(page_id).num_holders > 0 && !At(page_id).is_kept;
}

void PageAllocator::AppendIdle(int32_t page_id) {
  Page& page = At(page_id);
  page.previous = youngest_idle_;
  page.next = -1;
  (youngest_idle_ < 0 ? oldest_idle_ : At(youngest_idle_).next) = page_id;
  youngest_idle_ = page_id;
  ++num_idle_;
}

void PageAllocator::RemoveIdle(int32_t page_id) {
  const Page& page = At(page_id);
  (page.previous < 0 ? oldest_idle_ : At(page.previous).next) = page.next;
  (page.next < 0 ? youngest_idle_ : At(page.next).previous) = page.previous;
  --num_idle_;
}

}  // namespace lssar

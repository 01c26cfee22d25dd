#include "runtime/page_allocator.h"

#include "kernels/check.h"

namespace lssar {

PageAllocator::PageAllocator(int num_pages) : pages_(size_t(num_pages)) {
  free_.reserve(size_t(num_pages));
  for (int page_id = num_pages; page_id-- > 0;) free_.push_back(page_id);
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
    const int32_t page_id = free_.back();
    free_.pop_back();
    At(page_id).num_holders = 1;
    pages->push_back(page_id);
  }
  return true;
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
    free_.push_back(page_id);
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
  free_.push_back(page_id);
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

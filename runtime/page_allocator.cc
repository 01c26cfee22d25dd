#include "runtime/page_allocator.h"

#include <algorithm>

#include "kernels/check.h"

namespace lssar {

PageAllocator::PageAllocator(int num_pages) : is_free_(size_t(num_pages), true) {
  free_.reserve(size_t(num_pages));
  for (int page_id = num_pages; page_id-- > 0;) free_.push_back(page_id);
}

bool PageAllocator::Acquire(int num_pages, std::vector<int32_t>* pages) {
  LSSAR_CHECK(num_pages >= 0);
  if (num_pages > NumFree()) return false;
  for (int i = 0; i < num_pages; ++i) {
    const int32_t page_id = free_.back();
    free_.pop_back();
    is_free_[size_t(page_id)] = false;
    pages->push_back(page_id);
  }
  return true;
}

void PageAllocator::Release(std::vector<int32_t>* pages) {
  for (const int32_t page_id : *pages) {
    LSSAR_CHECK(page_id >= 0 && page_id < NumPages() && !is_free_[size_t(page_id)]);
    is_free_[size_t(page_id)] = true;
    free_.push_back(page_id);
  }
  pages->clear();
}

}  // namespace lssar

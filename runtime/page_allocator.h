// The states of the KV pool's pages: free, in use (ref_count > 0), or evictable.
#ifndef LSSAR_RUNTIME_PAGE_ALLOCATOR_H_
#define LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

#include <cstdint>
#include <vector>

namespace lssar {

// A page is free; or in use by ref_count sequences; or evictable: the prefix cache holds it
// (cached) and no sequence uses it.
//
// Pages with consecutive ids are adjacent in memory (kernels/kv_layout.h). A sequence is read
// faster when its pages form few blocks of consecutive ids, so the allocator prefers the page right
// after a sequence's last one and starts new blocks where most pages are free.
// Ensures   NumFree() + NumEvictable() + pages with ref_count > 0 == NumPages()
// Cost      O(1) a page; where Allocate or HasFreeBlock looks for a new block, one scan over the
//           free blocks of a bitmap. No call allocates memory
// Threads   the engine's thread only
class PageAllocator {
 public:
  explicit PageAllocator(int num_pages);

  int NumPages() const { return int(pages_.size()); }
  int NumFree() const { return num_free_; }
  int NumEvictable() const { return num_evictable_; }
  int RefCount(int32_t page_id) const { return At(page_id).ref_count; }
  bool IsCached(int32_t page_id) const { return At(page_id).is_cached; }

  // Appends `num_pages` free pages to `pages`, each with ref_count 1. False: fewer are free, and
  // nothing changed. `pages` are a sequence's, in token order: each new page is the one right after
  // the last where that page is free, and starts a new block elsewhere if not.
  bool Allocate(int num_pages, std::vector<int32_t>* pages);
  // False: the next page for `pages` would start a block with fewer than `block_pages` free pages.
  bool HasFreeBlock(const std::vector<int32_t>& pages, int block_pages) const;

  // Adds one reference to a page that is in use or evictable.
  void AddRef(int32_t page_id);

  // Removes one reference; at zero a cached page becomes evictable and any other page free. Freeing
  // a page that is not in use is a bug and ends the process.
  void Free(int32_t page_id);
  // The same for each of `pages`, from the last to the first, so that the end of a text is evicted
  // before its beginning. Clears `pages`.
  void Free(std::vector<int32_t>* pages);

  // The prefix cache takes a page that is in use: at ref_count 0 it becomes evictable, not free.
  void MarkCached(int32_t page_id);

  // The page that became evictable first; -1: none is evictable.
  int32_t OldestEvictable() const { return oldest_evictable_; }
  // An evictable page becomes free.
  void Evict(int32_t page_id);

 private:
  struct Page {
    int ref_count = 0;
    bool is_cached = false;
    int32_t previous = -1, next = -1;  // in the list of evictable pages, oldest first
  };
  struct Block {
    int32_t page_id = -1;  // the first page
    int num_pages = 0;     // free pages from it on
  };
  Page& At(int32_t page_id);
  const Page& At(int32_t page_id) const;
  bool IsFree(int32_t page_id) const;
  void SetFree(int32_t page_id, bool is_free);
  // The first page at or after `page_id` whose free state is `is_free`; NumPages(): there is none.
  int32_t Next(bool is_free, int32_t page_id) const;
  // The largest block that a new sequence may start. num_pages 0: no page is free.
  Block LargestFreeBlock() const;
  // True if the page is partly filled, so its sequence will need the next page.
  bool IsPartlyFilled(int32_t page_id) const;
  void AppendEvictable(int32_t page_id);
  void RemoveEvictable(int32_t page_id);

  std::vector<Page> pages_;
  std::vector<uint64_t> free_;  // one bit a page
  int num_free_ = 0;
  int32_t oldest_evictable_ = -1, newest_evictable_ = -1;
  int num_evictable_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

// Which pages of the KV pool are held, by how many, and which are kept though nobody holds them.
#ifndef LSSAR_RUNTIME_PAGE_ALLOCATOR_H_
#define LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

#include <cstdint>
#include <vector>

namespace lssar {

// A page is free, held by one owner or more, or idle: kept for whoever may want its tokens again,
// and held by nobody.
// Ensures   NumFree() + NumIdle() + pages with a holder == NumPages()
// Cost      every call is O(1) a page and takes no memory
// Threads   one: the engine's
class PageAllocator {
 public:
  explicit PageAllocator(int num_pages);

  int NumPages() const { return int(pages_.size()); }
  int NumFree() const { return int(free_.size()); }
  int NumIdle() const { return num_idle_; }
  int NumHolders(int32_t page_id) const { return At(page_id).num_holders; }
  bool IsKept(int32_t page_id) const { return At(page_id).is_kept; }

  // Appends the ids of `num_pages` free pages to `pages`, whose one holder the caller is; or, when
  // fewer are free, takes none and returns false.
  bool Acquire(int num_pages, std::vector<int32_t>* pages);

  // One holder more of a page that is held or idle.
  void Share(int32_t page_id);

  // One holder less of each of `pages`, from the last to the first; clears it. So of the pages of a
  // text that become idle, the later come to be the older.
  // A page that is not held is a bug and ends the process.
  void Release(std::vector<int32_t>* pages);
  void Release(int32_t page_id);

  // A held page is to become idle, not free, when its last holder goes.
  void Keep(int32_t page_id);

  // The page that has been idle for longest; -1: none is.
  int32_t OldestIdle() const { return oldest_idle_; }
  // An idle page becomes free.
  void Drop(int32_t page_id);

 private:
  struct Page {
    int num_holders = 0;
    bool is_kept = false;
    int32_t previous = -1, next = -1;  // in the list of idle pages, the oldest first
  };
  Page& At(int32_t page_id);
  const Page& At(int32_t page_id) const;
  void AppendIdle(int32_t page_id);
  void RemoveIdle(int32_t page_id);

  std::vector<Page> pages_;
  std::vector<int32_t> free_;  // a stack: the page used last is the warmest
  int32_t oldest_idle_ = -1, youngest_idle_ = -1;
  int num_idle_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

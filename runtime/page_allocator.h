// Which pages of the KV pool are held, by how many, and which are kept though nobody holds them.
#ifndef LSSAR_RUNTIME_PAGE_ALLOCATOR_H_
#define LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

#include <cstdint>
#include <vector>

namespace lssar {

// A page is free, held by one owner or more, or idle: kept for whoever may want its tokens again,
// and held by nobody.
//
// Pages with consecutive ids lie one behind the other in memory (kernels/kv_layout.h), so a
// sequence is read faster the longer the runs of rising ids are that it consists of.
// Ensures   NumFree() + NumIdle() + pages with a holder == NumPages()
// Cost      O(1) a page; where a run begins, in Acquire and HasRoom, once through the free runs of
//           a bitmap. No call takes memory
// Threads   one: the engine's
class PageAllocator {
 public:
  explicit PageAllocator(int num_pages);

  int NumPages() const { return int(pages_.size()); }
  int NumFree() const { return num_free_; }
  int NumIdle() const { return num_idle_; }
  int NumHolders(int32_t page_id) const { return At(page_id).num_holders; }
  bool IsKept(int32_t page_id) const { return At(page_id).is_kept; }

  // Appends the ids of `num_pages` free pages to `pages`, whose one holder the caller is; or, when
  // fewer are free, takes none and returns false. `pages` are a sequence's, in token order: each
  // page is the one right behind the last where that is free, and begins a run elsewhere if not.
  bool Acquire(int num_pages, std::vector<int32_t>* pages);
  // False: Acquire would begin a run for `pages` that cannot become `run_pages` long.
  bool HasRoom(const std::vector<int32_t>& pages, int run_pages) const;

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
  struct Start {
    int32_t page_id = -1;
    int room = 0;  // pages, free from this one on
  };
  Page& At(int32_t page_id);
  const Page& At(int32_t page_id) const;
  bool IsFree(int32_t page_id) const;
  void SetFree(int32_t page_id, bool is_free);
  // The first from `page_id` on that is free, or that is not; NumPages(): none is.
  int32_t Next(bool is_free, int32_t page_id) const;
  // Where a run begins with the most room. Room 0: no page is free.
  Start BestStart() const;
  // Who holds `page_id`, if anyone, writes it, and will want the page behind it.
  bool IsWritten(int32_t page_id) const;
  void AppendIdle(int32_t page_id);
  void RemoveIdle(int32_t page_id);

  std::vector<Page> pages_;
  std::vector<uint64_t> free_;  // a bit a page
  int num_free_ = 0;
  int32_t oldest_idle_ = -1, youngest_idle_ = -1;
  int num_idle_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

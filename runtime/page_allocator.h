// Which pages of the KV pool are free.
#ifndef LSSAR_RUNTIME_PAGE_ALLOCATOR_H_
#define LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

#include <cstdint>
#include <vector>

namespace lssar {

// Ensures   every id of [0, num_pages) is either free or held by exactly one owner
// Threads   one: the engine's
class PageAllocator {
 public:
  explicit PageAllocator(int num_pages);

  int NumPages() const { return int(is_free_.size()); }
  int NumFree() const { return int(free_.size()); }

  // Appends `num_pages` ids to `pages`, or, when fewer are free, takes none and returns false.
  bool Acquire(int num_pages, std::vector<int32_t>* pages);

  // Gives all of `pages` back and clears it. A page that is not held is a bug and ends the process.
  void Release(std::vector<int32_t>* pages);

 private:
  std::vector<int32_t> free_;  // a stack: the page used last is the warmest
  std::vector<bool> is_free_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PAGE_ALLOCATOR_H_

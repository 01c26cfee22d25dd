// PageAllocator as a state machine, compared after each operation with a model that keeps a count a
// page.
// Input   operations, two bytes each: what, and with which page or sequence
#include <algorithm>
#include <vector>

#include "runtime/page_allocator.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr int kNumAllocatorPages = 70;  // more than one word of the bitmap
constexpr size_t kNumHolders = 8;

struct Model {
  std::vector<int> ref_counts = std::vector<int>(kNumAllocatorPages);
  std::vector<bool> is_cached = std::vector<bool>(kNumAllocatorPages);
  std::vector<int32_t> evictable;  // oldest first
  std::vector<std::vector<int32_t>> sequences = std::vector<std::vector<int32_t>>(kNumHolders);

  void Free(int32_t page) {
    if (--ref_counts[size_t(page)] == 0 && is_cached[size_t(page)]) evictable.push_back(page);
  }
};

void CheckEqual(const PageAllocator& pages, const Model& model) {
  int num_used = 0;
  for (int32_t page = 0; page < kNumAllocatorPages; ++page) {
    LSSAR_CHECK(pages.RefCount(page) == model.ref_counts[size_t(page)]);
    LSSAR_CHECK(pages.IsCached(page) == model.is_cached[size_t(page)]);
    num_used += int(pages.RefCount(page) > 0);
  }
  LSSAR_CHECK(pages.NumEvictable() == int(model.evictable.size()));
  LSSAR_CHECK(pages.NumFree() + pages.NumEvictable() + num_used == pages.NumPages());
  LSSAR_CHECK(pages.OldestEvictable() == (model.evictable.empty() ? -1 : model.evictable.front()));
}

}  // namespace

LSSAR_FUZZ_TARGET(page_allocator) {
  PageAllocator pages(kNumAllocatorPages);
  Model model;
  for (size_t at = 0; at + 1 < bytes.size() && at < 2000; at += 2) {
    std::vector<int32_t>& sequence = model.sequences[bytes[at + 1] % kNumHolders];
    switch (bytes[at] % 6) {
      case 0: {
        const int num_pages = bytes[at + 1] / 8;
        const size_t had = sequence.size();
        const int num_free = pages.NumFree();
        const bool is_allocated = pages.Allocate(num_pages, &sequence);
        LSSAR_CHECK(is_allocated == (num_pages <= num_free));
        LSSAR_CHECK(sequence.size() == had + (is_allocated ? size_t(num_pages) : 0));
        for (size_t i = had; i < sequence.size(); ++i) {
          LSSAR_CHECK(model.ref_counts[size_t(sequence[i])] == 0);
          LSSAR_CHECK(!model.is_cached[size_t(sequence[i])]);
          model.ref_counts[size_t(sequence[i])] = 1;
        }
        break;
      }
      case 1: {  // share all pages of the next sequence
        if (!sequence.empty()) break;
        for (const int32_t page : model.sequences[(bytes[at + 1] + 1) % kNumHolders]) {
          pages.AddRef(page);
          ++model.ref_counts[size_t(page)];
          sequence.push_back(page);
        }
        break;
      }
      case 2: {
        for (size_t i = sequence.size(); i-- > 0;) model.Free(sequence[i]);
        if (FaultIsPlanted() && model.evictable.size() == 2) sequence.pop_back();
        pages.Free(&sequence);
        LSSAR_CHECK(sequence.empty());
        break;
      }
      case 3: {
        if (sequence.empty()) break;
        const int32_t page = sequence.front();
        if (model.is_cached[size_t(page)]) break;
        pages.MarkCached(page);
        model.is_cached[size_t(page)] = true;
        break;
      }
      case 4: {
        if (model.evictable.empty()) break;
        const size_t which = bytes[at + 1] % model.evictable.size();
        const int32_t page = model.evictable[which];
        pages.Evict(page);
        model.is_cached[size_t(page)] = false;
        model.evictable.erase(model.evictable.begin() + std::ptrdiff_t(which));
        break;
      }
      default: {  // a sequence takes an evictable page into use
        if (model.evictable.empty()) break;
        const int32_t page = model.evictable.back();
        pages.AddRef(page);
        model.ref_counts[size_t(page)] = 1;
        model.evictable.pop_back();
        sequence.push_back(page);
      }
    }
    CheckEqual(pages, model);
  }
}

}  // namespace lssar

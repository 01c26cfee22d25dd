#include "tests/support/count_allocations.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

void* operator new(size_t num_bytes) {
  ++num_allocations;
  void* address = std::malloc(num_bytes);
  if (address == nullptr) std::abort();
  return address;
}
// std::stable_sort's; a sanitizer has its own, whose memory std::free must not be given.
void* operator new(size_t num_bytes, const std::nothrow_t&) noexcept {
  return operator new(num_bytes);
}
void operator delete(void* address) noexcept { std::free(address); }
void operator delete(void* address, size_t) noexcept { std::free(address); }

namespace lssar {

int64_t NumAllocations() { return num_allocations; }

}  // namespace lssar

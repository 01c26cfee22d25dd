#include "kernels/cpu/scratch.h"

#include <cstdlib>

#include "base/check.h"

namespace lssar {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Scratch::Scratch(int num_threads) : areas_(size_t(num_threads) + 1) {}

Scratch::~Scratch() {
  for (const Area& area : areas_) std::free(area.address);
}

void* Scratch::Reserve(Area& area, size_t num_bytes) {
  if (num_bytes > area.num_bytes) {
    // Half as much again: a context that grows token by token must not reallocate in each step.
    const size_t grown = (num_bytes + num_bytes / 2 + kAlignment - 1) / kAlignment * kAlignment;
    std::free(area.address);
    area.address = std::aligned_alloc(kAlignment, grown);
    LSSAR_CHECK(area.address != nullptr);
    area.num_bytes = grown;
  }
  return area.address;
}

}  // namespace lssar

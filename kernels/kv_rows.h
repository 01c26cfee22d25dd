// Access to one token's key or value of one head in its page, by element, for every page type. The
// reference backend, cpu's RopeWrite and the tests use it.
#ifndef LSSAR_KERNELS_KV_ROWS_H_
#define LSSAR_KERNELS_KV_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/float_bits.h"
#include "kernels/kv_layout.h"
#include "kernels/quantize.h"

namespace lssar {

// A view of head_dim elements, `stride` apart.
struct KvRow {
  DType dtype;
  void* pool;
  size_t first;  // index of element 0 in the pool
  size_t stride;
  float* scale;  // of the row; null: the page type has no scales

  // Exact.
  double Load(int dim) const {
    const size_t idx = first + size_t(dim) * stride;
    if (scale == nullptr) return double{LoadElement(pool, dtype, idx)};
    return double{*scale} * static_cast<const int8_t*>(pool)[idx];
  }

  // Rounded to the page type.
  void Store(std::span<const float> row) const {
    if (scale == nullptr) {
      for (size_t i = 0; i < row.size(); ++i) StoreElement(row[i], pool, dtype, first + i * stride);
      return;
    }
    std::vector<int8_t> steps(row.size());
    *scale = QuantizeVector(row, steps.data());
    for (size_t i = 0; i < row.size(); ++i) {
      static_cast<int8_t*>(pool)[first + i * stride] = steps[i];
    }
  }
};

// The scale of `slot` in the pool of keys or of values; null if the page type has no scales.
// `block`: KvLayout::BlockIndex of the token's page.
inline float* ScaleAt(const KvLayout& layout, void* pool, size_t block, int slot) {
  if (!layout.HasScales()) return nullptr;
  return reinterpret_cast<float*>(static_cast<char*>(pool) + block + layout.ScaleIndex(slot));
}

inline KvRow KeyRow(const KvView& kv, size_t block, int slot) {
  return {.dtype = kv.layout.dtype,
          .pool = kv.k,
          .first = block + kv.layout.KeyIndex(slot, 0),
          .stride = kv.layout.KeyIndex(0, 1) - kv.layout.KeyIndex(0, 0),
          .scale = ScaleAt(kv.layout, kv.k, block, slot)};
}
inline KvRow ValueRow(const KvView& kv, size_t block, int slot) {
  return {.dtype = kv.layout.dtype,
          .pool = kv.v,
          .first = block + kv.layout.ValueIndex(slot, 0),
          .stride = 1,
          .scale = ScaleAt(kv.layout, kv.v, block, slot)};
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_KV_ROWS_H_

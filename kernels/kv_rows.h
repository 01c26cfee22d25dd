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

// A view of head_dim elements, `stride` apart. A key of fx16 has its elements in two planes.
struct KvRow {
  DType dtype;
  void* pool;
  size_t first;            // index of element 0 in the pool; fx16: of its byte in the high plane
  size_t stride;           // fx16: bytes of the high plane from 4 dims to the next 4
  float* scale;            // of the row; null: the elements have no scale
  uint8_t* low = nullptr;  // fx16: the row in the low plane

  uint8_t* High(int dim) const {
    return static_cast<uint8_t*>(pool) + first + size_t(dim / 4) * stride + size_t(dim % 4);
  }

  // fx16: the integers of the two planes. The element is scale times 256 high + low.
  int LoadHigh(int dim) const { return *High(dim) - 128; }
  int LoadLow(int dim) const { return low[dim] - 128; }

  // Exact.
  double Load(int dim) const {
    if (dtype == DType::kFx16) return double{*scale} * (256 * LoadHigh(dim) + LoadLow(dim));
    const size_t idx = first + size_t(dim) * stride;
    if (scale == nullptr) return double{LoadElement(pool, dtype, idx)};
    return double{*scale} * static_cast<const int8_t*>(pool)[idx];
  }

  // Rounded to the page type.
  void Store(std::span<const float> row) const {
    if (dtype == DType::kFx16) {
      std::vector<int16_t> fixed(row.size());
      StoreFixed(fixed, QuantizeFixed(row, fixed.data()));
      return;
    }
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

  // fx16: writes integers of 16 bits and their scale.
  void StoreFixed(std::span<const int16_t> row, float of_row) const {
    *scale = of_row;
    for (size_t i = 0; i < row.size(); ++i) {
      const int rounded_up = row[i] + 128 + 256 * 128;  // the nearest multiple of 256, not negative
      *High(int(i)) = uint8_t(rounded_up >> 8);
      low[i] = uint8_t(rounded_up & 255);
    }
  }
};

// The scale of `slot` in a block of keys, or of values that have scales. `block`: the index of the
// block in its pool, in elements.
inline float* ScaleAt(const KvLayout& layout, void* pool, size_t block, int slot) {
  return reinterpret_cast<float*>(static_cast<char*>(pool) + block * BytesOf(layout.dtype) +
                                  layout.ScaleIndex(slot));
}

// `at`: KvLayout::Block of the token's page.
inline KvRow KeyRow(const KvView& kv, const KvBlock& at, int slot) {
  const size_t block = at.k;
  const KvLayout& layout = kv.layout;
  float* const scale = layout.HasScales() ? ScaleAt(layout, kv.k, block, slot) : nullptr;
  if (layout.dtype == DType::kFx16) {
    const size_t bytes = block * BytesOf(layout.dtype);
    return {.dtype = layout.dtype,
            .pool = kv.k,
            .first = bytes + layout.HighIndex(slot, 0),
            .stride = layout.HighIndex(0, 4),
            .scale = scale,
            .low = static_cast<uint8_t*>(kv.v) + at.v * BytesOf(layout.dtype) +
                   layout.LowIndex(slot, 0)};
  }
  return {.dtype = layout.dtype,
          .pool = kv.k,
          .first = block + layout.KeyIndex(slot, 0),
          .stride = layout.KeyIndex(0, 1) - layout.KeyIndex(0, 0),
          .scale = scale};
}
inline KvRow ValueRow(const KvView& kv, const KvBlock& at, int slot) {
  const size_t block = at.v;
  const KvLayout& layout = kv.layout;
  return {.dtype = layout.ValueType(),
          .pool = kv.v,
          .first = block + layout.ValueIndex(slot, 0),
          .stride = 1,
          .scale = layout.ValuesHaveScales() ? ScaleAt(layout, kv.v, block, slot) : nullptr};
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_KV_ROWS_H_

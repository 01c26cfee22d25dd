#include "kernels/cpu/rope_write.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <span>

#include "kernels/check.h"
#include "kernels/float_bits.h"
#include "kernels/kv_rows.h"
#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope_write.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using WideTag = hn::CappedTag<double, 8>;
using WideVec = hn::Vec<WideTag>;
using HalfTag = hn::Rebind<float, WideTag>;  // the same number of floats
constexpr size_t kWideLanes = hn::MaxLanes(WideTag());
constexpr size_t kMostLanes = 16;  // arrays are padded to whole vectors of the widest machine

size_t Padded(size_t count) { return (count + kMostLanes - 1) / kMostLanes * kMostLanes; }

// One head's vector as pairs: element i of `a` rotates with element i of `b`. Padding is zero.
struct Pairs {
  float* a;
  float* b;
};

// A thread's arrays for one head: pairs of head_dim/2 floats, unit and bits of head_dim, all
// padded.
struct HeadScratch {
  HeadScratch(size_t head_dim, float* scratch)
      : half(Padded(head_dim / 2)),
        pairs{scratch, scratch + half},
        unit(scratch + 2 * half),
        bits(reinterpret_cast<uint16_t*>(unit + Padded(head_dim))) {}
  static size_t NumFloats(size_t head_dim) {
    return 2 * Padded(head_dim / 2) + 2 * Padded(head_dim);
  }

  size_t half;
  Pairs pairs;
  float* unit;
  uint16_t* bits;
};

HWY_INLINE WideVec Widen(const float* from) {
  return hn::PromoteTo(WideTag(), hn::LoadU(HalfTag(), from));
}

// Rotates pairs by their angles and, if `normalize`, divides them by their norm.
// Shapes  cosines, sines [half], padded like the pairs
void RotateAndNormalize(const Pairs& pairs, size_t half, const float* cosines, const float* sines,
                        bool normalize) {
  const WideTag d;
  WideVec factor = hn::Set(d, 1.0);
  if (normalize) {
    WideVec squares = hn::Zero(d);
    for (size_t i = 0; i < half; i += kWideLanes) {
      const WideVec a = Widen(pairs.a + i);
      const WideVec b = Widen(pairs.b + i);
      squares = hn::MulAdd(a, a, hn::MulAdd(b, b, squares));
    }
    const double norm = std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)));
    factor = hn::Set(d, 1.0 / (norm < double{kMinNorm} ? double{kMinNorm} : norm));
  }
  for (size_t i = 0; i < half; i += kWideLanes) {
    const WideVec a = Widen(pairs.a + i);
    const WideVec b = Widen(pairs.b + i);
    const WideVec cosine = hn::Mul(Widen(cosines + i), factor);
    const WideVec sine = hn::Mul(Widen(sines + i), factor);
    const WideVec rotated_a = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
    const WideVec rotated_b = hn::MulAdd(a, sine, hn::Mul(b, cosine));
    hn::StoreU(hn::DemoteTo(HalfTag(), rotated_a), HalfTag(), pairs.a + i);
    hn::StoreU(hn::DemoteTo(HalfTag(), rotated_b), HalfTag(), pairs.b + i);
  }
}

// to = fp16 bits of `count` floats. Both arrays are padded to whole vectors.
void DemoteToF16(const float* from, size_t count, uint16_t* to) {
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::CappedTag<float, kMostLanes> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> d_half;
  for (size_t i = 0; i < count; i += hn::MaxLanes(d)) {
    hn::StoreU(hn::DemoteTo(d_half, hn::LoadU(d, from + i)), d_half,
               reinterpret_cast<hwy::float16_t*>(to + i));
  }
#else  // no instruction, and Highway's fallback does not round ties to even
  for (size_t i = 0; i < count; ++i) to[i] = F16FromFloat(from[i]);
#endif
}

// Stores `count` elements of `from`, rounded to the page type, `stride` elements apart. Returns
// their scale; 1 if the type has none.
float StoreRounded(const float* from, size_t count, DType dtype, uint16_t* bits, void* to,
                   size_t stride) {
  if (dtype == DType::kI8) {
    int8_t* steps = reinterpret_cast<int8_t*>(bits);
    const float scale = QuantizeVector({from, count}, steps);
    for (size_t i = 0; i < count; ++i) static_cast<int8_t*>(to)[i * stride] = steps[i];
    return scale;
  }
  if (dtype == DType::kF32) {
    float* elements = static_cast<float*>(to);
    for (size_t i = 0; i < count; ++i) elements[i * stride] = from[i];
    return 1.0f;
  }
  LSSAR_CHECK(dtype == DType::kF16);
  DemoteToF16(from, count, bits);
  uint16_t* elements = static_cast<uint16_t*>(to);
  for (size_t i = 0; i < count; ++i) elements[i * stride] = bits[i];
  return 1.0f;
}

// Stores one head's vector in a pool, with its scale if the page type has scales.
void StoreVector(const HeadScratch& head, const KvRow& row, size_t head_dim) {
  char* to = static_cast<char*>(row.pool) + row.first * BytesOf(row.dtype);
  const float scale = StoreRounded(head.unit, head_dim, row.dtype, head.bits, to, row.stride);
  if (row.scale != nullptr) *row.scale = scale;
}

// head.unit = x, rotated and normalised.
void MakeUnit(const RopeWriteArgs& args, const float* x, const float* cosines, const float* sines,
              const HeadScratch& head) {
  const size_t half = size_t(args.kv.layout.head_dim) / 2;
  const bool half_split = args.rope_layout == RopeLayout::kHalfSplit;
  const size_t b_idx = half_split ? half : 1;
  const size_t step = half_split ? 1 : 2;
  for (size_t i = 0; i < half; ++i) {
    head.pairs.a[i] = x[i * step];
    head.pairs.b[i] = x[i * step + b_idx];
  }
  std::fill(head.pairs.a + half, head.pairs.a + head.half, 0.0f);
  std::fill(head.pairs.b + half, head.pairs.b + head.half, 0.0f);
  RotateAndNormalize(head.pairs, head.half, cosines, sines, args.normalize);
  for (size_t i = 0; i < half; ++i) {
    head.unit[i * step] = head.pairs.a[i];
    head.unit[i * step + b_idx] = head.pairs.b[i];
  }
}

// Prefetches the cache lines of a vector. They are cold in a decode step; in a prompt, the row
// before has loaded them.
void FetchRow(const KvRow& row, size_t head_dim) {
  char* to = static_cast<char*>(row.pool) + row.first * BytesOf(row.dtype);
  for (size_t i = 0; i < head_dim; ++i) {
    __builtin_prefetch(to + i * row.stride * BytesOf(row.dtype), 1);
  }
}

// Query heads [first_head, end_head) of batch row `row`, which belongs to `sequence`, and the KV
// heads whose first query head is among them.
void WriteHeads(const RopeWriteArgs& args, const SequenceSlice& sequence, int row, int first_head,
                int end_head, float* scratch) {
  const KvLayout& layout = args.kv.layout;
  const size_t head_dim = size_t(layout.head_dim);
  const int group_size = args.num_heads / layout.num_kv_heads;  // query heads per KV head
  const size_t q_floats = size_t(args.num_heads) * head_dim;
  const size_t kv_floats = size_t(layout.num_kv_heads) * head_dim;
  const size_t row_idx = size_t(row);
  const int position = sequence.first_position + row - sequence.first_row;
  const int page = sequence.pages[size_t(position / layout.page_size)];
  const int slot = position % layout.page_size;

  const HeadScratch head(head_dim, scratch);
  float* cosines = scratch + HeadScratch::NumFloats(head_dim);
  float* sines = cosines + head.half;
  std::fill_n(cosines, 2 * head.half, 0.0f);
  std::copy_n(args.rope + row_idx * head_dim, head_dim / 2, cosines);
  std::copy_n(args.rope + row_idx * head_dim + head_dim / 2, head_dim / 2, sines);

  const float* qkv = args.qkv + row_idx * (q_floats + 2 * kv_floats);
  for (int h = first_head; h < end_head; ++h) {
    const size_t q_at = size_t(h) * head_dim;
    const int kv_head = h / group_size;
    const bool writes_kv = h % group_size == 0;
    const size_t block = layout.BlockIndex(args.layer, page, kv_head);
    const KvRow key = KeyRow(args.kv, block, slot);
    if (writes_kv && sequence.num_rows == 1) FetchRow(key, head_dim);
    MakeUnit(args, qkv + q_at, cosines, sines, head);
    std::copy_n(head.unit, head_dim, args.q + row_idx * q_floats + q_at);
    if (!writes_kv) continue;

    const float* k = qkv + q_floats + size_t(kv_head) * head_dim;
    MakeUnit(args, k, cosines, sines, head);
    StoreVector(head, key, head_dim);
    std::copy_n(k + kv_floats, head_dim, head.unit);  // v, into memory padded to whole vectors
    StoreVector(head, ValueRow(args.kv, block, slot), head_dim);
  }
}

// A task is a row, or one query head of a row if there are few rows.
void RopeWriteOfTarget(const RopeWriteArgs& args, ThreadPool& pool, Scratch& scratch) {
  const size_t head_dim = size_t(args.kv.layout.head_dim);
  const size_t num_floats = HeadScratch::NumFloats(head_dim) + 2 * Padded(head_dim / 2);
  const std::span<const SequenceSlice> sequences = args.rows->sequences;
  const int num_heads = args.num_heads;
  const int row_tasks = args.rows->num_rows < 4 * pool.NumThreads() ? num_heads : 1;
  pool.ParallelFor(int64_t{args.rows->num_rows} * row_tasks, [&](int64_t task, int thread_idx) {
    const int row = int(task / row_tasks);
    const int part = int(task % row_tasks);
    const auto sequence = std::prev(
        std::ranges::upper_bound(sequences, row, std::less<>(), &SequenceSlice::first_row));
    WriteHeads(args, *sequence, row, part * num_heads / row_tasks,
               (part + 1) * num_heads / row_tasks, scratch.OfThread<float>(thread_idx, num_floats));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lssar {

HWY_EXPORT(RopeWriteOfTarget);

void RopeWriteOnCpu(const RopeWriteArgs& args, ThreadPool& pool, Scratch& scratch) {
  LSSAR_CHECK(args.rows != nullptr && args.qkv != nullptr && args.q != nullptr);
  LSSAR_CHECK(args.kv.layout.head_dim % 2 == 0);
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % args.kv.layout.num_kv_heads == 0);
  HWY_DYNAMIC_DISPATCH(RopeWriteOfTarget)(args, pool, scratch);
}

}  // namespace lssar
#endif  // HWY_ONCE

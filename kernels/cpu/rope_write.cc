#include "kernels/cpu/rope_write.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>

#include "base/check.h"
#include "kernels/cpu/norm.h"
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

// A thread's arrays for one head: pairs of head_dim/2 floats; unit, bits and normed of head_dim;
// padded.
struct HeadScratch {
  HeadScratch(size_t head_dim, float* scratch)
      : half(Padded(head_dim / 2)),
        pairs{scratch, scratch + half},
        unit(scratch + 2 * half),
        bits(reinterpret_cast<uint16_t*>(unit + Padded(head_dim))),
        normed(unit + 2 * Padded(head_dim)) {}
  static size_t NumFloats(size_t head_dim) {
    return 2 * Padded(head_dim / 2) + 3 * Padded(head_dim);
  }

  size_t half;
  Pairs pairs;
  float* unit;
  uint16_t* bits;
  float* normed;  // after QK-norm
};

HWY_INLINE WideVec Widen(const float* from) {
  return hn::PromoteTo(WideTag(), hn::LoadU(HalfTag(), from));
}

// Cosines and sines of a row's angles, one a pair, padded: [half] each. is_scaled: their squares do
// not add up to 1.
struct Angles {
  const float* cosines;
  const float* sines;
  bool is_scaled = false;
};

// Rotates pairs by their angles and, if `normalize`, divides them by their norm behind that: a
// rotation keeps it, so it is known before, but for the angles' own length where they are scaled.
void RotateAndNormalize(const Pairs& pairs, size_t half, const Angles& angles, bool normalize) {
  const WideTag d;
  WideVec factor = hn::Set(d, 1.0);
  if (normalize) {
    WideVec squares = hn::Zero(d);
    for (size_t i = 0; i < half; i += kWideLanes) {
      const WideVec a = Widen(pairs.a + i);
      const WideVec b = Widen(pairs.b + i);
      if (angles.is_scaled) {
        const WideVec cosine = Widen(angles.cosines + i);
        const WideVec sine = Widen(angles.sines + i);
        const WideVec length = hn::MulAdd(cosine, cosine, hn::Mul(sine, sine));
        squares = hn::MulAdd(hn::MulAdd(a, a, hn::Mul(b, b)), length, squares);
      } else {
        squares = hn::MulAdd(a, a, hn::MulAdd(b, b, squares));
      }
    }
    const double norm = std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)));
    factor = hn::Set(d, 1.0 / (norm < double{kMinNorm} ? double{kMinNorm} : norm));
  }
  for (size_t i = 0; i < half; i += kWideLanes) {
    const WideVec a = Widen(pairs.a + i);
    const WideVec b = Widen(pairs.b + i);
    const WideVec cosine = hn::Mul(Widen(angles.cosines + i), factor);
    const WideVec sine = hn::Mul(Widen(angles.sines + i), factor);
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
  if (row.dtype == DType::kFx16) {
    auto* fixed = reinterpret_cast<int16_t*>(head.bits);
    row.StoreFixed({fixed, head_dim}, QuantizeFixed({head.unit, head_dim}, fixed));
    return;
  }
  char* to = static_cast<char*>(row.pool) + row.first * BytesOf(row.dtype);
  const float scale = StoreRounded(head.unit, head_dim, row.dtype, head.bits, to, row.stride);
  if (row.scale != nullptr) *row.scale = scale;
}

// The pairs of a head. The elements from rotary_dims on are pairs of neighbours, which the angle 0
// leaves as they are.
struct PairLayout {
  explicit PairLayout(const RopeWriteArgs& args)
      : rotary_pairs(size_t(args.RotaryDims()) / 2),
        num_pairs(size_t(args.kv.layout.head_dim) / 2),
        b_idx(args.rope_layout == RopeLayout::kHalfSplit ? rotary_pairs : 1),
        step(args.rope_layout == RopeLayout::kHalfSplit ? 1 : 2) {}

  size_t rotary_pairs;
  size_t num_pairs;
  size_t b_idx;  // of pair 0
  size_t step;   // from pair to pair

  void Gather(const float* x, const HeadScratch& head) const {
    for (size_t i = 0; i < rotary_pairs; ++i) {
      head.pairs.a[i] = x[i * step];
      head.pairs.b[i] = x[i * step + b_idx];
    }
    for (size_t i = rotary_pairs; i < num_pairs; ++i) {
      head.pairs.a[i] = x[2 * i];
      head.pairs.b[i] = x[2 * i + 1];
    }
    std::fill(head.pairs.a + num_pairs, head.pairs.a + head.half, 0.0f);
    std::fill(head.pairs.b + num_pairs, head.pairs.b + head.half, 0.0f);
  }
  void Scatter(const HeadScratch& head, float* x) const {
    for (size_t i = 0; i < rotary_pairs; ++i) {
      x[i * step] = head.pairs.a[i];
      x[i * step + b_idx] = head.pairs.b[i];
    }
    for (size_t i = rotary_pairs; i < num_pairs; ++i) {
      x[2 * i] = head.pairs.a[i];
      x[2 * i + 1] = head.pairs.b[i];
    }
  }
};

// head.unit = x, rotated and normalised; `qk_norm` before or after the rotation.
void MakeUnit(const RopeWriteArgs& args, const PairLayout& layout, const float* x,
              const NormView& qk_norm, const Angles& angles, const Angles& no_angles,
              const HeadScratch& head) {
  const int head_dim = args.kv.layout.head_dim;
  const bool has_norm = qk_norm.kind != NormKind::kNone;
  if (has_norm && !args.qk_norm.after_rotary) {
    NormRow(x, head_dim, qk_norm, head.normed);
    x = head.normed;
  }
  const bool normalize_later = has_norm && args.qk_norm.after_rotary;
  layout.Gather(x, head);
  RotateAndNormalize(head.pairs, head.half, angles, args.normalize && !normalize_later);
  layout.Scatter(head, head.unit);
  if (!normalize_later) return;
  NormRow(head.unit, head_dim, qk_norm, head.normed);
  layout.Gather(head.normed, head);
  RotateAndNormalize(head.pairs, head.half, no_angles, args.normalize);
  layout.Scatter(head, head.unit);
}

// Prefetches the cache lines of a vector. They are cold in a decode step; in a prompt, the row
// before has loaded them.
void FetchRow(const KvRow& row, size_t head_dim) {
  if (row.dtype == DType::kFx16) {
    for (size_t dim = 0; dim < head_dim; dim += 4) __builtin_prefetch(row.High(int(dim)), 1);
    for (size_t dim = 0; dim < head_dim; dim += 64) __builtin_prefetch(row.low + dim, 1);
    __builtin_prefetch(row.scale, 1);
    return;
  }
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
  const PairLayout pair_layout(args);
  const size_t rotary_pairs = pair_layout.rotary_pairs;
  float* cosines = scratch + HeadScratch::NumFloats(head_dim);
  float* sines = cosines + head.half;
  float* ones = sines + head.half;
  float* zeros = ones + head.half;
  std::fill_n(cosines, pair_layout.num_pairs, 1.0f);
  std::fill_n(cosines + pair_layout.num_pairs, head.half - pair_layout.num_pairs, 0.0f);
  std::fill_n(sines, head.half, 0.0f);
  std::fill_n(ones, head.half, 1.0f);
  std::fill_n(zeros, head.half, 0.0f);
  const float* rope = args.rope + row_idx * 2 * rotary_pairs;
  std::copy_n(rope, rotary_pairs, cosines);
  std::copy_n(rope + rotary_pairs, rotary_pairs, sines);
  const Angles angles = {cosines, sines, args.scales_rotary}, no_angles = {ones, zeros};

  const float* qkv = args.qkv + row_idx * (q_floats + 2 * kv_floats);
  for (int h = first_head; h < end_head; ++h) {
    const size_t q_at = size_t(h) * head_dim;
    const int kv_head = h / group_size;
    const bool writes_kv = h % group_size == 0;
    const KvBlock block = layout.Block(args.layer, page, kv_head);
    const KvRow key = KeyRow(args.kv, block, slot);
    if (writes_kv && sequence.num_rows == 1) FetchRow(key, head_dim);
    MakeUnit(args, pair_layout, qkv + q_at, args.qk_norm.q, angles, no_angles, head);
    std::copy_n(head.unit, head_dim, args.q + row_idx * q_floats + q_at);
    if (!writes_kv) continue;

    const float* k = qkv + q_floats + size_t(kv_head) * head_dim;
    MakeUnit(args, pair_layout, k, args.qk_norm.k, angles, no_angles, head);
    StoreVector(head, key, head_dim);
    std::copy_n(k + kv_floats, head_dim, head.unit);  // v, into memory padded to whole vectors
    StoreVector(head, ValueRow(args.kv, block, slot), head_dim);
  }
}

// A task is a row, or one query head of a row if there are few rows.
void RopeWriteOfTarget(const RopeWriteArgs& args, ThreadPool& pool, Scratch& scratch) {
  const size_t head_dim = size_t(args.kv.layout.head_dim);
  const size_t num_floats = HeadScratch::NumFloats(head_dim) + 4 * Padded(head_dim / 2);
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
  LSSAR_CHECK(args.RotaryDims() % 2 == 0 && args.RotaryDims() <= args.kv.layout.head_dim);
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % args.kv.layout.num_kv_heads == 0);
  HWY_DYNAMIC_DISPATCH(RopeWriteOfTarget)(args, pool, scratch);
}

}  // namespace lssar
#endif  // HWY_ONCE

// The state of an attention item while a thread computes it.
// Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_WORK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_WORK_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_WORK_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_WORK_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_rule-inl.h"
#include "kernels/cpu/attention_values-inl.h"
#include "kernels/cpu/kv_head-inl.h"
#include "kernels/ops.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t Size(int count) { return size_t(count); }

// A row of q in 16-bit fixed point, for keys in two planes.
struct FixedRow {
  // Floats of a row in scratch: these numbers, then q as the low plane's dot products read it.
  static constexpr size_t kHeadFloats = kVectorFloats;
  static constexpr size_t kPadDims = 64;
  static size_t NumFloats(size_t head_dim) {
    return kHeadFloats + (head_dim + kPadDims - 1) / kPadDims * kPadDims;
  }

  float high_factor;   // score = float(<q, high> + <q's high bytes, low>) * scale of the key * this
  float low_factor;    // high_factor / 256: for <q, low>
  float bound;         // |score - its high part| <= scale of the key * this
  int32_t offset;      // -128 times the sum of q: planes are stored 128 larger
  int32_t low_offset;  // the same of q's high bytes
  float q_scale;       // of the integers of q
};

// A thread's private scratch for one task.
template <typename T>
struct TaskScratch {
  TaskScratch(const AttentionItem& item, int head_dim, float* scratch)
      : tile(scratch),
        values(reinterpret_cast<const ValueOf<T>**>(tile + kTileKeys * Size(head_dim))),
        keys(reinterpret_cast<int32_t*>(values + kSplitKeys)),
        q(reinterpret_cast<float*>(keys + kSplitKeys + kVectorFloats)),
        fixed(q + QueryFloats(item, head_dim)),
        rest(fixed + FixedFloats(item, head_dim)) {}

  static size_t NumFloats(const AttentionItem& item, int head_dim) {
    return kTileKeys * Size(head_dim) + Size(kSplitKeys) * (sizeof(void*) / sizeof(float)) +
           Size(kSplitKeys) + kVectorFloats + QueryFloats(item, head_dim) +
           FixedFloats(item, head_dim);
  }
  static size_t QueryFloats(const AttentionItem& item, int head_dim) {
    const size_t count = Size(item.PaddedRows()) * Size(head_dim);
    return (count + kVectorFloats - 1) / kVectorFloats * kVectorFloats;
  }

  // Fx16: floats of `fixed`.
  static size_t FixedFloats(const AttentionItem& item, int head_dim) {
    return kIsFixed<T> ? Size(item.PaddedRows()) * FixedRow::NumFloats(Size(head_dim)) : 0;
  }

  float* tile;                // keys, widened, [dim][kTileKeys]
  const ValueOf<T>** values;  // addresses of the values of `keys`
  int32_t* keys;  // keys of non-zero weight, one list per chunk; capacity: a split and a vector
  float* q;       // scaled, [group][dim][row of the group]; Fx16: attention_fixed-inl.h
  float* fixed;   // Fx16: a FixedRow for each row
  float* rest;    // the scratch behind NumFloats
};

// An item and the memory that a thread computes it in.
template <typename T>
struct Work {
  const AttentionArgs& args;
  const AttentionItem& item;
  KvHead<T> kv;
  TaskScratch<T> task;
  ItemValues values;
  WeightRule rules[kBlockRows];
  const ReweightPower* powers[kBlockRows];
  float slopes[kBlockRows];  // of ALiBi

  size_t HeadDim() const { return Size(args.kv.layout.head_dim); }
  // The query head of a row.
  int Head(int row) const { return item.head + (item.is_decode ? row : 0); }
  // Index of a row's vector in args.q and args.out.
  size_t VectorIdx(int row) const {
    const int token = item.first_row + (item.is_decode ? 0 : row);
    const size_t batch_row = Size(item.sequence->first_row + token);
    return (batch_row * Size(args.num_heads) + Size(Head(row))) * HeadDim();
  }
  // The first key of the first chunk that a row of the item attends to: 0 without a window.
  int FirstChunk() const { return args.spec.FirstKey(item.NumKeys(0)) / kChunkKeys * kChunkKeys; }
  const FixedRow& Fixed(int row) const { return *reinterpret_cast<const FixedRow*>(FixedAt(row)); }
  // q of a row, twice [head_dim] padded with zeros (attention_fixed-inl.h).
  const int8_t* FixedQuery(int row) const {
    return reinterpret_cast<const int8_t*>(FixedAt(row) + FixedRow::kHeadFloats);
  }
  float* FixedAt(int row) const { return task.fixed + Size(row) * FixedRow::NumFloats(HeadDim()); }
  Rows<const float> Weights(int row) const { return {values.Scores(row), values.row_stride}; }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

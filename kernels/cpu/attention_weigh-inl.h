// Weigh, the last stage of attention: weights from what Score left, and sums of the weighted
// values. Included once per target, inside foreach_target.h.
//
// Kinds with a stage 2 have few non-zero weights: each row has its own list of keys ("survivors").
// Those without a stage 2 have nearly all of them: groups of rows share one list and each widened
// value.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_WEIGH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_WEIGH_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_WEIGH_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_WEIGH_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/attention_math.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/attention_fixed-inl.h"
#include "kernels/cpu/attention_rule-inl.h"
#include "kernels/cpu/attention_values-inl.h"
#include "kernels/cpu/attention_work-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Scores in double of the row's keys in [chunk, chunk + count).
template <typename T>
void ExactScores(const Work<T>& work, int row, int chunk, int count, double* scores) {
  const AttentionSpec& spec = work.args.spec;
  const int num_keys = work.item.NumKeys(row);
  [[maybe_unused]] const float* q = work.args.q + work.VectorIdx(row);
  const double scale = ScaleOf(spec, work.args.kv.layout.head_dim, num_keys);
  const double shift = ShiftOf(spec, num_keys);
  for (int key = 0; key < count; key += kExactKeys) {
    if constexpr (kIsFixed<T>) {
      FixedExactDots(work, row, chunk + key, scores + key);
    } else {
      ExactDots(q, work.HeadDim(), work.kv.Key(chunk + key), work.kv.KeyStride(),
                work.kv.KeyScales(chunk + key), scores + key);
    }
  }
  for (int key = 0; key < count; ++key) scores[key] = scale * scores[key] + shift;
}

// phi in double of the row's keys in [chunk, chunk + count); e^(score - max) if phi is e^s.
template <typename T>
void ExactChunk(const Work<T>& work, int row, int chunk, int count, double* phi) {
  const AttentionForm form = work.args.spec.Form();
  const WeightRule& rule = work.rules[row];
  const bool is_exp = form.phi == Phi::kExp || rule.is_exp_row;
  ExactScores(work, row, chunk, count, phi);
  for (int key = 0; key < count; ++key) {
    phi[key] = is_exp ? PhiOf(Phi::kExp, phi[key] - double{rule.max}) : PhiOf(form.phi, phi[key]);
  }
}

// Prefetches a value, and its scale, that no hardware prefetcher predicts.
template <typename T>
HWY_INLINE void PrefetchValue(const T* value, const float* scale, size_t head_dim) {
  if (kHasScales<T>) hwy::Prefetch(scale);
  const char* bytes = reinterpret_cast<const char*>(value);
  for (size_t at = 0; at < head_dim * sizeof(T); at += 64) hwy::Prefetch(bytes + at);
}

// The same for the few survivors of a decode step.
template <typename T>
HWY_INLINE void PrefetchSurvivor(const T* value, const float* scale, size_t head_dim) {
  if (kHasScales<T>) PrefetchToL2(scale);
  const char* bytes = reinterpret_cast<const char*>(value);
  for (size_t at = 0; at < head_dim * sizeof(T); at += 64) PrefetchToL2(bytes + at);
}

// ---- Kinds with a stage 2

// The addresses of the chunk's values, as far as there are keys.
template <typename T>
ChunkValues<ValueOf<T>> FindChunk(const Work<T>& work, int chunk) {
  const int end = std::min(work.item.MaxKeys(), chunk + kChunkKeys);
  ChunkValues<ValueOf<T>> found;
  found.stride = work.kv.ValueStride();
  found.page_shift = work.kv.PageShift();
  for (int key = chunk, page = 0; key < end; key += work.kv.PageSize(), ++page) {
    found.values[page] = work.kv.Value(key) - Size(key - chunk) * found.stride;
    if constexpr (kHasScales<T>) found.scales[page] = work.kv.ValueScales(key) - (key - chunk);
  }
  return found;
}

// Lists the survivors of a row in one chunk: their scores (phi, u) become weights later, in place.
// Requires  `keys` holds a chunk and one vector more
template <typename T>
Survivors FindSurvivors(const Work<T>& work, int row, int chunk, int32_t* keys) {
  int count = std::clamp(work.item.NumKeys(row) - chunk, 0, kChunkKeys);
  const WeightRule& rule = work.rules[row];
  float* scores = work.values.Scores(row) + chunk;
  const uint8_t* candidates = nullptr;
  if constexpr (kIsFixed<T>) {
    // In a flat row all keys are candidates.
    if (work.item.NumKeys(row) > kShortRowKeys && !HasBothPlanes(work.item, row) &&
        rule.kind == WeightKind::kReweightSoftplus) {
      count = work.values.NumCandidates(row, chunk);
      candidates = work.values.CandidateKeys(row) + chunk;
    }
  }
  if (rule.kind == WeightKind::kRatio) {
    double phi[kChunkKeys];
    ExactChunk(work, row, chunk, count, phi);
    for (int key = 0; key < count; ++key) {
      const double x = rule.exact_gain * phi[key] - double{rule.offset};
      scores[key] = float(x / rule.exact_peak);
    }
  }
  return {.keys = keys,
          .weights = scores,
          .count = KeepSurvivors(rule.threshold, scores, Size(count), candidates, keys)};
}

template <typename T>
void WeighList(const Work<T>& work, int row, int split, int chunk, const Survivors& list) {
  const size_t at = work.values.AtSplit(row, split);
  work.values.weight_sum[at] +=
      WeighSurvivors(work.rules[row], *work.powers[row], work.values.Scores(row) + chunk,
                     list.count, &work.values.num_read[at]);
}

// Weigh of a few rows of a decode step, by chunk: what one row reads is in cache for the others.
// The values of a chunk are prefetched while the next two chunks are weighed.
template <typename T>
void ReweightDecodeRows(const Work<T>& work, int first_row, int split, int end) {
  struct Listed {
    ChunkValues<ValueOf<T>> values;
    Survivors rows[kGroupRows];
    int32_t keys[kGroupRows][size_t{kChunkKeys} + kVectorFloats];
  };
  const int group_rows = work.item.GroupRows(first_row);
  const auto begin = [&](int chunk, Listed& listed) {
    listed.values = FindChunk(work, chunk);
    for (int r = 0; r < group_rows; ++r) {
      Survivors& list = listed.rows[r];
      list = FindSurvivors(work, first_row + r, chunk, listed.keys[r]);
      for (size_t at = 0; at < list.count; ++at) {
        const int32_t key = list.keys[at];
        PrefetchSurvivor(listed.values.Value(key),
                         kHasScales<T> ? listed.values.Scale(key) : nullptr, work.HeadDim());
      }
      WeighList(work, first_row + r, split, chunk, list);
    }
  };
  WalkChunksAhead<Listed>(split * kSplitKeys, end, begin, [&](const Listed& ready) {
    for (int r = 0; r < group_rows; ++r) {
      SumSurvivorsOfHead(ready.rows[r], ready.values, work.HeadDim(),
                         work.values.Partial(first_row + r, split));
    }
  });
}

// Prefetches part `part` of `num_parts` of a chunk's values: nearly every value of a chunk has a
// survivor in some row of a block.
template <typename T>
void PrefetchPart(const Work<T>& work, int chunk, int part, int num_parts) {
  const int step = (kChunkKeys + num_parts - 1) / num_parts;
  const int end = std::min({work.item.MaxKeys(), chunk + kChunkKeys, chunk + (part + 1) * step});
  for (int key = chunk + part * step; key < end; ++key) {
    PrefetchValue(work.kv.Value(key), work.kv.ValueScales(key), work.HeadDim());
  }
}

// Weigh of a block, by chunk: the values stay in cache from row to row. A few rows together, so
// that one row's arithmetic overlaps with the next one's.
template <typename T>
void ReweightBlock(const Work<T>& work, int split, int end) {
  for (int chunk = split * kSplitKeys; chunk < end; chunk += kChunkKeys) {
    const ChunkValues<ValueOf<T>> values = FindChunk(work, chunk);
    for (int first = 0; first < work.item.num_rows; first += kGroupRows) {
      const int group_rows = std::min(kGroupRows, work.item.num_rows - first);
      PrefetchPart(work, chunk + kChunkKeys, first / kGroupRows,
                   work.item.PaddedRows() / kGroupRows);
      Survivors lists[kGroupRows];
      int32_t* keys = work.task.keys;
      for (int r = 0; r < group_rows; ++r) {
        lists[r] = FindSurvivors(work, first + r, chunk, keys);
        keys += lists[r].count;
      }
      for (int r = 0; r < group_rows; ++r) {
        WeighList(work, first + r, split, chunk, lists[r]);
      }
      for (int r = 0; r < group_rows; ++r) {
        SumSurvivorsOfHead(lists[r], values, work.HeadDim(), work.values.Partial(first + r, split));
      }
    }
  }
}

// ---- Kinds without a stage 2

// Replaces a row's phi of one chunk by its weights.
template <typename T>
void WeighRow(const Work<T>& work, int row, int split, int chunk) {
  const int count = std::clamp(work.item.NumKeys(row) - chunk, 0, kChunkKeys);
  const size_t at = work.values.AtSplit(row, split);
  float* const scores = work.values.Scores(row) + chunk;
  if (work.rules[row].is_exp_row) {
    double phi[kChunkKeys];
    ExactChunk(work, row, chunk, count, phi);
    for (int key = 0; key < count; ++key) scores[key] = float(phi[key]);
  }
  work.values.weight_sum[at] += WeighChunk(work.rules[row], work.args.spec.window > 0, scores,
                                           Size(count), &work.values.num_read[at]);
}

// Lists the chunk's keys with a non-zero weight in the group of rows that starts at `row`, and the
// addresses of their values. Appends to the first `num_listed` keys of the task's lists.
// kPrefetches: for the values of a decode step, which are scattered: no hardware prefetcher
// predicts them.
template <size_t kRows, bool kPrefetches, typename T>
ValueList<ValueOf<T>> ListValues(const Work<T>& work, int row, int chunk, size_t num_listed) {
  int32_t* keys = work.task.keys + num_listed;
  const ValueOf<T>** values = work.task.values + num_listed;
  const size_t count =
      ListKeys<kRows>(work.Weights(row), Size(chunk), Size(chunk + kChunkKeys), keys);
  for (size_t i = 0; i < count; ++i) {
    values[i] = work.kv.Value(keys[i]);
    if (kPrefetches) PrefetchValue(values[i], work.kv.ValueScales(keys[i]), work.HeadDim());
  }
  size_t num_for_all = count;
  while (num_for_all > 0 && keys[num_for_all - 1] >= work.item.NumKeys(row)) --num_for_all;
  const int last_row = std::min(row + int(kRows), work.item.num_rows) - 1;
  const int first_key = work.args.spec.FirstKey(work.item.NumKeys(last_row));
  size_t first_for_all = 0;
  while (first_for_all < num_for_all && keys[first_for_all] < first_key) ++first_for_all;
  return {.keys = keys,
          .values = values,
          .count = count,
          .first_for_all = first_for_all,
          .num_for_all = num_for_all};
}

// Multiplies a row's weights of one chunk by the scales of their values, if elements have scales.
// One rounding, the same in a single row and in a block.
template <typename T>
void ScaleChunk(const Work<T>& work, int row, int chunk) {
  if constexpr (kHasScales<T>) {
    float* weights = work.values.Scores(row);
    const int end = std::min(work.item.NumKeys(row), chunk + kChunkKeys);
    for (int key = chunk; key < end; key += int(kScoreLanes)) {
      ScaleWeights(weights + key, work.kv.ValueScales(key));
    }
  }
}

// Weigh of a group of a decode item's rows. The values of a chunk are prefetched while the next two
// chunks are weighed.
template <size_t kRows, typename T>
void WeighDecodeRows(const Work<T>& work, int first_row, int split, int end) {
  constexpr int kChunksAhead = 2;
  const Rows<float> sums{work.values.Partial(first_row, split), work.values.padded_dim};
  ValueList<ValueOf<T>> lists[kSplitKeys / kChunkKeys];
  size_t num_listed = 0;
  const int first = std::max(split * kSplitKeys, work.FirstChunk());
  for (int chunk = first; chunk < end + kChunksAhead * kChunkKeys; chunk += kChunkKeys) {
    if (chunk < end) {
      for (int row = 0; row < int(kRows); ++row) {
        WeighRow(work, first_row + row, split, chunk);
      }
      ValueList<ValueOf<T>>& list = lists[(chunk - first) / kChunkKeys];
      list = ListValues<kRows, true>(work, first_row, chunk, num_listed);
      num_listed += list.count;
    }
    const int ready = chunk - kChunksAhead * kChunkKeys;
    if (ready < first) continue;
    for (int row = 0; row < int(kRows); ++row) ScaleChunk(work, first_row + row, ready);
    SumValuesOfHead<kRows>(lists[(ready - first) / kChunkKeys], work.Weights(first_row),
                           work.HeadDim(), sums);
  }
}

// Weigh of a decode step. Later groups find most values in L2.
template <typename T>
void WeighDecode(const Work<T>& work, int split, int end) {
  for (int row = 0; row < work.item.num_rows; row += kGroupRows) {
    switch (work.item.GroupRows(row)) {
      case 1: WeighDecodeRows<1>(work, row, split, end); break;
      case 2: WeighDecodeRows<2>(work, row, split, end); break;
      case 3: WeighDecodeRows<3>(work, row, split, end); break;
      default: WeighDecodeRows<4>(work, row, split, end); break;
    }
  }
}

// Weigh of a block, by chunk: the values stay in L1 from group to group.
template <typename T>
void WeighBlock(const Work<T>& work, int split, int end) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  const int first = std::max(split * kSplitKeys, work.FirstChunk());
  for (int chunk = first; chunk < end; chunk += kChunkKeys) {
    for (int row = 0; row < item.num_rows; ++row) {
      WeighRow(work, row, split, chunk);
      ScaleChunk(work, row, chunk);
    }
    for (int row = item.num_rows; row < item.PaddedRows(); ++row) {
      std::fill_n(values.Scores(row) + chunk, kChunkKeys, 0.0f);
    }
    for (int row = 0; row < item.num_rows; row += kGroupRows) {
      const ValueList<ValueOf<T>> list = ListValues<Size(kGroupRows), false>(work, row, chunk, 0);
      if (list.count == 0) continue;
      SumValuesOfHead<Size(kGroupRows)>(list, work.Weights(row), work.HeadDim(),
                                        {values.Partial(row, split), values.padded_dim});
    }
  }
}

// ---- Either

// Weigh: weights of one split; sums of the weights and of the weighted values.
template <typename T>
void Weigh(const Work<T>& work, int split) {
  const AttentionItem& item = work.item;
  const ItemValues& values = work.values;
  for (int row = 0; row < item.num_rows; ++row) {
    values.weight_sum[values.AtSplit(row, split)] = 0;
    values.num_read[values.AtSplit(row, split)] = 0;
  }
  std::fill_n(values.Partial(0, split), Size(item.PaddedRows()) * values.padded_dim, 0.0f);

  const int num_chunks = (item.MaxKeys() + kChunkKeys - 1) / kChunkKeys;
  const int end = std::min(num_chunks * kChunkKeys, (split + 1) * kSplitKeys);
  if (work.args.spec.Form().reweights && item.is_decode) {
    for (int row = 0; row < item.num_rows; row += kGroupRows) {
      ReweightDecodeRows(work, row, split, end);
    }
  } else if (work.args.spec.Form().reweights) {
    ReweightBlock(work, split, end);
  } else if (item.is_decode) {
    WeighDecode(work, split, end);
  } else {
    WeighBlock(work, split, end);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

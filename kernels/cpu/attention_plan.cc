#include "kernels/cpu/attention_plan.h"

#include <algorithm>

namespace lssar {
namespace {

// Upper bounds of an item's scores, in floats; longer contexts get fewer rows. A block's scores are
// streams, which the L3 cache supplies in time: more rows read K and V less often. A decode step's
// stay in half of a common L2 cache of 1 MiB.
constexpr int kMaxBlockScores = 1024 * 1024;
constexpr int kMaxDecodeScores = 128 * 1024;

size_t RoundUp(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

// Floats of a row's scores: whole chunks and one more cache line, so that the rows of a block do
// not map to the same cache sets.
size_t RowStride(const AttentionItem& item) {
  return RoundUp(size_t(item.MaxKeys()), size_t{kChunkKeys}) + kVectorFloats;
}

int BlockRows(int max_keys) {
  const int rows = std::min(kBlockRows, kMaxBlockScores / max_keys);
  return std::max(1, rows / kGroupRows * kGroupRows);
}

// Query heads of one token in an item, of `group_size` that share a KV head: as many as fit the
// cache with their scores, so that K is read once for all of them. Fewer if threads would be idle
// that cannot share the splits of a long row.
int DecodeHeads(int group_size, int max_keys, int num_items, int num_threads) {
  const int most = std::clamp(kMaxDecodeScores / max_keys, kGroupRows, kBlockRows);
  const int wanted = max_keys > kSplitKeys ? group_size : group_size * num_items / num_threads;
  const int num_parts = (group_size + most - 1) / most;
  return std::clamp(wanted, 1, (group_size + num_parts - 1) / num_parts);
}

// Number of dot products, roughly. The time of an item is proportional to it.
int64_t Cost(const AttentionItem& item) {
  return int64_t{item.PaddedRows()} * int64_t{item.MaxKeys()};
}

}  // namespace

size_t ItemValues::NumFloats(const AttentionItem& item, const KvLayout& layout) {
  const size_t rows = size_t(item.PaddedRows());
  const size_t num_stats = RoundUp(rows * size_t(item.NumSplits()), kVectorFloats);
  const size_t padded_dim = RoundUp(size_t(layout.head_dim), kVectorFloats);
  const size_t row_stride = RowStride(item);
  size_t row_floats = row_stride;
  if (layout.dtype == DType::kFx16) row_floats += row_stride / 4 + row_stride / kChunkKeys;
  return num_stats * (3 * (sizeof(double) / sizeof(float)) + 2 + padded_dim) +
         RoundUp(rows * row_floats, kVectorFloats);
}

ItemValues::ItemValues(const AttentionItem& item, const KvLayout& layout, float* scratch)
    : row_stride(RowStride(item)),
      padded_dim(RoundUp(size_t(layout.head_dim), kVectorFloats)),
      padded_rows(item.PaddedRows()) {
  const size_t num_stats = RoundUp(size_t(padded_rows) * size_t(item.NumSplits()), kVectorFloats);
  sum = reinterpret_cast<double*>(scratch);
  weight_sum = sum + num_stats;
  num_read = reinterpret_cast<int64_t*>(weight_sum + num_stats);
  max = reinterpret_cast<float*>(num_read + num_stats);
  refined_max = max + num_stats;
  scores = refined_max + num_stats;
  partial = scores + size_t(padded_rows) * row_stride;
  if (layout.dtype != DType::kFx16) return;
  num_candidates = reinterpret_cast<int32_t*>(partial + num_stats * padded_dim);
  candidate_keys =
      reinterpret_cast<uint8_t*>(num_candidates + size_t(padded_rows) * (row_stride / kChunkKeys));
}

void PlanAttention(const AttentionArgs& args, int num_threads, AttentionPlan* plan) {
  plan->items.clear();
  plan->first_tasks.clear();
  plan->split_tasks.clear();
  plan->shared_items.clear();
  plan->num_shared_floats = 0;

  const int num_kv_heads = args.kv.layout.num_kv_heads;
  const int group_size = args.num_heads / num_kv_heads;
  const int num_kv_items = num_kv_heads * int(args.rows->sequences.size());
  int64_t total_cost = 0;
  for (size_t s = 0; s < args.rows->sequences.size(); ++s) {
    const SequenceSlice& sequence = args.rows->sequences[s];
    for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      const int first_head = kv_head * group_size, end_head = first_head + group_size;
      // From the last rows, which cost most, to the first: the last tasks of a thread are short.
      for (int end_row = sequence.num_rows; end_row > 0;) {
        const int max_keys = sequence.first_position + end_row;
        const int rows = std::min(end_row, BlockRows(max_keys));
        end_row -= rows;
        AttentionItem item{.sequence = &sequence,
                           .sequence_idx = int(s),
                           .kv_head = kv_head,
                           .first_row = end_row,
                           .num_rows = rows,
                           .is_decode = rows == 1};
        const int num_heads =
            rows == 1 ? DecodeHeads(group_size, max_keys, num_kv_items, num_threads) : 1;
        for (item.head = first_head; item.head < end_head; item.head += num_heads) {
          if (item.is_decode) item.num_rows = std::min(num_heads, end_head - item.head);
          total_cost += Cost(item);
          plan->items.push_back(item);
        }
      }
    }
  }

  // Threads share an item that is so large that the others would wait for it. Equal items that
  // divide among the threads make nobody wait: a thread finds its own item's values in its cache.
  const auto& items = plan->items;
  const bool divides = items.size() % size_t(num_threads) == 0 &&
                       std::ranges::all_of(items, [&](const AttentionItem& item) {
                         return Cost(item) == Cost(items.front());
                       });
  const int64_t large = total_cost / (4 * int64_t{num_threads});
  for (size_t i = 0; i < plan->items.size(); ++i) {
    AttentionItem& item = plan->items[i];
    const int item_idx = int(i);
    item.is_shared = num_threads > 1 && item.NumSplits() > 1 && Cost(item) > large && !divides;
    if (!item.is_shared) {
      plan->first_tasks.push_back({.item_idx = item_idx});
      continue;
    }
    item.shared_idx = plan->num_shared_floats;
    plan->num_shared_floats += ItemValues::NumFloats(item, args.kv.layout);
    plan->shared_items.push_back(item_idx);
    for (int split = 0; split < item.NumSplits(); ++split) {
      plan->split_tasks.push_back({.item_idx = item_idx, .split = split});
    }
  }
  plan->first_tasks.insert(plan->first_tasks.end(), plan->split_tasks.begin(),
                           plan->split_tasks.end());
}

}  // namespace lssar

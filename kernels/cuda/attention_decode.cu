// Decode attention: one query row at a time, Score -> Reduce -> Weigh over splits of kCudaSplitKeys
// keys. A warp computes a split, of one query head or of several that share a K/V head, which is
// then read once.
//   cluster  one launch. The blocks of a cluster share one row of one head; scores, sums and
//            partial values stay in shared memory, which the blocks read from each other.
//   split    two launches over the same splits, with scores in device memory. For devices without
//            clusters and for rows with more keys than a cluster holds.
// Over keys in two planes (fx16) Refine comes between Reduce and Weigh, and a launch more: Score
// reads the high plane of all keys, Refine the low plane of those that may have a weight.
// Both run the same functions on a split and add splits in the same order, so the bits are equal.
#include "kernels/cuda/attention_dispatch.cuh"
#include "kernels/cuda/decode_split.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kDecodeThreads = kDecodeWarps * kWarpThreads;

// Warps of a block whose cluster gives it `splits_of_block` splits: no more than have work, so that
// short rows leave room for other blocks on the multiprocessor.
constexpr int WarpsFor(int splits_of_block, int num_heads) {
  const int most = num_heads == 1 ? kDecodeWarps : kGroupedDecodeWarps;
  return splits_of_block < most ? splits_of_block : most;
}

LSSAR_DEVICE int NumSplits(int num_keys) {
  return (num_keys + kCudaSplitKeys - 1) / kCudaSplitKeys;
}

// Blocks along y of a row: each computes up to heads_of_block query heads of one K/V head.
constexpr int HeadBlocksOfKv(const CudaAttentionArgs& args) {
  return (args.heads_of_kv + args.heads_of_block - 1) / args.heads_of_block;
}
constexpr int NumHeadBlocks(const CudaAttentionArgs& args) {
  return args.num_heads / args.heads_of_kv * HeadBlocksOfKv(args);
}

// The block's first query head.
LSSAR_DEVICE int FirstHead(const CudaAttentionArgs& args) {
  const int blocks = HeadBlocksOfKv(args);
  return BlockY() / blocks * args.heads_of_kv + BlockY() % blocks * args.heads_of_block;
}

template <typename E, int kDim>
LSSAR_DEVICE RowWork<E, kDim> WorkOn(const CudaAttentionArgs& args, const CudaDecodeRow& row) {
  const int head = FirstHead(args), left = args.heads_of_kv - head % args.heads_of_kv;
  return {args,
          PagedHead<E, kDim>(args.pages, row.first_page, head / args.heads_of_kv),
          row.num_keys,
          row.sequence,
          (size_t(row.row) * size_t(args.num_heads) + size_t(head)) * kDim,
          left < args.heads_of_block ? left : args.heads_of_block};
}

template <typename E, int kDim>
LSSAR_DEVICE HeadQueries<E, kDim> LoadQuery(const RowWork<E, kDim>& work,
                                            const CudaDecodeRow& row) {
  HeadQueries<E, kDim> q;
  q.Load(work, RowScale(work.args, row.log_keys));
  return q;
}

LSSAR_DEVICE void CountRead(const CudaAttentionArgs& args, int sequence, int num_read) {
  if (args.counters == nullptr || num_read == 0 || LaneIdx() != 0) return;
  AtomicAdd(args.counters + sequence, static_cast<unsigned long long>(num_read));
}

// The rule of head `head` from its splits' sums, added in order. `stride`: from one split to the
// next.
LSSAR_DEVICE WeightRule ReduceSplits(const CudaAttentionArgs& args, int num_keys,
                                     const double* sums, const float* maxima, int stride) {
  double sum = 0;
  float max = kLowestScore;
  for (int split = 0; split < NumSplits(num_keys); ++split) {
    sum += sums[split * stride];
    max = fmaxf(max, maxima[split * stride]);
  }
  return ReduceRow(args, num_keys, max, sum);
}

// The score that a candidate's upper bound reaches: that of the least weight beside the row's least
// peak. The key of the largest score is a candidate; a flat row has none.
LSSAR_DEVICE float LeastOfCandidates(const WeightRule& low) {
  return low.rule == WeightKind::kFlat ? low.least : fminf(low.least, low.max);
}

// The head whose rule a lane computes.
template <bool kGrouped>
LSSAR_DEVICE int HeadOfLane(int num_heads) {
  if (!kGrouped) return 0;
  return LaneIdx() < num_heads ? LaneIdx() : num_heads - 1;
}

// Bit h: head h is flat. `rule`: of head HeadOfLane. All lanes of the warp.
LSSAR_DEVICE unsigned FlatHeads(const WeightRule& rule, int num_heads) {
  return Ballot(LaneIdx() < num_heads && rule.rule == WeightKind::kFlat);
}

// Flat heads, shared by the warps of one block of the row.
template <typename E, int kDim>
LSSAR_DEVICE void AttendFlatHeads(const RowWork<E, kDim>& work, unsigned flat_heads,
                                  int num_warps) {
  for (unsigned left = flat_heads; left != 0; left &= left - 1) {
    const int head = LowestBit(left);
    if (head % num_warps == WarpIdx()) AttendFlat(work.OfHead(head));
  }
}

// out = sum of u^p v / sum of u^p, splits added in order, for dimensions [first, first + num_dims),
// which the block's threads share. `work`: of one head. partial(split): [kDim + 1]
template <typename E, int kDim, typename Partial>
LSSAR_DEVICE void MergeSplits(const RowWork<E, kDim>& work, int num_threads, int first,
                              int num_dims, const Partial& partial) {
  for (int dim = first + ThreadIdx(); dim < first + num_dims; dim += num_threads) {
    float sum = 0;
    double weight_sum = 0;
    LSSAR_UNROLL_BY(8)  // loads in flight; the sum is in order
    for (int split = 0; split < NumSplits(work.num_keys); ++split) {
      const float* from = partial(split);
      sum += from[dim];
      weight_sum += double(from[kDim]);
    }
    const float inverse = float(1.0 / weight_sum);
    work.args.out[work.vector_idx + size_t(dim)] = sum * inverse;
  }
}

// A block's shared memory: that of its warps, then the sums of all splits of the row, then the
// scores and partial values of the block's own splits. A split has one entry a head.
template <typename E, int kDim>
struct BlockMemory {
  static constexpr int kPartialFloats = kDim + 4;  // 16-byte aligned

  // 1: there are maxima of refined scores, and a short row's sum of them.
  static constexpr int kRefined = E::kTwoPlanes ? 1 : 0;

  double* all_sums;  // [num_splits][num_heads]
  double* sums;      // [splits_of_block][num_heads]
  double* refined_sums;
  float* all_maxima;
  float* maxima;
  float* all_refined;
  float* refined;
  float* scores;    // [splits_of_block][num_heads][kCudaSplitKeys]
  float* partials;  // [splits_of_block][num_heads][kPartialFloats]

  LSSAR_DEVICE BlockMemory(int num_splits, int splits_of_block, int num_heads) {
    all_sums = reinterpret_cast<double*>(SharedMemory() + WarpsBytes(splits_of_block, num_heads));
    sums = all_sums + num_splits * num_heads;
    refined_sums = sums + splits_of_block * num_heads;
    all_maxima = reinterpret_cast<float*>(refined_sums + kRefined * splits_of_block * num_heads);
    maxima = all_maxima + num_splits * num_heads;
    all_refined = maxima + splits_of_block * num_heads;
    refined = all_refined + kRefined * num_splits * num_heads;
    scores = refined + kRefined * splits_of_block * num_heads;
    partials = scores + splits_of_block * num_heads * kCudaSplitKeys;
  }
  static constexpr int WarpsBytes(int splits_of_block, int num_heads) {
    return WarpsFor(splits_of_block, num_heads) * WarpMemory<E, kDim>::NumBytes(num_heads);
  }
  static size_t NumBytes(int num_splits, int splits_of_block, int num_heads) {
    return size_t(WarpsBytes(splits_of_block, num_heads)) +
           size_t(num_splits + splits_of_block) * size_t(num_heads) *
               (sizeof(double) + (1 + kRefined) * sizeof(float)) +
           size_t(kRefined * splits_of_block * num_heads) * sizeof(double) +
           size_t(splits_of_block * num_heads) * (kCudaSplitKeys + kPartialFloats) * sizeof(float);
  }
};

// Split s of a row is split s / blocks of block s % blocks. kGrouped: several query heads a block.
template <typename E, int kDim, bool kGrouped>
LSSAR_KERNEL(kDecodeThreads)
ClusterDecode(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  if constexpr (kHasClusters) {
    using Memory = BlockMemory<E, kDim>;
    const int num_blocks = ClusterBlocks(), rank = ClusterRank();  // a power of two
    const int block_shift = LowestBit(unsigned(num_blocks));
    const CudaDecodeRow row = args.decode_rows[BlockX() / num_blocks];
    if (row.num_keys == 0) return;  // the whole cluster returns
    const RowWork<E, kDim> work = WorkOn<E, kDim>(args, row);
    const int num_heads = kGrouped ? work.num_heads : 1;
    const int most_heads = kGrouped ? args.heads_of_block : 1;  // of the layout
    const int num_splits = NumSplits(row.num_keys);
    const int splits_of_block = (args.max_splits + num_blocks - 1) >> block_shift;
    const int num_warps = WarpsFor(splits_of_block, most_heads);
    const Memory block(args.max_splits, splits_of_block, most_heads);
    const WarpMemory<E, kDim> memory{SharedMemory() +
                                     WarpIdx() * WarpMemory<E, kDim>::NumBytes(most_heads)};

    HeadQueries<E, kDim> q;
    {
      KeyStream<E, kDim, true> stream(memory);
      int own = WarpIdx();
      const auto start = [&] {
        if (own * num_blocks + rank < num_splits) StartSplit(work, stream, own * num_blocks + rank);
      };
      start();
      q = LoadQuery(work, row);
      while (own * num_blocks + rank < num_splits) {
        ScoreSplit<kGrouped>(work, q, stream, memory, own * num_blocks + rank,
                             block.scores + own * most_heads * kCudaSplitKeys, kCudaSplitKeys,
                             [&](int head, const SplitStats& stats) {
                               block.sums[own * most_heads + head] = stats.sum;
                               block.maxima[own * most_heads + head] = stats.max;
                             });
        own += num_warps;
        start();
      }
    }
    SyncCluster();

    // copy(i, from, rank): entry i of all splits is entry `from` of the block with that rank.
    const auto gather = [&](const auto& copy) {
      for (int i = ThreadIdx(); i < num_splits * most_heads; i += num_warps * kWarpThreads) {
        const int split = i / most_heads, head = i % most_heads;
        if (kGrouped && head >= num_heads) continue;
        copy(i, (split >> block_shift) * most_heads + head, split & (num_blocks - 1));
      }
      SyncBlock();
    };
    gather([&](int i, int from, int of_rank) {
      block.all_sums[i] = *InBlock(block.sums + from, of_rank);
      block.all_maxima[i] = *InBlock(block.maxima + from, of_rank);
    });
    const int own_head = HeadOfLane<kGrouped>(num_heads);
    WeightRule rule = ReduceSplits(args, row.num_keys, block.all_sums + own_head,
                                   block.all_maxima + own_head, most_heads);
    if constexpr (E::kTwoPlanes) {
      rule = LowRule(args, row.num_keys, rule);
      for (int own = WarpIdx(); own * num_blocks + rank < num_splits; own += num_warps) {
        const SplitStats stats =
            RefineSplit<kGrouped>(work, q, LeastOfCandidates(rule), memory, own * num_blocks + rank,
                                  block.scores + own * most_heads * kCudaSplitKeys, kCudaSplitKeys);
        const int head = LaneIdx() / 4;
        if (LaneIdx() % 4 == 0 && head < num_heads) {
          block.refined[own * most_heads + head] = stats.max;
          block.refined_sums[own * most_heads + head] = stats.sum;
        }
      }
      SyncCluster();
      gather([&](int i, int from, int of_rank) {
        block.all_refined[i] = *InBlock(block.refined + from, of_rank);
        if (IsShortRow(row.num_keys)) {
          block.all_sums[i] = *InBlock(block.refined_sums + from, of_rank);
        }
      });
      rule = RefinedRule(row.num_keys, rule,
                         ReduceSplits(args, row.num_keys, block.all_sums + own_head,
                                      block.all_refined + own_head, most_heads));
    }
    const unsigned flat_heads = FlatHeads(rule, num_heads);

    if (rank == 0) AttendFlatHeads(work, flat_heads, num_warps);
    if (CountBits(flat_heads) < num_heads) {
      int num_read = 0;
      for (int own = WarpIdx(); own * num_blocks + rank < num_splits; own += num_warps) {
        num_read += WeighSplit<kGrouped>(
            work, rule, memory, own * num_blocks + rank,
            block.scores + own * most_heads * kCudaSplitKeys, kCudaSplitKeys,
            block.partials + own * most_heads * Memory::kPartialFloats, Memory::kPartialFloats);
      }
      CountRead(args, row.sequence, num_read);
    }
    SyncCluster();
    for (int head = 0; head < num_heads; ++head) {  // each block merges its share of the dimensions
      if ((flat_heads >> head & 1) != 0) continue;
      const int num_dims = kDim >> block_shift;
      MergeSplits(work.OfHead(head), num_warps * kWarpThreads, rank * num_dims, num_dims,
                  [&](int split) {
                    const int from = (split >> block_shift) * most_heads + head;
                    return InBlock(block.partials + from * Memory::kPartialFloats,
                                   split & (num_blocks - 1));
                  });
    }
    LeaveCluster();
  } else {
    Trap();  // machine code for a device without clusters, launched as if it had them
  }
}

// Blocks that a row of num_splits splits has, a split for each of their warps.
LSSAR_DEVICE int NumSplitBlocks(const CudaAttentionArgs& args, int num_splits) {
  return (num_splits + args.split_decode_warps - 1) / args.split_decode_warps;
}

// The row and splits that a block of the split kernels computes.
struct SplitBlock {
  CudaDecodeRow row;
  int row_idx;
  int first_split;
  int num_splits;    // of the row; from one head to the next in the scratch
  size_t split_idx;  // of the row's first split in the block's first head
  float* scores;     // of the row in that head

  LSSAR_DEVICE explicit SplitBlock(const CudaAttentionArgs& args) {
    const int blocks_of_row = NumSplitBlocks(args, args.max_splits);
    row_idx = BlockX() / blocks_of_row;
    row = args.decode_rows[row_idx];
    first_split = BlockX() % blocks_of_row * args.split_decode_warps;
    num_splits = NumSplits(row.num_keys);
    split_idx =
        row.split_idx * size_t(args.num_heads) + size_t(FirstHead(args)) * size_t(num_splits);
    scores = args.scratch.scores + split_idx * kCudaSplitKeys;
  }
};

template <typename E, int kDim, bool kGrouped>
LSSAR_DEVICE WarpMemory<E, kDim> SplitWarpMemory(const CudaAttentionArgs& args) {
  const int num_heads = kGrouped ? args.heads_of_block : 1;
  return {SharedMemory() + WarpIdx() * WarpMemory<E, kDim>::NumBytes(num_heads)};
}

template <typename E, int kDim, bool kGrouped>
LSSAR_KERNEL(kDecodeThreads)
ScoreSplits(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  const SplitBlock block(args);
  const int split = block.first_split + WarpIdx();
  if (split >= block.num_splits) return;
  const RowWork<E, kDim> work = WorkOn<E, kDim>(args, block.row);
  const WarpMemory<E, kDim> memory = SplitWarpMemory<E, kDim, kGrouped>(args);
  KeyStream<E, kDim, false> stream(memory);
  StartSplit(work, stream, split);
  ScoreSplit<kGrouped>(work, LoadQuery(work, block.row), stream, memory, split,
                       block.scores + split * kCudaSplitKeys, block.num_splits * kCudaSplitKeys,
                       [&](int head, const SplitStats& stats) {
                         const size_t at =
                             block.split_idx + size_t(head * block.num_splits + split);
                         args.scratch.sums[at] = stats.sum;
                         args.scratch.maxima[at] = stats.max;
                       });
}

// The rule of head HeadOfLane, from the scratch: of the row's sums and lower bounds. `own`: the
// head's first split.
LSSAR_DEVICE WeightRule ScratchRule(const CudaAttentionArgs& args, int num_keys, size_t own) {
  return ReduceSplits(args, num_keys, args.scratch.sums + own, args.scratch.maxima + own, 1);
}

// fx16, between the two.
template <typename E, int kDim, bool kGrouped>
LSSAR_KERNEL(kDecodeThreads)
RefineSplits(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  const SplitBlock block(args);
  const int split = block.first_split + WarpIdx();
  if (split >= block.num_splits) return;
  const RowWork<E, kDim> work = WorkOn<E, kDim>(args, block.row);
  const int num_heads = kGrouped ? work.num_heads : 1;
  const size_t own = block.split_idx + size_t(HeadOfLane<kGrouped>(num_heads) * block.num_splits);
  const WeightRule rule =
      LowRule(args, block.row.num_keys, ScratchRule(args, block.row.num_keys, own));
  const SplitStats stats = RefineSplit<kGrouped>(
      work, LoadQuery(work, block.row), LeastOfCandidates(rule),
      SplitWarpMemory<E, kDim, kGrouped>(args), split, block.scores + split * kCudaSplitKeys,
      block.num_splits * kCudaSplitKeys);
  const int head = LaneIdx() / 4;
  if (LaneIdx() % 4 == 0 && head < num_heads) {
    const size_t at = block.split_idx + size_t(head * block.num_splits + split);
    args.scratch.refined[at] = stats.max;
    if (IsShortRow(block.row.num_keys)) args.scratch.sums[at] = stats.sum;
  }
}

// The block of a row and its heads that finishes last merges the splits.
template <typename E, int kDim, bool kGrouped>
LSSAR_KERNEL(kDecodeThreads)
WeighSplits(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  const SplitBlock block(args);
  if (block.first_split >= block.num_splits) return;
  const RowWork<E, kDim> work = WorkOn<E, kDim>(args, block.row);
  const int num_heads = kGrouped ? work.num_heads : 1;
  const size_t own = block.split_idx + size_t(HeadOfLane<kGrouped>(num_heads) * block.num_splits);
  WeightRule rule = ScratchRule(args, block.row.num_keys, own);
  if constexpr (E::kTwoPlanes) {
    rule = RefinedRule(block.row.num_keys, LowRule(args, block.row.num_keys, rule),
                       ReduceSplits(args, block.row.num_keys, args.scratch.sums + own,
                                    args.scratch.refined + own, 1));
  }
  const unsigned flat_heads = FlatHeads(rule, num_heads);
  if (block.first_split == 0) AttendFlatHeads(work, flat_heads, args.split_decode_warps);
  if (CountBits(flat_heads) == num_heads) return;

  const int partial_stride = block.num_splits * (kDim + 1);  // from one head to the next
  float* const partials = args.scratch.partials + block.split_idx * (kDim + 1);
  const int split = block.first_split + WarpIdx();
  if (split < block.num_splits) {
    const int num_read = WeighSplit<kGrouped>(work, rule, SplitWarpMemory<E, kDim, kGrouped>(args),
                                              split, block.scores + split * kCudaSplitKeys,
                                              block.num_splits * kCudaSplitKeys,
                                              partials + split * (kDim + 1), partial_stride);
    CountRead(args, block.row.sequence, num_read);
  }
  FenceDevice();
  SyncBlock();
  bool is_last = false;
  if (ThreadIdx() == 0) {
    unsigned* const arrivals = args.scratch.arrivals + block.row_idx * args.num_heads + BlockY();
    is_last = AtomicAdd(arrivals, 1) + 1 == unsigned(NumSplitBlocks(args, block.num_splits));
    if (is_last) *arrivals = 0;
  }
  if (!SyncBlockOr(is_last)) return;
  FenceDevice();
  for (int head = 0; head < num_heads; ++head) {
    if ((flat_heads >> head & 1) != 0) continue;
    const float* const of_head = partials + head * partial_stride;
    MergeSplits(work.OfHead(head), args.split_decode_warps * kWarpThreads, 0, kDim,
                [&](int at) { return of_head + at * (kDim + 1); });
  }
}

}  // namespace

size_t ClusterDecodeMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim, [&]<typename E, int kDim>() {
    return BlockMemory<E, kDim>::NumBytes(kMostClusterBlocks * kSplitsOfBlock, kSplitsOfBlock, 1);
  });
}

size_t SplitDecodeWarpMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim,
                  [&]<typename E, int kDim>() { return size_t(WarpMemory<E, kDim>::NumBytes(1)); });
}

int StartClusterDecode(const CudaAttentionArgs& args, DType dtype, int cluster_blocks,
                       void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const int splits_of_block = (args.max_splits + cluster_blocks - 1) / cluster_blocks;
    const LaunchShape shape{
        .num_blocks_x = args.num_decode_rows * cluster_blocks,
        .num_blocks_y = NumHeadBlocks(args),
        .num_threads = WarpsFor(splits_of_block, args.heads_of_block) * kWarpThreads,
        .cluster_blocks = cluster_blocks,
        .shared_bytes =
            BlockMemory<E, kDim>::NumBytes(args.max_splits, splits_of_block, args.heads_of_block),
        .overlaps_previous = true};
    return Launch(
        shape, stream,
        args.heads_of_block > 1 ? &ClusterDecode<E, kDim, true> : &ClusterDecode<E, kDim, false>,
        args);
  });
}

int StartSplitDecode(const CudaAttentionArgs& args, DType dtype, void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const int num_warps = args.split_decode_warps;
    const int blocks_of_row = (args.max_splits + num_warps - 1) / num_warps;
    const bool is_grouped = args.heads_of_block > 1;
    const LaunchShape shape{
        .num_blocks_x = args.num_decode_rows * blocks_of_row,
        .num_blocks_y = NumHeadBlocks(args),
        .num_threads = num_warps * kWarpThreads,
        .shared_bytes = size_t(num_warps * WarpMemory<E, kDim>::NumBytes(args.heads_of_block)),
        .overlaps_previous = true};
    int failed =
        Launch(shape, stream,
               is_grouped ? &ScoreSplits<E, kDim, true> : &ScoreSplits<E, kDim, false>, args);
    if constexpr (E::kTwoPlanes) {
      if (failed != 0) return failed;
      failed =
          Launch(shape, stream,
                 is_grouped ? &RefineSplits<E, kDim, true> : &RefineSplits<E, kDim, false>, args);
    }
    if (failed != 0) return failed;
    return Launch(shape, stream,
                  is_grouped ? &WeighSplits<E, kDim, true> : &WeighSplits<E, kDim, false>, args);
  });
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Decode attention: one query row at a time, Score -> Reduce -> Weigh over splits of kCudaSplitKeys
// keys. A warp computes a split.
//   cluster  one launch. The blocks of a cluster share one row of one head; scores, sums and
//            partial values stay in shared memory, which the blocks read from each other.
//   split    two launches over the same splits, with scores in device memory. For devices without
//            clusters and for rows with more keys than a cluster holds.
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
constexpr int WarpsFor(int splits_of_block) {
  return splits_of_block < kDecodeWarps ? splits_of_block : kDecodeWarps;
}

LSSAR_DEVICE int NumSplits(int num_keys) {
  return (num_keys + kCudaSplitKeys - 1) / kCudaSplitKeys;
}

template <typename E, int kDim>
LSSAR_DEVICE RowWork<E, kDim> WorkOn(const CudaAttentionArgs& args, const CudaDecodeRow& row,
                                     int head) {
  return {args, PagedHead<E, kDim>(args.pages, row.first_page, head / args.heads_of_kv),
          row.num_keys, row.sequence,
          (size_t(row.row) * size_t(args.num_heads) + size_t(head)) * kDim};
}

// The query vector as row 0 of the 16 rows of the MMA's A operand.
template <typename E, int kDim>
LSSAR_DEVICE QueryRows<E, kDim> LoadQuery(const RowWork<E, kDim>& work) {
  QueryRows<E, kDim> q;
  const float* const own = LaneIdx() < 4 ? work.args.q + work.vector_idx : nullptr;
  q.Load({own, nullptr});
  return q;
}

LSSAR_DEVICE void CountRead(const CudaAttentionArgs& args, int sequence, int num_read) {
  if (args.counters == nullptr || num_read == 0 || LaneIdx() != 0) return;
  AtomicAdd(args.counters + sequence, static_cast<unsigned long long>(num_read));
}

// Adds the splits' sums in order.
LSSAR_DEVICE WeightRule ReduceSplits(const CudaAttentionArgs& args, int num_keys,
                                     const double* sums, const float* maxima) {
  double sum = 0;
  float max = kLowestScore;
  for (int split = 0; split < NumSplits(num_keys); ++split) {
    sum += sums[split];
    max = fmaxf(max, maxima[split]);
  }
  return ReduceRow(args, num_keys, max, sum);
}

// out = sum of u^p v / sum of u^p, splits added in order, for dimensions [first, first + num_dims),
// which the block's threads share. partial(split): [kDim + 1]
template <typename E, int kDim, typename Partial>
LSSAR_DEVICE void MergeSplits(const RowWork<E, kDim>& work, int num_threads, int first,
                              int num_dims, const Partial& partial) {
  for (int dim = first + ThreadIdx(); dim < first + num_dims; dim += num_threads) {
    float sum = 0;
    double weight_sum = 0;
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
// scores and partial values of the block's own splits.
template <typename E, int kDim>
struct BlockMemory {
  static constexpr int kPartialFloats = kDim + 4;  // 16-byte aligned

  double* all_sums;  // [num_splits]
  double* sums;      // [splits_of_block]
  float* all_maxima;
  float* maxima;
  float* scores;    // [splits_of_block][kCudaSplitKeys]
  float* partials;  // [splits_of_block][kPartialFloats]

  LSSAR_DEVICE BlockMemory(int num_splits, int splits_of_block) {
    all_sums = reinterpret_cast<double*>(SharedMemory() + WarpsBytes(splits_of_block));
    sums = all_sums + num_splits;
    all_maxima = reinterpret_cast<float*>(sums + splits_of_block);
    maxima = all_maxima + num_splits;
    scores = maxima + splits_of_block;
    partials = scores + splits_of_block * kCudaSplitKeys;
  }
  static constexpr int WarpsBytes(int splits_of_block) {
    return WarpsFor(splits_of_block) * WarpMemory<E, kDim>::kBytes;
  }
  static size_t NumBytes(int num_splits, int splits_of_block) {
    return size_t(WarpsBytes(splits_of_block)) +
           size_t(num_splits + splits_of_block) * (sizeof(double) + sizeof(float)) +
           size_t(splits_of_block) * (kCudaSplitKeys + kPartialFloats) * sizeof(float);
  }
};

// Split s of a row is split s / blocks of block s % blocks.
template <typename E, int kDim>
LSSAR_KERNEL(kDecodeThreads)
ClusterDecode(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  if constexpr (kHasClusters) {
    const int num_blocks = ClusterBlocks(), rank = ClusterRank();
    const CudaDecodeRow row = args.decode_rows[BlockX() / num_blocks];
    if (row.num_keys == 0) return;  // the whole cluster returns
    const RowWork<E, kDim> work = WorkOn<E, kDim>(args, row, BlockY());
    const int num_splits = NumSplits(row.num_keys);
    const int splits_of_block = (args.max_splits + num_blocks - 1) / num_blocks;
    const int num_warps = WarpsFor(splits_of_block);
    const BlockMemory<E, kDim> block(args.max_splits, splits_of_block);
    const WarpMemory<E, kDim> memory{SharedMemory() + WarpIdx() * WarpMemory<E, kDim>::kBytes};

    {
      const QueryRows<E, kDim> q = LoadQuery(work);
      KeyStream<E, kDim, true> stream(memory);
      for (int own = WarpIdx(); own * num_blocks + rank < num_splits; own += num_warps) {
        const SplitStats stats = ScoreSplit(work, q, stream, memory, own * num_blocks + rank,
                                            block.scores + own * kCudaSplitKeys);
        if (LaneIdx() == 0) {
          block.sums[own] = stats.sum;
          block.maxima[own] = stats.max;
        }
      }
    }
    SyncCluster();

    for (int split = ThreadIdx(); split < num_splits; split += num_warps * kWarpThreads) {
      block.all_sums[split] = *InBlock(block.sums + split / num_blocks, split % num_blocks);
      block.all_maxima[split] = *InBlock(block.maxima + split / num_blocks, split % num_blocks);
    }
    SyncBlock();
    const WeightRule rule = ReduceSplits(args, row.num_keys, block.all_sums, block.all_maxima);

    if (rule.rule == WeightKind::kFlat) {
      if (rank == 0 && WarpIdx() == 0) AttendFlat(work);
    } else {
      int num_read = 0;
      for (int own = WarpIdx(); own * num_blocks + rank < num_splits; own += num_warps) {
        num_read += WeighSplit(work, rule, memory, own * num_blocks + rank,
                               block.scores + own * kCudaSplitKeys,
                               block.partials + own * BlockMemory<E, kDim>::kPartialFloats);
      }
      CountRead(args, row.sequence, num_read);
    }
    SyncCluster();
    if (rule.rule != WeightKind::kFlat) {  // each block merges its share of the dimensions
      const int num_dims = kDim / num_blocks;
      MergeSplits(work, num_warps * kWarpThreads, rank * num_dims, num_dims, [&](int split) {
        return InBlock(block.partials + split / num_blocks * BlockMemory<E, kDim>::kPartialFloats,
                       split % num_blocks);
      });
    }
    SyncCluster();  // a block must not exit while another block reads its shared memory
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
  int num_splits;    // of the row
  size_t split_idx;  // of the row's first split in this head
  float* scores;     // of the row in this head

  LSSAR_DEVICE explicit SplitBlock(const CudaAttentionArgs& args) {
    const int blocks_of_row = NumSplitBlocks(args, args.max_splits);
    row_idx = BlockX() / blocks_of_row;
    row = args.decode_rows[row_idx];
    first_split = BlockX() % blocks_of_row * args.split_decode_warps;
    num_splits = NumSplits(row.num_keys);
    split_idx = row.split_idx * size_t(args.num_heads) + size_t(BlockY()) * size_t(num_splits);
    scores = args.scratch.scores + split_idx * kCudaSplitKeys;
  }
};

template <typename E, int kDim>
LSSAR_KERNEL(kDecodeThreads)
ScoreSplits(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  const SplitBlock block(args);
  const int split = block.first_split + WarpIdx();
  if (split >= block.num_splits) return;
  const RowWork<E, kDim> work = WorkOn<E, kDim>(args, block.row, BlockY());
  const WarpMemory<E, kDim> memory{SharedMemory() + WarpIdx() * WarpMemory<E, kDim>::kBytes};
  KeyStream<E, kDim, false> stream(memory);
  const SplitStats stats = ScoreSplit(work, LoadQuery(work), stream, memory, split,
                                      block.scores + split * kCudaSplitKeys);
  if (LaneIdx() == 0) {
    const size_t at = block.split_idx + size_t(split);
    args.scratch.sums[at] = stats.sum;
    args.scratch.maxima[at] = stats.max;
  }
}

// The block of a row and head that finishes last merges the splits.
template <typename E, int kDim>
LSSAR_KERNEL(kDecodeThreads)
WeighSplits(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  const SplitBlock block(args);
  if (block.first_split >= block.num_splits) return;
  const RowWork<E, kDim> work = WorkOn<E, kDim>(args, block.row, BlockY());
  const WeightRule rule =
      ReduceSplits(args, block.row.num_keys, args.scratch.sums + block.split_idx,
                   args.scratch.maxima + block.split_idx);
  if (rule.rule == WeightKind::kFlat) {
    if (block.first_split == 0 && WarpIdx() == 0) AttendFlat(work);
    return;
  }
  float* const partials = args.scratch.partials + block.split_idx * (kDim + 1);
  const int split = block.first_split + WarpIdx();
  if (split < block.num_splits) {
    const WarpMemory<E, kDim> memory{SharedMemory() + WarpIdx() * WarpMemory<E, kDim>::kBytes};
    const int num_read =
        WeighSplit(work, rule, memory, split, block.scores + split * kCudaSplitKeys,
                   partials + split * (kDim + 1));
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
  MergeSplits(work, args.split_decode_warps * kWarpThreads, 0, kDim,
              [&](int at) { return partials + at * (kDim + 1); });
}

}  // namespace

size_t ClusterDecodeMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim, [&]<typename E, int kDim>() {
    return BlockMemory<E, kDim>::NumBytes(kMostClusterBlocks * kSplitsOfBlock, kSplitsOfBlock);
  });
}

size_t SplitDecodeWarpMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim,
                  [&]<typename E, int kDim>() { return size_t(WarpMemory<E, kDim>::kBytes); });
}

int StartClusterDecode(const CudaAttentionArgs& args, DType dtype, int cluster_blocks,
                       void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const int splits_of_block = (args.max_splits + cluster_blocks - 1) / cluster_blocks;
    const LaunchShape shape{
        .num_blocks_x = args.num_decode_rows * cluster_blocks,
        .num_blocks_y = args.num_heads,
        .num_threads = WarpsFor(splits_of_block) * kWarpThreads,
        .cluster_blocks = cluster_blocks,
        .shared_bytes = BlockMemory<E, kDim>::NumBytes(args.max_splits, splits_of_block),
        .overlaps_previous = true};
    return Launch(shape, stream, &ClusterDecode<E, kDim>, args);
  });
}

int StartSplitDecode(const CudaAttentionArgs& args, DType dtype, void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const int num_warps = args.split_decode_warps;
    const int blocks_of_row = (args.max_splits + num_warps - 1) / num_warps;
    const LaunchShape shape{.num_blocks_x = args.num_decode_rows * blocks_of_row,
                            .num_blocks_y = args.num_heads,
                            .num_threads = num_warps * kWarpThreads,
                            .shared_bytes = size_t(num_warps * WarpMemory<E, kDim>::kBytes),
                            .overlaps_previous = true};
    const int failed = Launch(shape, stream, &ScoreSplits<E, kDim>, args);
    if (failed != 0) return failed;
    return Launch(shape, stream, &WeighSplits<E, kDim>, args);
  });
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

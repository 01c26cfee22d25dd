// GEMMs of many rows. A block computes a tile of the result; its operands pass through shared
// memory in stages of 64 columns of K, copied asynchronously a stage or more ahead. An element is
// the same sum of kGemmChains chains as in dense.cu, MMA by MMA, so its bits are the same.
//
// A block computes its chains one after the other and adds them up in registers. Where tiles are
// too few to fill the device, the blocks of a cluster compute a chain each and add them through
// distributed shared memory.
//
// A load of 16 bytes gets what ldmatrix would, without bank conflicts: split_rows stores x as tiled
// rows, in which the 4 registers of an A operand are adjacent (CudaSplitRows); weights lie in
// shared memory as rows of 32 columns without padding, and thread t of a quad takes 8 adjacent ones
// (elements.cuh), the B operands of two MMAs.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm_epilogue.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

// Columns of K in a stage, in blocks of two MMAs each: those that share an int8 scale.
constexpr int kStageCols = kCudaGroupCols;
constexpr int kStageBlocks = kStageCols / kBlockCols;
// Elements of the result that a thread loads operands for at a time.
constexpr int kBatch = 8;

// A tile of kSize x kSize, 64 or 128. A warp computes kRowTiles x kColTiles MMA tiles of 16 x 8.
template <typename E, int kSize>
struct TileShape {
  static constexpr int kRows = kSize;
  static constexpr int kCols = kSize;
  static constexpr int kRowTiles = kSize / 32;
  static constexpr int kColTiles = 4;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kWarpCols = 8 * kColTiles;
  static constexpr int kColWarps = kCols / kWarpCols;
  static constexpr int kThreads = kRows / kWarpRows * kColWarps * kWarpThreads;

  // A stage: [part][16 rows][64 columns] of x as tiled rows, then [32 columns of K][column] of the
  // weights, then a scale for each column.
  static constexpr int kStages = kSize == 64 ? 3 : 2;
  static constexpr int kXBlockBytes = kBlockRows * kStageCols * 2;
  static constexpr int kXBlocks = kRows / kBlockRows;  // of a part
  static constexpr int kWeightRowBytes = kStageCols * E::kBytes;
  static constexpr int kHalfRowBytes = kBlockCols * E::kBytes;
  static constexpr int kWeightsAt = E::kRowParts * kXBlocks * kXBlockBytes;
  static constexpr int kScalesAt = kWeightsAt + kCols * kWeightRowBytes;
  static constexpr int kStageBytes = kScalesAt + (E::kHasScales ? kCols * 4 : 0);

  // Pieces of 16 bytes that the block's threads copy at a time, in whole rows and blocks of x.
  static constexpr int kXPieces = kXBlockBytes / 16;
  static constexpr int kXAtOnce = kThreads / kXPieces;
  static constexpr int kXCopies = kXBlocks / kXAtOnce;  // of a part
  static constexpr int kWeightPieces = kWeightRowBytes / 16;
  static constexpr int kWeightsAtOnce = kThreads / kWeightPieces;
  static constexpr int kWeightCopies = kCols / kWeightsAtOnce;
  static_assert(kXCopies * kXAtOnce == kXBlocks && kWeightCopies * kWeightsAtOnce == kCols);

  // Sums, after the last stage. 8 floats more than a row, so that 4 adjacent rows start in
  // different banks.
  static constexpr int kSumStride = kCols + 8;
  static constexpr int kSumBytes = kRows * kSumStride * 4;
  static constexpr int kSharedBytes =
      kStages * kStageBytes > kSumBytes ? kStages* kStageBytes : kSumBytes;
};

template <typename E, int kSize>
class GemmTile {
 public:
  using Shape = TileShape<E, kSize>;

  LSSAR_DEVICE explicit GemmTile(const CudaLinearArgs& args)
      : args_(args),
        num_ranks_(args.cluster_blocks),
        rank_(num_ranks_ == 1 ? 0 : ClusterRank()),
        first_row_(BlockY() * Shape::kRows),
        first_col_(BlockX() / num_ranks_ * Shape::kCols) {
    const unsigned width = unsigned(args.weight.padded_cols);
    const int first_stage = StageOfChain(rank_);
    next_x_ = static_cast<const unsigned char*>(args.x.parts) +
              size_t(first_row_ / kBlockRows + ThreadIdx() / Shape::kXPieces) * XBlockBytes() +
              size_t(unsigned(first_stage * Shape::kXBlockBytes)) +
              size_t(unsigned(ThreadIdx() % Shape::kXPieces) * 16);
    scales_group_ = first_stage;
    const unsigned row_bytes = width * E::kBytes;
    const int last_col = args.weight.num_rows - 1 - first_col_;
    next_weights_ = static_cast<const unsigned char*>(args.weight.elements) +
                    size_t(first_col_) * row_bytes +
                    size_t(unsigned(first_stage * Shape::kWeightRowBytes));
    LSSAR_UNROLL
    for (int i = 0; i < Shape::kWeightCopies; ++i) {
      const int col =
          Least(ThreadIdx() / Shape::kWeightPieces + i * Shape::kWeightsAtOnce, last_col);
      weight_offsets_[i] =
          unsigned(col) * row_bytes + unsigned(ThreadIdx() % Shape::kWeightPieces) * 16;
    }
  }

  LSSAR_DEVICE void Run() {
    const int first_chain = rank_, end_chain = num_ranks_ == 1 ? kGemmChains : rank_ + 1;
    stages_left_ = StageOfChain(end_chain) - StageOfChain(first_chain);
    int left_of_weights = stages_left_;
    LSSAR_UNROLL
    for (int i = 0; i < Shape::kStages - 1; ++i) {
      if (left_of_weights-- > 0) CopyWeights(i);
    }
    WaitForPreviousKernel();
    LSSAR_UNROLL
    for (int i = 0; i < Shape::kStages - 1; ++i) {
      if (stages_left_-- > 0) CopyX(i);
      CpAsyncCommitGroup();
    }

    Sums totals;
    Clear(totals);
    int buffer = 0;
    SumChain(first_chain, &buffer, totals);
    LSSAR_NO_UNROLL
    for (int chain = first_chain + 1; chain < end_chain; ++chain) {
      Sums sums;
      Clear(sums);
      SumChain(chain, &buffer, sums);
      ForEach([&](int m, int n, int i) { totals[m][n][i] += sums[m][n][i]; });
    }
    WaitForCopyGroups<0>();
    SyncBlock();  // the stages' memory is free
    Share(totals);
    Store();
  }

 private:
  using Sums = float[Shape::kRowTiles][Shape::kColTiles][4];

  // From one block of 16 rows of x to the next, and from one part to the next.
  LSSAR_DEVICE unsigned XBlockBytes() const {
    return unsigned(args_.weight.padded_cols) * kBlockRows * 2;
  }
  LSSAR_DEVICE size_t PartBytes() const {
    return size_t(unsigned(NumRowBlocks(args_.num_rows))) * XBlockBytes();
  }
  LSSAR_DEVICE static int Least(int a, int b) { return a < b ? a : b; }
  LSSAR_DEVICE int StageOfChain(int chain) const {
    return FirstColOfChain(args_.weight.padded_cols, chain) / kStageCols;
  }
  LSSAR_DEVICE static unsigned char* Buffer(int buffer) {
    return SharedMemory() + buffer * Shape::kStageBytes;
  }
  LSSAR_DEVICE static int WarpRow() { return WarpIdx() / Shape::kColWarps * Shape::kWarpRows; }
  LSSAR_DEVICE static int WarpCol() { return WarpIdx() % Shape::kColWarps * Shape::kWarpCols; }

  // f(m, n, i) for each of the thread's sums.
  template <typename F>
  LSSAR_DEVICE static void ForEach(const F& f) {
    LSSAR_UNROLL
    for (int m = 0; m < Shape::kRowTiles; ++m) {
      LSSAR_UNROLL
      for (int n = 0; n < Shape::kColTiles; ++n) {
        LSSAR_UNROLL
        for (int i = 0; i < 4; ++i) f(m, n, i);
      }
    }
  }

  // Start copies of the next stage. Columns after the last repeat it, rows after the last are
  // whatever lies there; their results are not stored.
  LSSAR_DEVICE void CopyX(int buffer) {
    const unsigned char* of_part = next_x_;
    unsigned char* to = Buffer(buffer) + ThreadIdx() * 16;
    LSSAR_UNROLL
    for (int part = 0; part < E::kRowParts; ++part) {
      const unsigned char* from = of_part;
      LSSAR_UNROLL
      for (int i = 0; i < Shape::kXCopies; ++i) {
        CopyAsync16(to, from, true);
        from += size_t(Shape::kXAtOnce) * XBlockBytes();
        to += Shape::kThreads * 16;
      }
      of_part += PartBytes();
    }
    next_x_ += Shape::kXBlockBytes;
  }
  LSSAR_DEVICE void CopyWeights(int buffer) {
    constexpr int kHalfPieces = Shape::kHalfRowBytes / 16;
    const int piece = ThreadIdx() % Shape::kWeightPieces;
    const int place = piece / kHalfPieces * Shape::kCols + ThreadIdx() / Shape::kWeightPieces;
    unsigned char* const to = Buffer(buffer) + Shape::kWeightsAt + place * Shape::kHalfRowBytes +
                              piece % kHalfPieces * 16;
    LSSAR_UNROLL
    for (int i = 0; i < Shape::kWeightCopies; ++i) {
      CopyAsync16(to + i * Shape::kWeightsAtOnce * Shape::kHalfRowBytes,
                  next_weights_ + weight_offsets_[i], true);
    }
    next_weights_ += Shape::kWeightRowBytes;
    if (E::kHasScales) CopyScales(buffer);
  }
  LSSAR_DEVICE void CopyScales(int buffer) {
    const int group = scales_group_++;
    if (ThreadIdx() >= Shape::kCols) return;
    const int col = Least(first_col_ + ThreadIdx(), args_.weight.num_rows - 1);
    const unsigned groups = unsigned(args_.weight.padded_cols) / kCudaGroupCols;
    CopyAsync4(Buffer(buffer) + Shape::kScalesAt + ThreadIdx() * 4,
               args_.weight.scales + (size_t(unsigned(col)) * groups + size_t(unsigned(group))),
               true);
  }

  LSSAR_DEVICE static void Clear(Sums& sums) {
    ForEach([&](int m, int n, int i) { sums[m][n][i] = 0; });
  }

  LSSAR_DEVICE void SumChain(int chain, int* buffer, Sums& sums) {
    Sums group_sums;
    if constexpr (E::kHasScales) Clear(group_sums);
    const int num_stages = StageOfChain(chain + 1) - StageOfChain(chain);
    LSSAR_NO_UNROLL
    for (int i = 0; i < num_stages; ++i) {
      WaitForCopyGroups<Shape::kStages - 2>();
      SyncBlock();  // the stage is there, and all warps are done with the one before
      const int to_fill = *buffer == 0 ? Shape::kStages - 1 : *buffer - 1;
      if (stages_left_-- > 0) {
        CopyWeights(to_fill);
        CopyX(to_fill);
      }
      CpAsyncCommitGroup();
      if constexpr (E::kHasScales) {
        Multiply(*buffer, group_sums);
        AddGroup(*buffer, group_sums, sums);
      } else {
        Multiply(*buffer, sums);
      }
      *buffer = *buffer == Shape::kStages - 1 ? 0 : *buffer + 1;
    }
  }

  LSSAR_DEVICE static void Multiply(int buffer, Sums& sums) {
    const unsigned char* const x =
        Buffer(buffer) + WarpRow() / kBlockRows * Shape::kXBlockBytes + 16 * LaneIdx();
    const unsigned char* const weights = Buffer(buffer) + Shape::kWeightsAt +
                                         (WarpCol() + LaneIdx() / 4) * Shape::kHalfRowBytes +
                                         LaneIdx() % 4 * 8 * E::kBytes;
    LSSAR_UNROLL
    for (int block = 0; block < kStageBlocks; ++block) {
      unsigned b[Shape::kColTiles][2][2];
      LSSAR_UNROLL
      for (int n = 0; n < Shape::kColTiles; ++n) {
        unsigned pairs[4];
        E::Load8(weights + (block * Shape::kCols + n * 8) * Shape::kHalfRowBytes, pairs);
        LSSAR_UNROLL
        for (int i = 0; i < 4; ++i) b[n][i / 2][i % 2] = pairs[i];
      }
      LSSAR_UNROLL
      for (int part = 0; part < E::kRowParts; ++part) {
        LSSAR_UNROLL
        for (int m = 0; m < Shape::kRowTiles; ++m) {
          const unsigned char* const rows = x + (part * Shape::kXBlocks + m) * Shape::kXBlockBytes +
                                            block * (Shape::kXBlockBytes / kStageBlocks);
          LSSAR_UNROLL
          for (int half = 0; half < 2; ++half) {
            const Bits128 a = *reinterpret_cast<const Bits128*>(rows + half * 16 * kWarpThreads);
            LSSAR_UNROLL
            for (int n = 0; n < Shape::kColTiles; ++n) E::Mma(sums[m][n], a.x, b[n][half]);
          }
        }
      }
    }
  }

  // Adds a group's sums times its scales. A stage is a group.
  LSSAR_DEVICE static void AddGroup(int buffer, Sums& group_sums, Sums& sums) {
    const auto* const scales =
        reinterpret_cast<const float*>(Buffer(buffer) + Shape::kScalesAt) + WarpCol();
    LSSAR_UNROLL
    for (int n = 0; n < Shape::kColTiles; ++n) {
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float scale = scales[n * 8 + LaneIdx() % 4 * 2 + i];
        LSSAR_UNROLL
        for (int m = 0; m < Shape::kRowTiles; ++m) {
          LSSAR_UNROLL
          for (int j = 0; j < 4; j += 2) {
            sums[m][n][j + i] = MulAdd(scale, group_sums[m][n][j + i], sums[m][n][j + i]);
            group_sums[m][n][j + i] = 0;
          }
        }
      }
    }
  }

  LSSAR_DEVICE static float* SharedSum(int row, int col) {
    return reinterpret_cast<float*>(SharedMemory()) + row * Shape::kSumStride + col;
  }

  LSSAR_DEVICE static void Share(const Sums& totals) {
    ForEach([&](int m, int n, int i) {
      *SharedSum(WarpRow() + m * 16 + LaneIdx() / 4 + i / 2 * 8,
                 WarpCol() + n * 8 + LaneIdx() % 4 * 2 + i % 2) = totals[m][n][i];
    });
  }

  // Adjacent threads store adjacent columns. The blocks of a cluster share the rows.
  LSSAR_DEVICE void Store() const {
    if (num_ranks_ == 1) {
      SyncBlock();
      StoreRows(0, Shape::kRows, [](int row, int col) { return *SharedSum(row, col); });
      return;
    }
    SyncCluster();
    constexpr int kRowsOfRank = Shape::kRows / kGemmChains;
    StoreRows(rank_ * kRowsOfRank, kRowsOfRank, [](int row, int col) {
      float sum = *InBlock(SharedSum(row, col), 0);
      LSSAR_UNROLL
      for (int chain = 1; chain < kGemmChains; ++chain) {
        sum += *InBlock(SharedSum(row, col), chain);
      }
      return sum;
    });
    LeaveCluster();
  }

  template <typename F>
  LSSAR_DEVICE void StoreRows(int first, int num_rows, const F& sum_of) const {
    const int count = num_rows * Shape::kCols;
    LSSAR_NO_UNROLL
    for (int from = ThreadIdx(); from < count; from += kBatch * Shape::kThreads) {
      OutputElement elements[kBatch];
      float sums[kBatch] = {};
      LSSAR_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int at = from + i * Shape::kThreads;
        const int row = first + at / Shape::kCols, col = at % Shape::kCols;
        if (!IsStored(row, col)) continue;
        elements[i].Load(args_, args_.x.inverse, first_row_ + row, first_col_ + col);
        sums[i] = sum_of(row, col);
      }
      LSSAR_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const int at = from + i * Shape::kThreads;
        if (IsStored(first + at / Shape::kCols, at % Shape::kCols)) {
          elements[i].Store(args_, sums[i]);
        }
      }
    }
  }
  LSSAR_DEVICE bool IsStored(int row, int col) const {
    return first_row_ + row < args_.num_rows && first_col_ + col < args_.weight.num_rows;
  }

  const CudaLinearArgs& args_;
  const int num_ranks_, rank_;
  const int first_row_, first_col_;
  // What the thread copies of the next stage.
  const unsigned char* next_x_;
  const unsigned char* next_weights_;
  unsigned weight_offsets_[Shape::kWeightCopies];
  int scales_group_;
  int stages_left_ = 0;  // to copy
};

template <typename E, int kSize>
LSSAR_KERNEL((TileShape<E, kSize>::kThreads))
TiledLinear(LSSAR_ARGS(CudaLinearArgs) args) {
  GemmTile<E, kSize>(args).Run();
}

template <typename E, int kSize>
int StartSize(const CudaLinearArgs& args, void* stream) {
  using Shape = TileShape<E, kSize>;
  static_assert(Shape::kRows * Shape::kCols / kGemmChains % (kBatch * Shape::kThreads) == 0);
  const int num_cols = (args.weight.num_rows + Shape::kCols - 1) / Shape::kCols;
  return Launch({.num_blocks_x = num_cols * args.cluster_blocks,
                 .num_blocks_y = (args.num_rows + Shape::kRows - 1) / Shape::kRows,
                 .num_threads = Shape::kThreads,
                 .cluster_blocks = args.cluster_blocks,
                 .shared_bytes = size_t{Shape::kSharedBytes},
                 .overlaps_previous = true},
                stream, &TiledLinear<E, kSize>, args);
}

template <typename E>
int StartTile(const CudaLinearArgs& args, void* stream) {
  return args.tile == CudaGemmTile::k64x64 ? StartSize<E, 64>(args, stream)
                                           : StartSize<E, 128>(args, stream);
}

}  // namespace

int StartTiledLinear(const CudaLinearArgs& args, void* stream) {
  switch (args.weight.dtype) {
    case DType::kF16: return StartTile<F16Element>(args, stream);
    case DType::kBF16: return StartTile<Bf16Element>(args, stream);
    case DType::kI8: return StartTile<I8Element>(args, stream);
    case DType::kF32:
    case DType::kI4:
    case DType::kFx16: break;
  }
  return kInvalidValue;
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

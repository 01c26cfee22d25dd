// Embed, norms and GEMMs of few rows. An output element is the sum of kGemmChains chains of MMAs,
// each over its part of the columns in rising order; the chains are added in order. So the bits of
// an output row depend on that row alone, not on the number of rows. A library computes GEMMs of
// many rows, whose operands and epilogues are made here too.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm_epilogue.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = kGemmChains;
constexpr int kThreads = kWarps * kWarpThreads;

template <typename T>
LSSAR_DEVICE T AllLanes(T value) {
  for (int mask = 1; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
  return value;
}

// Shared memory for reductions over a block.
struct BlockSums {
  double values[kWarps];
};

// A row of x after its norm. The block's threads share the row, always in the same way: a row has
// the same bits in every kernel. Norms are in double because a row's mean may be large beside its
// spread.
class NormedRow {
 public:
  // All threads of the block.
  LSSAR_DEVICE NormedRow(const CudaSplitArgs& args, int row, BlockSums* sums)
      : args_(args), sums_(sums) {
    const int source = args.row_ids == nullptr ? row : args.row_ids[row];
    x_ = args.x + size_t(source) * size_t(args.width);
    if (args.norm.kind == NormKind::kNone) return;
    if (args.norm.kind == NormKind::kLayerNorm) {
      mean_ = SumOver([&](int i) { return double(x_[i]); }) / args.width;
    }
    const double squares = SumOver([&](int i) {
      const double centred = double(x_[i]) - mean_;
      return centred * centred;
    });
    scale_ = 1.0 / sqrt(squares / args.width + double(args.norm.epsilon));
  }

  LSSAR_DEVICE float At(int i) const {
    if (i >= args_.width) return 0;
    if (args_.norm.kind == NormKind::kNone) return x_[i];
    const double weight = args_.norm.weight == nullptr ? 1.0 : double(args_.norm.weight[i]);
    const double bias = args_.norm.bias == nullptr ? 0.0 : double(args_.norm.bias[i]);
    return float((double(x_[i]) - mean_) * scale_ * weight + bias);
  }

  // The largest magnitude. All threads of the block.
  LSSAR_DEVICE float Largest() const {
    float largest = 0;
    for (int i = ThreadIdx(); i < args_.width; i += kThreads) {
      largest = fmaxf(largest, fabsf(At(i)));
    }
    for (int mask = 1; mask < kWarpThreads; mask *= 2) {
      largest = fmaxf(largest, ShuffleXor(largest, mask));
    }
    SyncBlock();
    if (LaneIdx() == 0) sums_->values[WarpIdx()] = double(largest);
    SyncBlock();
    for (int warp = 0; warp < kWarps; ++warp) largest = fmaxf(largest, float(sums_->values[warp]));
    return largest;
  }

 private:
  template <typename F>
  LSSAR_DEVICE double SumOver(const F& term) const {
    double sum = 0;
    for (int i = ThreadIdx(); i < args_.width; i += kThreads) sum += term(i);
    sum = AllLanes(sum);
    SyncBlock();
    if (LaneIdx() == 0) sums_->values[WarpIdx()] = sum;
    SyncBlock();
    sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += sums_->values[warp];
    return sum;
  }

  const CudaSplitArgs& args_;
  BlockSums* const sums_;
  const float* x_ = nullptr;
  double mean_ = 0;
  double scale_ = 1;
};

// Splits a row into parts and stores the inverse of its power of two. at(part, i): where element i
// of a part goes. All threads of the block.
template <typename E, typename F>
LSSAR_DEVICE void SplitRow(const CudaSplitArgs& args, int row, BlockSums* sums, float* inverse,
                           const F& at) {
  const NormedRow normed(args, row, sums);
  const float factor = args.rounds ? 1.0f : PowerOfTwoFor(normed.Largest(), 11);
  const int num_parts = args.rounds ? 1 : E::kRowParts;
  if (ThreadIdx() == 0) *inverse = 1.0f / factor;
  for (int i = ThreadIdx(); i < args.padded_width; i += kThreads) {
    float left = normed.At(i) * factor;
    for (int part = 0; part < num_parts; ++part) {
      const uint16_t bits = E::FromFloat(left);
      *at(part, i) = bits;
      left -= E::ToFloat(bits);
    }
  }
}

LSSAR_DEVICE BlockSums* SharedSums() { return reinterpret_cast<BlockSums*>(SharedMemory()); }

// A block splits a row.
template <typename E>
LSSAR_KERNEL(kThreads)
SplitRows(LSSAR_ARGS(CudaSplitArgs) args) {
  WaitForPreviousKernel();
  const int row = BlockX();
  auto* const parts = static_cast<uint16_t*>(args.to.parts);
  const size_t width = size_t(args.padded_width);
  SplitRow<E>(args, row, SharedSums(), args.to.inverse + row, [&](int part, int i) {
    return parts + (size_t(part) * size_t(args.num_rows) + size_t(row)) * width + size_t(i);
  });
}

LSSAR_KERNEL(kThreads) CopyRows(LSSAR_ARGS(CudaSplitArgs) args) {
  WaitForPreviousKernel();
  const NormedRow normed(args, BlockX(), SharedSums());
  float* const to =
      static_cast<float*>(args.to.parts) + size_t(BlockX()) * size_t(args.padded_width);
  for (int i = ThreadIdx(); i < args.padded_width; i += kThreads) to[i] = normed.At(i);
}

LSSAR_KERNEL(kThreads) NormRows(LSSAR_ARGS(CudaNormArgs) args) {
  WaitForPreviousKernel();
  const NormedRow normed(args.rows, BlockX(), SharedSums());
  const size_t first = size_t(BlockX()) * size_t(args.rows.width);
  for (int i = ThreadIdx(); i < args.rows.width; i += kThreads) {
    const float scaled = args.scale * normed.At(i);
    args.out[first + size_t(i)] =
        args.residual == nullptr ? scaled : args.residual[first + size_t(i)] + scaled;
  }
}

// A block multiplies 16 rows of x by 8 rows of W. Each warp computes one chain, so that many warps
// load even a small matrix.
template <typename E>
class LinearTile {
 public:
  LSSAR_DEVICE LinearTile(const CudaLinearArgs& args, const CudaSplitRows& x)
      : args_(args),
        x_(x),
        first_row_(BlockY() * 16),
        first_col_(BlockX() * 8),
        width_(size_t(args.weight.padded_cols)) {}

  // make_x() makes x available, while the first weights are on their way.
  template <typename F>
  LSSAR_DEVICE void Run(const F& make_x) {
    const int first = FirstColOfChain(args_.weight.padded_cols, WarpIdx());
    const int end = FirstColOfChain(args_.weight.padded_cols, WarpIdx() + 1);
    float sums[4] = {};
    SumColumns(first, end, make_x, sums);
    if (WarpIdx() > 0) Share(sums);
    SyncBlock();
    if (WarpIdx() > 0) return;
    AddOthers(sums);
    Store(sums);
  }

  static constexpr size_t kSharedBytes = size_t{kWarps - 1} * 4 * kWarpThreads * sizeof(float);

 private:
  // Steps of 32 columns whose weights are in flight while one is multiplied. Bytes in flight set
  // the memory bandwidth that a warp reaches.
  static constexpr int kAhead = 8;
  // 8 weights as they are stored. Words, not bytes: the compiler splits a struct of bytes into
  // single registers right after the load, and so waits for every load.
  struct alignas(8 * E::kBytes) Stored8 {
    unsigned words[2 * E::kBytes];
  };

  template <typename F>
  LSSAR_DEVICE void SumColumns(int first, int end, const F& make_x, float (&sums)[4]) const {
    const int t = LaneIdx() % 4;
    const int col = Least(first_col_ + LaneIdx() / 4, args_.weight.num_rows - 1);
    const unsigned char* weights = static_cast<const unsigned char*>(args_.weight.elements) +
                                   (size_t(col) * width_ + 8 * t) * E::kBytes;
    const auto load = [&](int k) {
      return *reinterpret_cast<const Stored8*>(weights + k * E::kBytes);
    };
    float group_sums[4] = {};
    Stored8 ahead[kAhead];
    LSSAR_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (first + 32 * i < end) ahead[i] = load(first + 32 * i);
    }
    make_x();
    for (int from = first; from < end; from += 32 * kAhead) {
      LSSAR_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int k = from + 32 * i;
        if (k >= end) break;
        unsigned pairs[4];
        E::Unpack8(ahead[i].words, pairs);
        if (k + 32 * kAhead < end) ahead[i] = load(k + 32 * kAhead);
        MmaStep(k + 8 * t, pairs, E::kHasScales ? group_sums : sums);
        if (E::kHasScales && k % kCudaGroupCols == kCudaGroupCols - 32) {
          AddGroup(k / kCudaGroupCols, group_sums, sums);
        }
      }
    }
  }

  // 32 columns; `k` is the first of this lane.
  LSSAR_DEVICE void MmaStep(int k, const unsigned (&pairs)[4], float (&sums)[4]) const {
    const unsigned first[2] = {pairs[0], pairs[1]}, second[2] = {pairs[2], pairs[3]};
    LSSAR_UNROLL
    for (int part = 0; part < E::kRowParts; ++part) {
      unsigned a[2][4];
      LoadRows(part, k, a);
      E::Mma(sums, a[0], first);
      E::Mma(sums, a[1], second);
    }
  }

  // Sums of warps 1 and up: [warp - 1][element][lane].
  LSSAR_DEVICE static float* Shared(int warp, int i) {
    return reinterpret_cast<float*>(SharedMemory()) + ((warp - 1) * 4 + i) * kWarpThreads +
           LaneIdx();
  }
  LSSAR_DEVICE void Share(const float (&sums)[4]) const {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) *Shared(WarpIdx(), i) = sums[i];
  }
  LSSAR_DEVICE void AddOthers(float (&sums)[4]) const {
    LSSAR_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) {
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) sums[i] += *Shared(warp, i);
    }
  }

  LSSAR_DEVICE static int Least(int a, int b) { return a < b ? a : b; }
  LSSAR_DEVICE int Row(int i) const { return first_row_ + LaneIdx() / 4 + 8 * i; }

  // The A operands of two steps. Rows after the last repeat it; their results are not stored.
  LSSAR_DEVICE void LoadRows(int part, int k, unsigned (&a)[2][4]) const {
    const uint16_t* parts = static_cast<const uint16_t*>(x_.parts);
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = part * args_.num_rows + Least(Row(i), args_.num_rows - 1);
      const Bits128 bits =
          *reinterpret_cast<const Bits128*>(parts + size_t(row) * width_ + size_t(k));
      LSSAR_UNROLL
      for (int j = 0; j < 4; ++j) a[j / 2][i + j % 2 * 2] = bits.x[j];
    }
  }

  LSSAR_DEVICE void AddGroup(int group, float (&group_sums)[4], float (&sums)[4]) const {
    const size_t groups_of_row = width_ / kCudaGroupCols;
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int col = Least(first_col_ + LaneIdx() % 4 * 2 + i, args_.weight.num_rows - 1);
      const float scale = args_.weight.scales[size_t(col) * groups_of_row + size_t(group)];
      LSSAR_UNROLL
      for (int j = 0; j < 2; ++j) {
        sums[j * 2 + i] = MulAdd(scale, group_sums[j * 2 + i], sums[j * 2 + i]);
        group_sums[j * 2 + i] = 0;
      }
    }
  }

  LSSAR_DEVICE void Store(const float (&sums)[4]) const {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = Row(i / 2), col = first_col_ + LaneIdx() % 4 * 2 + i % 2;
      if (row >= args_.num_rows || col >= args_.weight.num_rows) continue;
      OutputElement element;
      element.Load(args_, x_.inverse, row, col);
      element.Store(args_, sums[i]);
    }
  }

  const CudaLinearArgs& args_;
  const CudaSplitRows x_;
  const int first_row_, first_col_;
  const size_t width_;
};

template <typename E>
LSSAR_KERNEL(kThreads)
Linear(LSSAR_ARGS(CudaLinearArgs) args) {
  LinearTile<E>(args, args.x).Run([] { WaitForPreviousKernel(); });
}

// Few rows: every block normalises and splits them for itself.
template <typename E>
LSSAR_KERNEL(kThreads)
FusedLinear(LSSAR_ARGS(CudaFusedLinearArgs) args) {
  const size_t num_rows = size_t(args.rows.num_rows), width = size_t(args.rows.padded_width);
  auto* const sums = reinterpret_cast<BlockSums*>(SharedMemory() + LinearTile<E>::kSharedBytes);
  float* const inverse = reinterpret_cast<float*>(sums + 1);  // [kMaxFusedRows]
  uint16_t* const parts = reinterpret_cast<uint16_t*>(inverse + kMaxFusedRows);
  LinearTile<E>(args.linear, {.parts = parts, .inverse = inverse}).Run([&] {
    WaitForPreviousKernel();
    for (size_t row = 0; row < num_rows; ++row) {
      SplitRow<E>(args.rows, int(row), sums, inverse + row, [&](int part, int i) {
        return parts + (size_t(part) * num_rows + row) * width + size_t(i);
      });
    }
    SyncBlock();
  });
}

// fp32 weights, which the MMA cannot take. A warp computes kRows x kCols elements, each in the same
// way: a chain a lane, then the lanes.
template <int kRows, int kCols>
LSSAR_KERNEL(kThreads)
LinearF32(LSSAR_ARGS(CudaLinearArgs) args) {
  WaitForPreviousKernel();
  const int first_row = BlockY() * kRows, first_col = (BlockX() * kWarps + WarpIdx()) * kCols;
  if (first_col >= args.weight.num_rows) return;
  // Rows and columns after the last repeat it; their results are not stored.
  const size_t width = size_t(args.weight.padded_cols);
  const float *x[kRows], *w[kCols];
  LSSAR_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const int row = first_row + i < args.num_rows ? first_row + i : args.num_rows - 1;
    x[i] = static_cast<const float*>(args.x.parts) + size_t(row) * width;
  }
  LSSAR_UNROLL
  for (int i = 0; i < kCols; ++i) {
    const int col = first_col + i < args.weight.num_rows ? first_col + i : first_col;
    w[i] = static_cast<const float*>(args.weight.elements) + size_t(col) * width;
  }
  float sums[kRows * kCols] = {};
  for (int k = LaneIdx(); k < args.weight.padded_cols; k += kWarpThreads) {
    LSSAR_UNROLL
    for (int i = 0; i < kRows * kCols; ++i) {
      sums[i] = MulAdd(x[i / kCols][k], w[i % kCols][k], sums[i]);
    }
  }
  float own = 0;  // of the element that this lane stores
  LSSAR_UNROLL
  for (int i = 0; i < kRows * kCols; ++i) {
    const float sum = AllLanes(sums[i]);
    own = LaneIdx() == i ? sum : own;
  }
  const int row = first_row + LaneIdx() / kCols, col = first_col + LaneIdx() % kCols;
  if (LaneIdx() >= kRows * kCols || row >= args.num_rows || col >= args.weight.num_rows) return;
  OutputElement element;
  element.Load(args, nullptr, row, col);
  element.Store(args, own);
}

// A thread computes an element.
LSSAR_KERNEL(kThreads) Epilogue(LSSAR_ARGS(CudaEpilogueArgs) args) {
  WaitForPreviousKernel();
  const int row = BlockY(), col = BlockX() * kThreads + ThreadIdx();
  if (col >= args.linear.weight.num_rows) return;
  OutputElement element;
  element.Load(args.linear, nullptr, row, col);
  element.Store(args.linear,
                args.sums[size_t(row) * size_t(args.linear.weight.num_rows) + size_t(col)]);
}

// A block widens a row; a thread 16 elements at a time.
LSSAR_KERNEL(kThreads) Widen(LSSAR_ARGS(CudaWidenArgs) args) {
  WaitForPreviousKernel();
  const int width = args.weight.padded_cols;
  const size_t first = size_t(BlockX()) * size_t(width);
  for (int col = ThreadIdx() * 16; col < width; col += kThreads * 16) {
    const size_t at = first + size_t(col);
    const auto* from = static_cast<const unsigned char*>(args.weight.elements) + at;
    const Bits128 bytes = *reinterpret_cast<const Bits128*>(from);
    const float scale = args.weight.scales[at / kCudaGroupCols];
    LSSAR_UNROLL
    for (int half = 0; half < 2; ++half) {
      Bits128 wide;
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int element = half * 8 + i * 2;
        wide.x[i] = F16Pair(scale * I8Element::Element(bytes, element),
                            scale * I8Element::Element(bytes, element + 1));
      }
      *reinterpret_cast<Bits128*>(args.to + at + half * 8) = wide;
    }
  }
}

template <int kRows, int kCols>
int StartLinearF32(const CudaLinearArgs& args, void* stream) {
  constexpr int kColsOfBlock = kWarps * kCols;
  return Launch({.num_blocks_x = (args.weight.num_rows + kColsOfBlock - 1) / kColsOfBlock,
                 .num_blocks_y = (args.num_rows + kRows - 1) / kRows,
                 .num_threads = kThreads,
                 .overlaps_previous = true},
                stream, &LinearF32<kRows, kCols>, args);
}

LSSAR_KERNEL(kThreads) EmbedRows(LSSAR_ARGS(CudaEmbedArgs) args) {
  WaitForPreviousKernel();
  const size_t width = size_t(args.table.padded_cols);
  const int id = args.ids[BlockX()];
  float* out = args.out + size_t(BlockX()) * size_t(args.table.num_cols);
  for (int col = ThreadIdx(); col < args.table.num_cols; col += kThreads) {
    float x = 0;
    if (id < 0) {
      out[col] = x;
      continue;
    }
    const size_t at = size_t(id) * width + size_t(col);
    switch (args.table.dtype) {
      case DType::kF32: x = static_cast<const float*>(args.table.elements)[at]; break;
      case DType::kF16:
        x = FloatFromF16(static_cast<const uint16_t*>(args.table.elements)[at]);
        break;
      case DType::kBF16:
        x = FloatFromBf16(static_cast<const uint16_t*>(args.table.elements)[at]);
        break;
      case DType::kI8:
        x = float(static_cast<const int8_t*>(args.table.elements)[at]) *
            args.table.scales[at / kCudaGroupCols];
        break;
      default: break;  // PackOnDevice refuses it
    }
    out[col] = x;
  }
}

template <typename E>
int StartLinearOf(const CudaLinearArgs& args, void* stream) {
  return Launch({.num_blocks_x = (args.weight.num_rows + 7) / 8,
                 .num_blocks_y = (args.num_rows + 15) / 16,
                 .num_threads = kThreads,
                 .shared_bytes = LinearTile<E>::kSharedBytes,
                 .overlaps_previous = true},
                stream, &Linear<E>, args);
}

template <typename E>
int StartFusedLinearOf(const CudaFusedLinearArgs& args, void* stream) {
  const size_t rows_bytes =
      size_t(args.rows.num_rows) * size_t(args.rows.padded_width) * E::kRowParts * 2;
  const LaunchShape shape{.num_blocks_x = (args.linear.weight.num_rows + 7) / 8,
                          .num_threads = kThreads,
                          .shared_bytes = LinearTile<E>::kSharedBytes + sizeof(BlockSums) +
                                          kMaxFusedRows * sizeof(float) + rows_bytes,
                          .overlaps_previous = true};
  return Launch(shape, stream, &FusedLinear<E>, args);
}

LaunchShape BlockPerRow(int num_rows) {
  return {.num_blocks_x = num_rows,
          .num_threads = kThreads,
          .shared_bytes = sizeof(BlockSums),
          .overlaps_previous = true};
}

}  // namespace

int StartSplitRows(const CudaSplitArgs& args, void* stream) {
  const LaunchShape shape = BlockPerRow(args.num_rows);
  switch (args.dtype) {
    case DType::kF32: return Launch(shape, stream, &CopyRows, args);
    case DType::kBF16: return Launch(shape, stream, &SplitRows<Bf16Element>, args);
    default: return Launch(shape, stream, &SplitRows<F16Element>, args);
  }
}

int StartLinear(const CudaLinearArgs& args, void* stream) {
  switch (args.weight.dtype) {
    case DType::kF16: return StartLinearOf<F16Element>(args, stream);
    case DType::kBF16: return StartLinearOf<Bf16Element>(args, stream);
    case DType::kI8: return StartLinearOf<I8Element>(args, stream);
    default: break;
  }
  return args.num_rows <= 2 ? StartLinearF32<1, 1>(args, stream)
                            : StartLinearF32<8, 2>(args, stream);
}

int StartFusedLinear(const CudaFusedLinearArgs& args, void* stream) {
  switch (args.linear.weight.dtype) {
    case DType::kF16: return StartFusedLinearOf<F16Element>(args, stream);
    case DType::kBF16: return StartFusedLinearOf<Bf16Element>(args, stream);
    case DType::kI8: return StartFusedLinearOf<I8Element>(args, stream);
    default: break;
  }
  return kInvalidValue;
}

int StartEpilogue(const CudaEpilogueArgs& args, void* stream) {
  return Launch({.num_blocks_x = (args.linear.weight.num_rows + kThreads - 1) / kThreads,
                 .num_blocks_y = args.linear.num_rows,
                 .num_threads = kThreads,
                 .overlaps_previous = true},
                stream, &Epilogue, args);
}

int StartWiden(const CudaWidenArgs& args, void* stream) {
  return Launch(
      {.num_blocks_x = args.weight.num_rows, .num_threads = kThreads, .overlaps_previous = true},
      stream, &Widen, args);
}

int StartNorm(const CudaNormArgs& args, void* stream) {
  return Launch(BlockPerRow(args.rows.num_rows), stream, &NormRows, args);
}

int StartEmbed(const CudaEmbedArgs& args, void* stream) {
  return Launch({.num_blocks_x = args.num_ids, .num_threads = kThreads, .overlaps_previous = true},
                stream, &EmbedRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Embed, LayerNorm and GEMM. An output element is the sum of kWarps chains of MMAs, each over its
// part of the columns in rising order; the chains are added in order. So the bits of an output row
// depend on that row alone, not on the number of rows.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;

template <typename T>
LSSAR_DEVICE T AllLanes(T value) {
  for (int mask = 1; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
  return value;
}

// A row of x, after LayerNorm if there is one. LayerNorm is in double because a row's mean may be
// large beside its spread.
struct NormedRow {
  const CudaSplitArgs& args;
  const float* x;
  double mean = 0;
  double scale = 1;

  LSSAR_DEVICE NormedRow(const CudaSplitArgs& a, int row) : args(a) {
    const int source = a.row_ids == nullptr ? row : a.row_ids[row];
    x = a.x + size_t(source) * size_t(a.width);
    if (a.norm_weight == nullptr) return;
    double sum = 0;
    for (int i = LaneIdx(); i < a.width; i += kWarpThreads) sum += double(x[i]);
    mean = AllLanes(sum) / a.width;
    double squares = 0;
    for (int i = LaneIdx(); i < a.width; i += kWarpThreads) {
      const double centred = double(x[i]) - mean;
      squares += centred * centred;
    }
    scale = 1.0 / sqrt(AllLanes(squares) / a.width + double(a.epsilon));
  }

  LSSAR_DEVICE float At(int i) const {
    if (i >= args.width) return 0;
    if (args.norm_weight == nullptr) return x[i];
    return float((double(x[i]) - mean) * scale * double(args.norm_weight[i]) +
                 double(args.norm_bias[i]));
  }
};

// A warp splits a row.
template <typename E>
LSSAR_KERNEL(kThreads)
SplitRows(LSSAR_ARGS(CudaSplitArgs) args) {
  const int row = BlockX() * kWarps + WarpIdx();
  if (row >= args.num_rows) return;
  const NormedRow normed(args, row);
  float largest = 0;
  for (int i = LaneIdx(); i < args.width; i += kWarpThreads) {
    largest = fmaxf(largest, fabsf(normed.At(i)));
  }
  for (int mask = 1; mask < kWarpThreads; mask *= 2) {
    largest = fmaxf(largest, ShuffleXor(largest, mask));
  }
  const float factor = args.rounds ? 1.0f : PowerOfTwoFor(largest, 11);
  const int num_parts = args.rounds ? 1 : E::kRowParts;
  if (LaneIdx() == 0) args.to.inverse[row] = 1.0f / factor;
  const size_t width = size_t(args.padded_width);
  uint16_t* to = static_cast<uint16_t*>(args.to.parts) + size_t(row) * width;
  for (int i = LaneIdx(); i < args.padded_width; i += kWarpThreads) {
    float left = normed.At(i) * factor;
    for (int part = 0; part < num_parts; ++part) {
      const uint16_t bits = E::FromFloat(left);
      to[size_t(part) * size_t(args.num_rows) * width + size_t(i)] = bits;
      left -= E::ToFloat(bits);
    }
  }
}

LSSAR_KERNEL(kThreads) CopyRows(LSSAR_ARGS(CudaSplitArgs) args) {
  const int row = BlockX() * kWarps + WarpIdx();
  if (row >= args.num_rows) return;
  const NormedRow normed(args, row);
  float* to = static_cast<float*>(args.to.parts) + size_t(row) * size_t(args.padded_width);
  for (int i = LaneIdx(); i < args.padded_width; i += kWarpThreads) to[i] = normed.At(i);
}

LSSAR_DEVICE float Gelu(float x) {
  return 0.5f * x * (1 + tanhf(0.7978845608f * MulAdd(0.044715f * x * x, x, x)));
}

LSSAR_DEVICE void StoreElement(const CudaLinearArgs& args, int row, int col, float sum) {
  const size_t at = size_t(row) * size_t(args.weight.num_rows) + size_t(col);
  if (args.bias != nullptr) sum += args.bias[col];
  if (args.gelu) sum = Gelu(sum);
  if (args.residual != nullptr) sum += args.residual[at];
  args.out[at] = sum;
}

// A block multiplies 16 * kRowTiles rows of x by 8 rows of W. Its warps share K, in whole groups of
// columns, so that many warps load even a small matrix.
template <typename E, int kRowTiles>
class LinearTile {
 public:
  LSSAR_DEVICE explicit LinearTile(const CudaLinearArgs& args)
      : args_(args),
        first_row_(BlockY() * 16 * kRowTiles),
        first_col_(BlockX() * 8),
        width_(size_t(args.weight.padded_cols)) {}

  LSSAR_DEVICE void Run() {
    const int num_groups = args_.weight.padded_cols / kCudaGroupCols;
    const int first = num_groups * WarpIdx() / kWarps * kCudaGroupCols;
    const int end = num_groups * (WarpIdx() + 1) / kWarps * kCudaGroupCols;
    float sums[kRowTiles][4] = {};
    SumColumns(first, end, sums);
    if (WarpIdx() > 0) Share(sums);
    SyncBlock();
    if (WarpIdx() > 0) return;
    AddOthers(sums);
    Store(sums);
  }

  static constexpr size_t kSharedBytes =
      size_t{kWarps - 1} * kRowTiles * 4 * kWarpThreads * sizeof(float);

 private:
  // Steps of 32 columns whose weights are in flight while one is multiplied. Bytes in flight set
  // the memory bandwidth that a warp reaches.
  static constexpr int kAhead = kRowTiles == 1 ? 8 : 2;
  // 8 weights as they are stored. Words, not bytes: the compiler splits a struct of bytes into
  // single registers right after the load, and so waits for every load.
  struct alignas(8 * E::kBytes) Stored8 {
    unsigned words[2 * E::kBytes];
  };

  LSSAR_DEVICE void SumColumns(int first, int end, float (&sums)[kRowTiles][4]) const {
    const int t = LaneIdx() % 4;
    const int col = Least(first_col_ + LaneIdx() / 4, args_.weight.num_rows - 1);
    const unsigned char* weights = static_cast<const unsigned char*>(args_.weight.elements) +
                                   (size_t(col) * width_ + 8 * t) * E::kBytes;
    const auto load = [&](int k) {
      return *reinterpret_cast<const Stored8*>(weights + k * E::kBytes);
    };
    float group_sums[kRowTiles][4] = {};
    Stored8 ahead[kAhead];
    LSSAR_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (first + 32 * i < end) ahead[i] = load(first + 32 * i);
    }
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
  LSSAR_DEVICE void MmaStep(int k, const unsigned (&pairs)[4], float (&sums)[kRowTiles][4]) const {
    const unsigned first[2] = {pairs[0], pairs[1]}, second[2] = {pairs[2], pairs[3]};
    LSSAR_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      LSSAR_UNROLL
      for (int part = 0; part < E::kRowParts; ++part) {
        unsigned a[2][4];
        LoadRows(tile, part, k, a);
        E::Mma(sums[tile], a[0], first);
        E::Mma(sums[tile], a[1], second);
      }
    }
  }

  // Sums of warps 1 and up: [warp - 1][tile][element][lane].
  LSSAR_DEVICE static float* Shared(int warp, int tile, int i) {
    return reinterpret_cast<float*>(SharedMemory()) +
           (((warp - 1) * kRowTiles + tile) * 4 + i) * kWarpThreads + LaneIdx();
  }
  LSSAR_DEVICE void Share(const float (&sums)[kRowTiles][4]) const {
    LSSAR_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) *Shared(WarpIdx(), tile, i) = sums[tile][i];
    }
  }
  LSSAR_DEVICE void AddOthers(float (&sums)[kRowTiles][4]) const {
    LSSAR_UNROLL
    for (int warp = 1; warp < kWarps; ++warp) {
      LSSAR_UNROLL
      for (int tile = 0; tile < kRowTiles; ++tile) {
        LSSAR_UNROLL
        for (int i = 0; i < 4; ++i) sums[tile][i] += *Shared(warp, tile, i);
      }
    }
  }

  LSSAR_DEVICE static int Least(int a, int b) { return a < b ? a : b; }
  LSSAR_DEVICE int Row(int tile, int i) const {
    return first_row_ + tile * 16 + LaneIdx() / 4 + 8 * i;
  }

  // The A operands of two steps. Rows after the last repeat it; their results are not stored.
  LSSAR_DEVICE void LoadRows(int tile, int part, int k, unsigned (&a)[2][4]) const {
    const uint16_t* parts = static_cast<const uint16_t*>(args_.x.parts);
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int row = part * args_.num_rows + Least(Row(tile, i), args_.num_rows - 1);
      const Bits128 bits =
          *reinterpret_cast<const Bits128*>(parts + size_t(row) * width_ + size_t(k));
      LSSAR_UNROLL
      for (int j = 0; j < 4; ++j) a[j / 2][i + j % 2 * 2] = bits.x[j];
    }
  }

  LSSAR_DEVICE void AddGroup(int group, float (&group_sums)[kRowTiles][4],
                             float (&sums)[kRowTiles][4]) const {
    const size_t groups_of_row = width_ / kCudaGroupCols;
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int col = Least(first_col_ + LaneIdx() % 4 * 2 + i, args_.weight.num_rows - 1);
      const float scale = args_.weight.scales[size_t(col) * groups_of_row + size_t(group)];
      LSSAR_UNROLL
      for (int j = 0; j < 2 * kRowTiles; ++j) {
        float& sum = group_sums[j / 2][j % 2 * 2 + i];
        sums[j / 2][j % 2 * 2 + i] = MulAdd(scale, sum, sums[j / 2][j % 2 * 2 + i]);
        sum = 0;
      }
    }
  }

  LSSAR_DEVICE void Store(const float (&sums)[kRowTiles][4]) const {
    LSSAR_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int row = Row(tile, i / 2), col = first_col_ + LaneIdx() % 4 * 2 + i % 2;
        if (row >= args_.num_rows || col >= args_.weight.num_rows) continue;
        StoreElement(args_, row, col, sums[tile][i] * args_.x.inverse[row]);
      }
    }
  }

  const CudaLinearArgs& args_;
  const int first_row_, first_col_;
  const size_t width_;
};

template <typename E, int kRowTiles>
LSSAR_KERNEL(kThreads)
Linear(LSSAR_ARGS(CudaLinearArgs) args) {
  LinearTile<E, kRowTiles>(args).Run();
}

// fp32 weights, which the MMA cannot take: a warp computes an element.
LSSAR_KERNEL(kThreads) LinearF32(LSSAR_ARGS(CudaLinearArgs) args) {
  const int row = BlockY(), col = BlockX() * kWarps + WarpIdx();
  if (col >= args.weight.num_rows) return;
  const size_t width = size_t(args.weight.padded_cols);
  const float* x = static_cast<const float*>(args.x.parts) + size_t(row) * width;
  const float* w = static_cast<const float*>(args.weight.elements) + size_t(col) * width;
  float sum = 0;
  for (int k = LaneIdx(); k < args.weight.padded_cols; k += kWarpThreads) {
    sum = MulAdd(x[k], w[k], sum);
  }
  sum = AllLanes(sum);
  if (LaneIdx() == 0) StoreElement(args, row, col, sum);
}

LSSAR_KERNEL(kThreads) EmbedRows(LSSAR_ARGS(CudaEmbedArgs) args) {
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
    }
    out[col] = x;
  }
}

template <typename E>
int StartLinearOf(const CudaLinearArgs& args, void* stream) {
  LaunchShape shape{.num_blocks_x = (args.weight.num_rows + 7) / 8,
                    .num_threads = kThreads,
                    .shared_bytes = LinearTile<E, 1>::kSharedBytes};
  if (args.num_rows <= 16) return Launch(shape, stream, &Linear<E, 1>, args);
  shape.num_blocks_y = (args.num_rows + 63) / 64;
  shape.shared_bytes = LinearTile<E, 4>::kSharedBytes;
  return Launch(shape, stream, &Linear<E, 4>, args);
}

}  // namespace

int StartSplitRows(const CudaSplitArgs& args, void* stream) {
  const LaunchShape shape{.num_blocks_x = (args.num_rows + kWarps - 1) / kWarps,
                          .num_threads = kThreads};
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
    case DType::kF32: break;
  }
  const LaunchShape shape{.num_blocks_x = (args.weight.num_rows + kWarps - 1) / kWarps,
                          .num_blocks_y = args.num_rows,
                          .num_threads = kThreads};
  return Launch(shape, stream, &LinearF32, args);
}

int StartEmbed(const CudaEmbedArgs& args, void* stream) {
  return Launch({.num_blocks_x = args.num_ids, .num_threads = kThreads}, stream, &EmbedRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Embed, norms and GEMMs of few rows. An output element is the sum of NumGemmChains chains of MMAs,
// each over its part of the columns in rising order; the chains are added in order. So the bits of
// an output row depend on that row and the matrix alone, not on the number of rows. A library
// computes GEMMs of many rows, whose operands and epilogues are made here too.
//
// With few rows a GEMM takes as long as its longest chain of dependent instructions. So a warp has
// its whole chain of weights in flight before the kernel before it ends, and normalises only the
// columns that it multiplies.
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gemm_epilogue.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpThreads;
constexpr int kMaxChainThreads = kMaxGemmChains * kWarpThreads;

LSSAR_DEVICE float LargestOfLanes(float value) {
  LSSAR_UNROLL
  for (int mask = 1; mask < kWarpThreads; mask *= 2) value = fmaxf(value, ShuffleXor(value, mask));
  return value;
}

// The columns of a row that the warp normalises and multiplies: those of its chain.
struct ChainCols {
  int first, end;

  LSSAR_DEVICE explicit ChainCols(int padded_width)
      : first(FirstColOfChain(padded_width, WarpIdx())),
        end(FirstColOfChain(padded_width, WarpIdx() + 1)) {}

  // f(i) for the columns [i, i + 4) of this lane.
  template <typename F>
  LSSAR_DEVICE void ForEach4(const F& f) const {
    LSSAR_NO_UNROLL
    for (int i = FirstOfLane(); i < end; i += 4 * kWarpThreads) f(i);
  }
  LSSAR_DEVICE int FirstOfLane() const { return first + 4 * LaneIdx(); }
};

// Sums over a row, of x - shift. The shift is an element of the row, so the variance is at least
// (mean - shift)^2 / width, and loses no more than log2(width) of double's bits.
struct alignas(16) RowSums {
  double sum = 0, squares = 0;
};

// A norm's weights and what it makes of elements. The first weights of a lane are loaded at once.
class Norm {
 public:
  // Reads nothing that a kernel writes.
  LSSAR_DEVICE Norm(const CudaSplitArgs& args, const ChainCols& cols)
      : args_(args), cols_(cols), has_norm_(args.norm.kind != NormKind::kNone) {
    if (!has_norm_) return;
    inverse_width_ = 1.0 / args.width;
    first_weight_ = Weight(cols.FirstOfLane());
    first_bias_ = Bias(cols.FirstOfLane());
  }

  LSSAR_DEVICE bool Exists() const { return has_norm_; }
  LSSAR_DEVICE bool HasMean() const { return args_.norm.kind == NormKind::kLayerNorm; }

  // A bound of the magnitudes of the warp's columns after the norm, in every lane: an element is at
  // most sqrt(width) times the root of the mean square. It is known before the row is.
  LSSAR_DEVICE float Bound() const {
    const float most = sqrtf(float(args_.width));
    float bound = 0;
    cols_.ForEach4([&](int i) {
      const Floats4 weight = WeightAt(i), bias = BiasAt(i);
      LSSAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        bound = fmaxf(bound, most * fabsf(weight.x[j]) + fabsf(bias.x[j]));
      }
    });
    return LargestOfLanes(bound);
  }

  // Stores the warp's sums in `to`. at(i): elements [i, i + 4) of the row
  template <typename F>
  LSSAR_DEVICE void AddColumns(double shift, const F& at, RowSums* to) const {
    RowSums sums;
    cols_.ForEach4([&](int i) {
      const Floats4 values = at(i);
      LSSAR_UNROLL
      for (int j = 0; j < 4; ++j) {
        const double x = i + j < args_.width ? double(values.x[j]) - shift : 0.0;
        sums.sum += x;
        sums.squares = MulAdd(x, x, sums.squares);
      }
    });
    // Half of the lanes add up the sums, the others the squares.
    const int half = LaneIdx() / 16;
    const double own = half == 0 ? sums.sum : sums.squares;
    double total = own + ShuffleXor(half == 0 ? sums.squares : sums.sum, 16);
    LSSAR_UNROLL
    for (int mask = 1; mask < 16; mask *= 2) total += ShuffleXor(total, mask);
    if (LaneIdx() % 16 == 0) (half == 0 ? to->sum : to->squares) = total;
  }

  // sums: of the row's chains, in order.
  LSSAR_DEVICE void SetRow(double shift, const RowSums* sums) {
    const int num_chains = NumGemmChains(args_.padded_width);
    RowSums total;
    LSSAR_UNROLL
    for (int chain = 0; chain < kMaxGemmChains; ++chain) {
      if (chain >= num_chains) continue;
      total.sum += sums[chain].sum;
      total.squares += sums[chain].squares;
    }
    const double mean = HasMean() ? total.sum * inverse_width_ : 0.0;
    scale_ = InverseRoot(total.squares * inverse_width_ - mean * mean + double(args_.norm.epsilon));
    mean_high_ = float(shift + mean);
    mean_low_ = float(shift + mean - double(mean_high_));
  }

  // Elements [i, i + 4) after the norm. The mean is subtracted in two parts: it may be large beside
  // the row's spread, and the first difference is exact where it is small.
  LSSAR_DEVICE Floats4 Apply(Floats4 values, int i) const {
    if (!has_norm_) return values;
    const Floats4 weight = WeightAt(i), bias = BiasAt(i);
    LSSAR_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float centred = (values.x[j] - mean_high_) - mean_low_;
      values.x[j] = MulAdd(centred * scale_, weight.x[j], bias.x[j]);
    }
    return values;
  }

 private:
  LSSAR_DEVICE Floats4 WeightAt(int i) const {
    return i == cols_.FirstOfLane() ? first_weight_ : Weight(i);
  }
  LSSAR_DEVICE Floats4 BiasAt(int i) const {
    return i == cols_.FirstOfLane() ? first_bias_ : Bias(i);
  }
  // Zeros after the row, so that padding becomes zeros.
  LSSAR_DEVICE Floats4 Weight(int i) const {
    if (args_.norm.weight != nullptr) return Load4(args_.norm.weight, i, args_.width);
    Floats4 ones;
    LSSAR_UNROLL
    for (int j = 0; j < 4; ++j) ones.x[j] = i + j < args_.width ? 1.0f : 0.0f;
    return ones;
  }
  LSSAR_DEVICE Floats4 Bias(int i) const {
    if (args_.norm.bias == nullptr) return {};
    return Load4(args_.norm.bias, i, args_.width);
  }

  const CudaSplitArgs& args_;
  const ChainCols& cols_;
  const bool has_norm_;
  Floats4 first_weight_ = {}, first_bias_ = {};
  double inverse_width_ = 0;
  float mean_high_ = 0, mean_low_ = 0, scale_ = 1;
};

LSSAR_DEVICE const float* RowOf(const CudaSplitArgs& args, int row) {
  const int source = args.row_ids == nullptr ? row : args.row_ids[row];
  return args.x + size_t(source) * size_t(args.width);
}

LSSAR_DEVICE RowSums* SharedSums() { return reinterpret_cast<RowSums*>(SharedMemory()); }

// The norm of the block's row: BlockX(). All threads of the block.
LSSAR_DEVICE const float* StartRow(const CudaSplitArgs& args, Norm& norm) {
  const float* const row = RowOf(args, BlockX());
  if (!norm.Exists()) return row;
  const double shift = norm.HasMean() ? double(row[0]) : 0.0;
  norm.AddColumns(
      shift, [&](int i) { return Load4(row, i, args.width); }, SharedSums() + WarpIdx());
  SyncBlock();
  norm.SetRow(shift, SharedSums());
  return row;
}

// The factor of the warp's columns without a norm: a power of two. at(i): elements [i, i + 4)
template <typename F>
LSSAR_DEVICE float FactorFor(const ChainCols& cols, const F& at) {
  float largest = 0;
  cols.ForEach4([&](int i) {
    const Floats4 values = at(i);
    LSSAR_UNROLL
    for (int j = 0; j < 4; ++j) largest = fmaxf(largest, fabsf(values.x[j]));
  });
  return PowerOfTwoFor(LargestOfLanes(largest), 11);
}
// The same with a norm.
LSSAR_DEVICE float FactorFor(const Norm& norm) { return PowerOfTwoFor(norm.Bound(), 14); }

// 1 / factor, of a power of two.
LSSAR_DEVICE float InverseOf(float factor) {
  return FloatOfBits((254u << 23) - BitsOfFloat(factor));
}

// Both parts of 4 elements as CudaSplitRows has them.
template <typename E>
LSSAR_DEVICE Bits128 Split4(const Floats4& values, float factor) {
  Bits128 parts;
  LSSAR_UNROLL
  for (int pair = 0; pair < 2; ++pair) {
    float low = values.x[2 * pair] * factor, high = values.x[2 * pair + 1] * factor;
    LSSAR_UNROLL
    for (int part = 0; part < 2; ++part) {
      const uint16_t low_bits = E::FromFloat(low), high_bits = E::FromFloat(high);
      parts.x[2 * pair + part] = Pair(low_bits, high_bits);
      low -= E::ToFloat(low_bits);
      high -= E::ToFloat(high_bits);
    }
  }
  return parts;
}

// A block splits a row.
template <typename E>
LSSAR_KERNEL(kMaxChainThreads)
SplitRows(LSSAR_ARGS(CudaSplitArgs) args) {
  const ChainCols cols(args.padded_width);
  Norm norm(args, cols);
  WaitForPreviousKernel();
  const float* const row = StartRow(args, norm);
  const auto normed = [&](int i) { return norm.Apply(Load4(row, i, args.width), i); };
  const size_t first = size_t(BlockX()) * size_t(args.padded_width);
  if (args.rounds) {
    auto* const to = static_cast<uint16_t*>(args.to.parts) + first;
    cols.ForEach4([&](int i) {
      const Floats4 values = normed(i);
      Bits64 rounded;
      LSSAR_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        rounded.x[pair] =
            Pair(E::FromFloat(values.x[2 * pair]), E::FromFloat(values.x[2 * pair + 1]));
      }
      *reinterpret_cast<Bits64*>(to + i) = rounded;
    });
    return;
  }
  const float factor = norm.Exists() ? FactorFor(norm) : FactorFor(cols, normed);
  auto* const to = static_cast<Bits128*>(args.to.parts) + first / 4;
  cols.ForEach4([&](int i) { to[i / 4] = Split4<E>(normed(i), factor); });
  if (LaneIdx() == 0) {
    args.to.inverse[BlockX() * NumGemmChains(args.padded_width) + WarpIdx()] = InverseOf(factor);
  }
}

LSSAR_KERNEL(kMaxChainThreads) CopyRows(LSSAR_ARGS(CudaSplitArgs) args) {
  const ChainCols cols(args.padded_width);
  Norm norm(args, cols);
  WaitForPreviousKernel();
  const float* const row = StartRow(args, norm);
  float* const to =
      static_cast<float*>(args.to.parts) + size_t(BlockX()) * size_t(args.padded_width);
  cols.ForEach4([&](int i) {
    *reinterpret_cast<Floats4*>(to + i) = norm.Apply(Load4(row, i, args.width), i);
  });
}

LSSAR_KERNEL(kMaxChainThreads) NormRows(LSSAR_ARGS(CudaNormArgs) args) {
  const int width = args.rows.width;
  const ChainCols cols(args.rows.padded_width);
  Norm norm(args.rows, cols);
  WaitForPreviousKernel();
  const float* const row = StartRow(args.rows, norm);
  const size_t first = size_t(BlockX()) * size_t(width);
  cols.ForEach4([&](int i) {
    const Floats4 values = norm.Apply(Load4(row, i, width), i);
    LSSAR_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (i + j >= width) continue;
      const size_t at = first + size_t(i + j);
      const float scaled = args.scale * values.x[j];
      args.out[at] = args.residual == nullptr ? scaled : args.residual[at] + scaled;
    }
  });
}

// A block multiplies kRowTiles times 8 rows of x by kColTiles times 8 rows of W, then by as many
// more if W has many. Both parts of a row of x are rows of one MMA: r and r + 8. Each warp computes
// one chain of all tiles, then the first warps store a tile each.
template <typename E, int kRowTiles, int kColTiles>
class LinearTiles {
 public:
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kCols = 8 * kColTiles;
  static constexpr int kTiles = kRowTiles * kColTiles;

  // Requires  at least kTiles warps
  LSSAR_DEVICE LinearTiles(const CudaLinearArgs& args, const CudaSplitRows& x,
                           const ChainCols& cols)
      : args_(args),
        x_(x),
        cols_(cols),
        num_chains_(NumGemmChains(args.weight.padded_cols)),
        first_row_(BlockY() * kRows) {}

  // prepare() and make_x() make x available, before and after the end of the kernel before. The
  // first weights are on their way meanwhile.
  template <typename F, typename G>
  LSSAR_DEVICE void Run(const F& prepare, const G& make_x) {
    int first_col = BlockX() * kCols;
    Place here = PlaceOf(first_col);
    Ahead ahead;
    LSSAR_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (cols_.first + 32 * i < cols_.end) Load(here, i, cols_.first + 32 * i, ahead);
    }
    OutputElement elements[2];
    ForEachStored(first_col, [&](int i, int, int col) { elements[i].LoadConstants(args_, col); });
    prepare();
    WaitForPreviousKernel();
    ForEachStored(first_col, [&](int i, int row, int col) { elements[i].Load(args_, row, col); });
    make_x();
    float inverse[kRowTiles];
    const Bits128* x[kRowTiles];
    LSSAR_UNROLL
    for (int tile = 0; tile < kRowTiles; ++tile) {
      const int row = Least(first_row_ + tile * 8 + LaneIdx() / 4, args_.num_rows - 1);
      inverse[tile] = x_.inverse[row * num_chains_ + WarpIdx()];
      x[tile] = static_cast<const Bits128*>(x_.parts) +
                size_t(row) * size_t(args_.weight.padded_cols / 4) + LaneIdx() % 4 * 2;
    }
    const int step = NumBlocks(args_.weight.num_rows) * kCols;
    LSSAR_NO_UNROLL
    for (int half = 0; first_col < args_.weight.num_rows; half ^= 1) {
      const Place next = PlaceOf(first_col + step);
      float totals[kTiles][2] = {};
      SumColumns(x, here, next, ahead, totals);
      float* const shared = Shared(half);
      LSSAR_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        LSSAR_UNROLL
        for (int i = 0; i < 2; ++i) totals[tile][i] *= inverse[tile / kColTiles];
        *SharedTotals(shared, WarpIdx(), tile) = {totals[tile][0], totals[tile][1]};
      }
      SyncBlock();
      if (WarpIdx() < kTiles) {
        const Floats2 sums = AddChains(shared);
        ForEachStored(first_col, [&](int i, int, int) { elements[i].Store(args_, sums.x[i]); });
      }
      first_col += step;
      if (first_col >= args_.weight.num_rows) break;
      here = next;
      ForEachStored(first_col, [&](int i, int row, int col) {
        elements[i].LoadConstants(args_, col);
        elements[i].Load(args_, row, col);
      });
    }
  }

  // Blocks for `num_cols` output columns: two for each multiprocessor of an H100, at most. A block
  // that computes more tiles has the next ones' weights in flight.
  static constexpr int NumBlocks(int num_cols) {
    const int num_blocks = (num_cols + kCols - 1) / kCols;
    return num_blocks < kMostBlocks ? num_blocks : kMostBlocks;
  }
  static constexpr size_t SharedBytes(int num_chains) {
    return size_t(2 * num_chains * kTiles) * kWarpThreads * sizeof(Floats2);
  }

 private:
  static constexpr int kMostBlocks = 264;
  // Steps of 32 columns whose weights are in flight while one is multiplied. Bytes in flight set
  // the memory bandwidth that a warp reaches: whole chains of 384 columns, or of 128 in many tiles.
  static constexpr int kAhead = kColTiles == 1 ? 12 : 4;
  struct alignas(8) Floats2 {
    float x[2];
  };
  // 8 weights as they are stored. Words, not bytes: the compiler splits a struct of bytes into
  // single registers right after the load, and so waits for every load.
  struct alignas(8 * E::kBytes) Stored8 {
    unsigned words[2 * E::kBytes];
  };
  // Where the lane's weights lie: row lane / 4 of 8 rows of W, and 8 of each 32 columns. In units
  // of 8 weights; scales in units of one.
  struct Place {
    int weights[kColTiles];
    int scales[kColTiles][2];
    bool exists;
  };
  // Weights that are on their way.
  struct TileWeights {
    Stored8 tiles[kColTiles];
  };
  struct Ahead {
    TileWeights weights[kAhead];
    float scales[kAhead / 2][kColTiles][2] = {};
  };
  // Two chains of MMAs, of the first and of the second 16 columns of each 32: an MMA does not wait
  // for the one before it.
  struct Sums {
    float first[4] = {}, second[4] = {};

    // Both parts of column `i` of the lane's two.
    LSSAR_DEVICE float Total(int i) const {
      return (first[i] + second[i]) + (first[2 + i] + second[2 + i]);
    }
  };

  LSSAR_DEVICE Place PlaceOf(int first_col) const {
    const int last_col = args_.weight.num_rows - 1, width = args_.weight.padded_cols;
    Place place;
    place.exists = first_col <= last_col;
    LSSAR_UNROLL
    for (int tile = 0; tile < kColTiles; ++tile) {
      const int col = first_col + 8 * tile;
      place.weights[tile] = Least(col + LaneIdx() / 4, last_col) * (width / 8) + LaneIdx() % 4;
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        place.scales[tile][i] =
            Least(col + LaneIdx() % 4 * 2 + i, last_col) * (width / kCudaGroupCols);
      }
    }
    return place;
  }

  // Starts the loads of slot i: columns [k, k + 32).
  LSSAR_DEVICE void Load(const Place& place, int i, int k, Ahead& ahead) const {
    LSSAR_UNROLL
    for (int tile = 0; tile < kColTiles; ++tile) {
      ahead.weights[i].tiles[tile] =
          static_cast<const Stored8*>(args_.weight.elements)[place.weights[tile] + k / 8];
      if constexpr (E::kHasScales) {
        LSSAR_UNROLL
        for (int j = 0; j < 2 && i % 2 == 0; ++j) {
          ahead.scales[i / 2][tile][j] =
              args_.weight.scales[place.scales[tile][j] + k / kCudaGroupCols];
        }
      }
    }
  }

  // Starts the loads of what comes after column k in slot i.
  LSSAR_DEVICE void Refill(const Place& here, const Place& next, int i, int k, Ahead& ahead) const {
    const int next_k = k + 32 * kAhead;
    if (next_k < cols_.end) {
      Load(here, i, next_k, ahead);
    } else if (next.exists) {
      Load(next, i, cols_.first + 32 * i, ahead);
    }
  }

  // Multiplies the tiles at `here`, whose weights are ahead, and starts the loads of those at
  // `next`.
  LSSAR_DEVICE void SumColumns(const Bits128* const (&x)[kRowTiles], const Place& here,
                               const Place& next, Ahead& ahead, float (&totals)[kTiles][2]) const {
    Sums sums[kTiles];
    LSSAR_NO_UNROLL
    for (int from = cols_.first; from < cols_.end; from += 32 * kAhead) {
      LSSAR_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        const int k = from + 32 * i;
        if (k >= cols_.end) continue;
        LSSAR_UNROLL
        for (int tile = 0; tile < kColTiles; ++tile) {
          MmaStep(x, k, ahead.weights[i].tiles[tile], tile, sums);
          if (E::kHasScales && i % 2 == 1) {
            AddGroup(ahead.scales[i / 2][tile], tile, sums, totals);
          }
        }
        // A slot is filled again after its use: otherwise its words move to other registers, and
        // the move waits for the load.
        if (E::kHasScales && i % 2 == 1) Refill(here, next, i - 1, k - 32, ahead);
        if (!E::kHasScales || i % 2 == 1) Refill(here, next, i, k, ahead);
      }
    }
    if constexpr (!E::kHasScales) {
      LSSAR_UNROLL
      for (int i = 0; i < 2 * kTiles; ++i) totals[i / 2][i % 2] = sums[i / 2].Total(i % 2);
    }
  }

  // 32 columns from k on.
  LSSAR_DEVICE static void MmaStep(const Bits128* const (&x)[kRowTiles], int k,
                                   const Stored8& weights, int col_tile, Sums (&sums)[kTiles]) {
    unsigned pairs[4];
    E::Unpack8(weights.words, pairs);
    const unsigned first[2] = {pairs[0], pairs[1]}, second[2] = {pairs[2], pairs[3]};
    LSSAR_UNROLL
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      const Bits128 low = x[row_tile][k / 4], high = x[row_tile][k / 4 + 1];
      Sums& to = sums[row_tile * kColTiles + col_tile];
      E::Mma(to.first, low.x, first);
      E::Mma(to.second, high.x, second);
    }
  }

  // Adds the sums of a group of columns, and clears them.
  LSSAR_DEVICE static void AddGroup(const float (&scales)[2], int col_tile, Sums (&sums)[kTiles],
                                    float (&totals)[kTiles][2]) {
    LSSAR_UNROLL
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      const int tile = row_tile * kColTiles + col_tile;
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        totals[tile][i] = MulAdd(scales[i], sums[tile].Total(i), totals[tile][i]);
      }
      sums[tile] = {};
    }
  }

  // The totals of all chains: [half][chain][tile][lane]. The halves take turns, so that one barrier
  // is enough.
  LSSAR_DEVICE float* Shared(int half) const {
    return reinterpret_cast<float*>(SharedMemory() + size_t(half) * (SharedBytes(num_chains_) / 2));
  }
  LSSAR_DEVICE static Floats2* SharedTotals(float* shared, int chain, int tile) {
    return reinterpret_cast<Floats2*>(shared) + (chain * kTiles + tile) * kWarpThreads + LaneIdx();
  }
  // All chains of the warp's tile.
  LSSAR_DEVICE Floats2 AddChains(float* shared) const {
    Floats2 sums = *SharedTotals(shared, 0, WarpIdx());
    LSSAR_UNROLL
    for (int chain = 1; chain < kMaxGemmChains; ++chain) {
      if (chain >= num_chains_) continue;
      const Floats2 totals = *SharedTotals(shared, chain, WarpIdx());
      sums.x[0] += totals.x[0];
      sums.x[1] += totals.x[1];
    }
    return sums;
  }

  LSSAR_DEVICE static int Least(int a, int b) { return a < b ? a : b; }

  // f(i, row, col) for the two elements that the lane stores.
  template <typename F>
  LSSAR_DEVICE void ForEachStored(int first_col, const F& f) const {
    const int tile = WarpIdx(), row = first_row_ + tile / kColTiles * 8 + LaneIdx() / 4;
    const int col = first_col + tile % kColTiles * 8 + LaneIdx() % 4 * 2;
    if (tile >= kTiles || row >= args_.num_rows) return;
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (col + i < args_.weight.num_rows) f(i, row, col + i);
    }
  }

  const CudaLinearArgs& args_;
  const CudaSplitRows x_;
  const ChainCols& cols_;
  const int num_chains_, first_row_;
};

template <typename E, int kRowTiles, int kColTiles>
LSSAR_KERNEL(kMaxChainThreads)
Linear(LSSAR_ARGS(CudaLinearArgs) args) {
  const ChainCols cols(args.weight.padded_cols);
  LinearTiles<E, kRowTiles, kColTiles>(args, args.x, cols).Run([] {}, [] {});
}

// Shared memory of FusedLinear: that of its LinearTiles, then these. Rows are parts in the end; the
// lane that splits 4 elements has copied them to the same 16 bytes before.
struct FusedMemory {
  RowSums* sums;   // [kMaxFusedRows][kMaxGemmChains]
  float* inverse;  // [num_rows][chains]
  float* shifts;   // [kMaxFusedRows][kMaxGemmChains]; a warp reads its own
  Bits128* rows;   // [num_rows][padded_width / 4]

  static constexpr int kOfChains = kMaxFusedRows * kMaxGemmChains;

  LSSAR_DEVICE explicit FusedMemory(unsigned char* from)
      : sums(reinterpret_cast<RowSums*>(from)),
        inverse(reinterpret_cast<float*>(sums + kOfChains)),
        shifts(inverse + kOfChains),
        rows(reinterpret_cast<Bits128*>(shifts + kOfChains)) {}
  static constexpr size_t NumBytes(size_t num_elements) {
    return kOfChains * (sizeof(RowSums) + 2 * sizeof(float)) + num_elements * sizeof(float);
  }
};

// Makes the parts of a fused block's rows; each warp those of its columns.
template <typename E>
class FusedRows {
 public:
  // Reads nothing that a kernel writes.
  LSSAR_DEVICE FusedRows(const CudaSplitArgs& args, const ChainCols& cols,
                         const FusedMemory& memory)
      : args_(args),
        cols_(cols),
        memory_(memory),
        norm_(args, cols),
        is_vector_(args.width % 4 == 0 && IsAligned16(args.x)) {}

  // After the first loads of weights are on their way.
  LSSAR_DEVICE void Prepare() {
    if (norm_.Exists()) factor_ = FactorFor(norm_);
  }

  LSSAR_DEVICE void Make() {
    LSSAR_NO_UNROLL
    for (int row = 0; row < args_.num_rows; ++row) Copy(row);
    CpAsyncCommitGroup();
    WaitForCopyGroups<0>();
    SyncWarp();
    if (norm_.Exists()) {
      LSSAR_NO_UNROLL
      for (int row = 0; row < args_.num_rows; ++row) {
        norm_.AddColumns(
            Shift(row), [&](int i) { return *Elements(row, i); }, Sums(row) + WarpIdx());
      }
      SyncBlock();
    }
    LSSAR_NO_UNROLL
    for (int row = 0; row < args_.num_rows; ++row) {
      if (norm_.Exists()) {
        norm_.SetRow(Shift(row), Sums(row));
      } else {
        factor_ = FactorFor(cols_, [&](int i) { return *Elements(row, i); });
      }
      cols_.ForEach4([&](int i) {
        const Bits128 parts = Split4<E>(norm_.Apply(*Elements(row, i), i), factor_);
        *reinterpret_cast<Bits128*>(Elements(row, i)) = parts;
      });
      if (LaneIdx() == 0) {
        memory_.inverse[row * NumGemmChains(args_.padded_width) + WarpIdx()] = InverseOf(factor_);
      }
    }
    SyncWarp();
  }

 private:
  LSSAR_DEVICE Floats4* Elements(int row, int i) const {
    return reinterpret_cast<Floats4*>(memory_.rows + (row * args_.padded_width + i) / 4);
  }
  LSSAR_DEVICE RowSums* Sums(int row) const { return memory_.sums + row * kMaxGemmChains; }
  LSSAR_DEVICE float* ShiftOf(int row) const {
    return memory_.shifts + row * kMaxGemmChains + WarpIdx();
  }
  LSSAR_DEVICE double Shift(int row) const { return double(*ShiftOf(row)); }

  // Starts the copy of a row.
  LSSAR_DEVICE void Copy(int row) const {
    const float* const from = RowOf(args_, row);
    const int width = args_.width;
    if (LaneIdx() == 0) CopyAsync4(ShiftOf(row), from, norm_.HasMean());
    cols_.ForEach4([&](int i) {
      if (is_vector_) {
        CopyAsync16(Elements(row, i), i < width ? from + i : from, i < width);
      } else {
        *Elements(row, i) = Load4(from, i, width);
      }
    });
  }

  const CudaSplitArgs& args_;
  const ChainCols& cols_;
  const FusedMemory memory_;
  Norm norm_;
  const bool is_vector_;
  float factor_ = 1;
};

// Few rows: every block normalises and splits them for itself.
template <typename E, int kColTiles>
LSSAR_KERNEL(kMaxChainThreads)
FusedLinear(LSSAR_ARGS(CudaFusedLinearArgs) args) {
  using Tiles = LinearTiles<E, 1, kColTiles>;
  const ChainCols cols(args.rows.padded_width);
  const FusedMemory memory(SharedMemory() +
                           Tiles::SharedBytes(NumGemmChains(args.rows.padded_width)));
  FusedRows<E> rows(args.rows, cols, memory);
  Tiles(args.linear, {.parts = memory.rows, .inverse = memory.inverse}, cols)
      .Run([&] { rows.Prepare(); }, [&] { rows.Make(); });
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
  element.LoadConstants(args, col);
  element.Load(args, row, col);
  element.Store(args, own);
}

// A thread computes an element.
LSSAR_KERNEL(kThreads) Epilogue(LSSAR_ARGS(CudaEpilogueArgs) args) {
  WaitForPreviousKernel();
  const int row = BlockY(), col = BlockX() * kThreads + ThreadIdx();
  if (col >= args.linear.weight.num_rows) return;
  OutputElement element;
  element.LoadConstants(args.linear, col);
  element.Load(args.linear, row, col);
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

constexpr int kEmbedThreads = 512;

LSSAR_KERNEL(kEmbedThreads) EmbedRows(LSSAR_ARGS(CudaEmbedArgs) args) {
  WaitForPreviousKernel();
  const size_t width = size_t(args.table.padded_cols);
  const int id = args.ids[BlockX()];
  float* out = args.out + size_t(BlockX()) * size_t(args.table.num_cols);
  for (int col = ThreadIdx(); col < args.table.num_cols; col += kEmbedThreads) {
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

template <typename E, int kRowTiles, int kColTiles>
int StartLinearTiles(const CudaLinearArgs& args, void* stream) {
  using Tiles = LinearTiles<E, kRowTiles, kColTiles>;
  const int num_chains = NumGemmChains(args.weight.padded_cols);
  return Launch({.num_blocks_x = Tiles::NumBlocks(args.weight.num_rows),
                 .num_blocks_y = (args.num_rows + Tiles::kRows - 1) / Tiles::kRows,
                 .num_threads = num_chains * kWarpThreads,
                 .shared_bytes = Tiles::SharedBytes(num_chains),
                 .overlaps_previous = true},
                stream, &Linear<E, kRowTiles, kColTiles>, args);
}

// Tiles of columns of a block: one where that gives work to no more multiprocessors than an H100
// has. Otherwise each of them would make x for several blocks.
constexpr int kManyColTiles = 3;
bool HasManyColTiles(const CudaMatrix& weight) {
  return weight.num_rows > 132 * 8 && NumGemmChains(weight.padded_cols) >= kManyColTiles;
}

template <typename E>
int StartLinearOf(const CudaLinearArgs& args, void* stream) {
  if (args.num_rows > 8 && NumGemmChains(args.weight.padded_cols) >= 2) {
    return StartLinearTiles<E, 2, 1>(args, stream);
  }
  return HasManyColTiles(args.weight) ? StartLinearTiles<E, 1, kManyColTiles>(args, stream)
                                      : StartLinearTiles<E, 1, 1>(args, stream);
}

template <typename E, int kColTiles>
int StartFusedTiles(const CudaFusedLinearArgs& args, void* stream) {
  const int num_chains = NumGemmChains(args.rows.padded_width);
  const size_t num_elements = size_t(args.rows.num_rows) * size_t(args.rows.padded_width);
  using Tiles = LinearTiles<E, 1, kColTiles>;
  const LaunchShape shape{
      .num_blocks_x = Tiles::NumBlocks(args.linear.weight.num_rows),
      .num_threads = num_chains * kWarpThreads,
      .shared_bytes = Tiles::SharedBytes(num_chains) + FusedMemory::NumBytes(num_elements),
      .overlaps_previous = true};
  return Launch(shape, stream, &FusedLinear<E, kColTiles>, args);
}

template <typename E>
int StartFusedLinearOf(const CudaFusedLinearArgs& args, void* stream) {
  return HasManyColTiles(args.linear.weight) ? StartFusedTiles<E, kManyColTiles>(args, stream)
                                             : StartFusedTiles<E, 1>(args, stream);
}

LaunchShape BlockPerRow(const CudaSplitArgs& args) {
  const int num_chains = NumGemmChains(args.padded_width);
  return {.num_blocks_x = args.num_rows,
          .num_threads = num_chains * kWarpThreads,
          .shared_bytes = size_t(num_chains) * sizeof(RowSums),
          .overlaps_previous = true};
}

}  // namespace

int StartSplitRows(const CudaSplitArgs& args, void* stream) {
  const LaunchShape shape = BlockPerRow(args);
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
  return Launch(BlockPerRow(args.rows), stream, &NormRows, args);
}

int StartEmbed(const CudaEmbedArgs& args, void* stream) {
  return Launch(
      {.num_blocks_x = args.num_ids, .num_threads = kEmbedThreads, .overlaps_previous = true},
      stream, &EmbedRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

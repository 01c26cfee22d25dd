// Prefill attention: a block computes 64 adjacent rows of one sequence and head, a warp 16 of them,
// in two sweeps over tiles of 64 keys.
//   first sweep   Score: the sum and maximum of each row, and each tile's maximum in each row
//   Reduce        finds the tiles that hold a non-zero weight
//   second sweep  Score again and Weigh, over those tiles only; K and V of other tiles are not read
// Sums over keys are grouped as in decode (decode_split.cuh): by splits of kCudaSplitKeys keys. In
// a split, the sum of scores has 32 parts, key mod 32, and values are one chain of MMAs over groups
// of 16 keys. So a row has the same bits in prefill and in decode.
//
// Most tiles lie before the diagonal: all rows attend to all of their keys, and nothing is masked.
// The common powers of LSSAR are compiled in (kPower).
#include "kernels/cuda/attention_dispatch.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_head.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kPrefillWarps = kTileRows / 16;
constexpr int kPrefillThreads = kPrefillWarps * kWarpThreads;
constexpr int kTileKeys = 64;
constexpr int kTilesOfSplit = kCudaSplitKeys / kTileKeys;
// Tile maxima stored for each row. In a longer row each stands for several tiles.
constexpr int kMaxTileMaxima = 128;

// The smallest stride of at least num_bytes that is 64 more than a multiple of 128: 16-byte loads
// of 4 threads from each of 2 rows then touch all banks once.
constexpr int KeyStride(int num_bytes) { return (num_bytes + 63) / 128 * 128 + 64; }

template <typename E, int kDim>
struct TileMemory {
  static constexpr int kRowBytes = kDim * E::kBytes;
  static constexpr int kKeyStride = KeyStride(kRowBytes);
  static constexpr int kValueStride = kRowBytes + 16;
  static constexpr int kWideStride = kDim * 2 + 16;
  static constexpr int kScaleBytes = E::kHasScales ? kTileKeys * 4 : 0;
  static constexpr int kKeysBytes = kTileKeys * kKeyStride + kScaleBytes;
  static constexpr int kValuesBytes = kTileKeys * kValueStride + kScaleBytes;
  static constexpr int kSums = kDim / 8 * 4;  // floats of a thread's ValueSums

  static constexpr int kKeys = 0;  // [2]
  static constexpr int kValues = kKeys + 2 * kKeysBytes;
  static constexpr int kWide = kValues + 2 * kValuesBytes;  // one tile of int8 values as fp16
  static constexpr int kTotals = kWide + (E::kHasScales ? kTileKeys * kWideStride : 0);
  static constexpr int kMaxima = kTotals + kSums * kPrefillThreads * 4;  // [entry][row]
  static constexpr int kAlive = kMaxima + kMaxTileMaxima * kTileRows * 4;
  static constexpr int kBytes = kAlive + kMaxTileMaxima / 32 * 4;

  LSSAR_DEVICE static unsigned char* Keys(int buffer) {
    return SharedMemory() + kKeys + buffer * kKeysBytes;
  }
  LSSAR_DEVICE static float* KeyScales(int buffer) {
    return reinterpret_cast<float*>(Keys(buffer) + kTileKeys * kKeyStride);
  }
  LSSAR_DEVICE static unsigned char* Values(int buffer) {
    return SharedMemory() + kValues + buffer * kValuesBytes;
  }
  LSSAR_DEVICE static float* ValueScales(int buffer) {
    return reinterpret_cast<float*>(Values(buffer) + kTileKeys * kValueStride);
  }
  LSSAR_DEVICE static unsigned char* Wide() { return SharedMemory() + kWide; }
  // The sum over finished splits of the thread's accumulator `i`.
  LSSAR_DEVICE static float& Total(int i) {
    return reinterpret_cast<float*>(SharedMemory() + kTotals)[i * kPrefillThreads + ThreadIdx()];
  }
  LSSAR_DEVICE static float& Maximum(int entry, int row) {
    return reinterpret_cast<float*>(SharedMemory() + kMaxima)[entry * kTileRows + row];
  }
  LSSAR_DEVICE static unsigned* Alive() {
    return reinterpret_cast<unsigned*>(SharedMemory() + kAlive);
  }
};

// kPower: LSSAR with this p. 0: any kind and p.
template <typename E, int kDim, int kPower>
class Prefill {
 public:
  using Memory = TileMemory<E, kDim>;

  LSSAR_DEVICE explicit Prefill(const CudaAttentionArgs& args)
      : args_(args),
        tile_(args.tiles[BlockX()]),
        pages_(args.pages, tile_.first_page, BlockY() / args.heads_of_kv),
        end_(tile_.first_position + tile_.num_rows),
        num_tiles_((end_ + kTileKeys - 1) / kTileKeys),
        tiles_of_entry_((num_tiles_ + kMaxTileMaxima - 1) / kMaxTileMaxima) {
    const float* rows[2];
    for (int i = 0; i < 2; ++i) {
      num_keys_[i] = Row(i) < tile_.num_rows ? tile_.first_position + Row(i) + 1 : 0;
      rows[i] = num_keys_[i] > 0 ? args.q + VectorIdx(Row(i)) : nullptr;
    }
    q_.Load(rows);
    for (int i = 0; i < 2; ++i) {
      scales_[i] = num_keys_[i] > 0 ? RowScale(args, num_keys_[i], q_.inverse[i]) : 0.0f;
    }
  }

  LSSAR_DEVICE void Run() {
    FirstSweep();
    Reduce();
    SecondSweep();
    Finish();
    AttendFlatRows();
  }

 private:
  // The thread's two rows in the tile: t/4 and t/4 + 8 of the warp's 16.
  LSSAR_DEVICE int Row(int i) const { return WarpIdx() * 16 + LaneIdx() / 4 + 8 * i; }
  LSSAR_DEVICE size_t VectorIdx(int row) const {
    return (size_t(tile_.first_row + row) * size_t(args_.num_heads) + size_t(BlockY())) * kDim;
  }
  // The warp's last row attends to keys before WarpEnd; all of its rows attend to keys before
  // WarpKeysOfAll.
  LSSAR_DEVICE int WarpEnd() const {
    const int last = WarpIdx() * 16 + 16 < tile_.num_rows ? WarpIdx() * 16 + 16 : tile_.num_rows;
    return last > WarpIdx() * 16 ? tile_.first_position + last : 0;
  }
  LSSAR_DEVICE int WarpKeysOfAll() const { return tile_.first_position + WarpIdx() * 16 + 1; }

  // Starts copies of a tile's rows. Keys that no row of the block attends to become zeros.
  LSSAR_DEVICE void CopyRows(unsigned char* to, int stride, int tile, bool values) const {
    constexpr int kPieces = Memory::kRowBytes / 16;
    for (int i = ThreadIdx(); i < kTileKeys * kPieces; i += kPrefillThreads) {
      const int at = i / kPieces, piece = i % kPieces, key = tile * kTileKeys + at;
      const bool valid = key < end_;
      const unsigned char* from = pages_.k;
      if (valid) from = (values ? pages_.Value(key) : pages_.Key(key)) + piece * 16;
      CopyAsync16(to + at * stride + piece * 16, from, valid);
    }
  }
  LSSAR_DEVICE void CopyScales(float* to, int tile, bool values) const {
    if constexpr (E::kHasScales) {
      const int at = ThreadIdx() * 4, key = tile * kTileKeys + at;
      if (at >= kTileKeys) return;
      const bool valid = key < end_;  // 4 scales of a page; the last ones may be unused slots
      const void* from = pages_.k;
      if (valid) from = values ? pages_.ValueScale(key) : pages_.KeyScale(key);
      CopyAsync16(to + at, from, valid);
    }
  }
  LSSAR_DEVICE void StartTile(int tile, int buffer, bool values) const {
    if (tile < num_tiles_) {
      CopyRows(Memory::Keys(buffer), Memory::kKeyStride, tile, false);
      CopyScales(Memory::KeyScales(buffer), tile, false);
      if (values) {
        CopyRows(Memory::Values(buffer), Memory::kValueStride, tile, true);
        CopyScales(Memory::ValueScales(buffer), tile, true);
      }
    }
    CloseCopyGroup();
  }

  // Scores of the warp's rows for two sets of 8 keys of the tile, the second `distance` keys after
  // the first, in the layout of C. kMasked: -infinity for keys that a row does not attend to.
  template <bool kMasked>
  LSSAR_DEVICE void Score(int tile, int buffer, int first, int distance, float (&c)[2][4]) const {
    q_.template Dot<2>(Memory::Keys(buffer) + (first + LaneIdx() / 4) * Memory::kKeyStride,
                       distance * Memory::kKeyStride, c);
    LSSAR_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int at = first + i / 4 * distance + LaneIdx() % 4 * 2 + i % 2;
      const int row = i / 2 % 2;
      float& score = c[i / 4][i % 4];
      if (E::kHasScales) score *= Memory::KeyScales(buffer)[at];
      score *= scales_[row];
      if (kMasked && tile * kTileKeys + at >= num_keys_[row]) score = FloatOfBits(kMinusInfinity);
    }
  }
  static constexpr unsigned kMinusInfinity = 0xFF800000;
  LSSAR_DEVICE bool IsMasked(int tile) const { return (tile + 1) * kTileKeys > WarpKeysOfAll(); }

  using RowSums = SoftplusSum[2][4][2];  // [row][key / 8 mod 4][key mod 2]

  LSSAR_DEVICE void FirstSweep() {
    for (int i = 0; i < 2; ++i) {
      sums_[i] = 0;
      maxima_[i] = kLowestScore;
    }
    RowSums parts;
    StartTile(0, 0, false);
    for (int tile = 0; tile < num_tiles_; ++tile) {
      StartTile(tile + 1, (tile + 1) % 2, false);
      WaitForCopyGroups<1>();
      SyncBlock();
      if (tile * kTileKeys < WarpEnd()) {
        if (IsMasked(tile)) {
          ScoreTile<true>(tile, parts);
        } else {
          ScoreTile<false>(tile, parts);
        }
      }
      if (tile % kTilesOfSplit == kTilesOfSplit - 1 || tile == num_tiles_ - 1) CloseSums(parts);
      SyncBlock();
    }
    WaitForCopyGroups<0>();
  }

  // Adds the sums of a split, in the order of SumOfLanes, where lane = key mod 32.
  LSSAR_DEVICE void CloseSums(RowSums& parts) {
    LSSAR_UNROLL
    for (int row = 0; row < 2; ++row) {
      float sums[4];
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums[i] = parts[row][i][0].Total() + parts[row][i][1].Total();
        parts[row][i][0] = parts[row][i][1] = {};
      }
      float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      sum += ShuffleXor(sum, 1);
      sum += ShuffleXor(sum, 2);
      sums_[row] += double(sum);
    }
  }

  template <bool kMasked>
  LSSAR_DEVICE void ScoreTile(int tile, RowSums& parts) {
    float largest[2] = {kLowestScore, kLowestScore};
    LSSAR_UNROLL
    for (int n = 0; n < 4; ++n) {
      float c[2][4];  // keys whose sums are the same parts: 32 apart
      Score<kMasked>(tile, tile % 2, n * 8, 32, c);
      LSSAR_UNROLL
      for (int i = 0; i < 8; ++i) {
        const int row = i / 2 % 2;
        const float score = c[i / 4][i % 4];
        parts[row][n][i % 2].Add(score);
        largest[row] = fmaxf(largest[row], score);
      }
    }
    for (int i = 0; i < 2; ++i) {
      largest[i] = fmaxf(largest[i], ShuffleXor(largest[i], 1));
      largest[i] = fmaxf(largest[i], ShuffleXor(largest[i], 2));
      maxima_[i] = fmaxf(maxima_[i], largest[i]);
      if (LaneIdx() % 4 != 0) continue;
      float& maximum = Memory::Maximum(tile / tiles_of_entry_, Row(i));
      maximum = tile % tiles_of_entry_ == 0 ? largest[i] : fmaxf(maximum, largest[i]);
    }
  }

  // Finds each row's rule and the tiles that hold a non-zero weight of some row.
  LSSAR_DEVICE void Reduce() {
    for (int i = 0; i < 2; ++i) {
      if (num_keys_[i] > 0) rules_[i] = ReduceRow(args_, num_keys_[i], maxima_[i], sums_[i]);
    }
    if (ThreadIdx() < kMaxTileMaxima / 32) Memory::Alive()[ThreadIdx()] = 0;
    SyncBlock();
    for (int entry = 0; entry * tiles_of_entry_ < num_tiles_; ++entry) {
      bool alive = false;
      if (entry * tiles_of_entry_ * kTileKeys < WarpEnd()) {
        for (int i = 0; i < 2; ++i) {
          // With a NaN in the row, `least` is NaN, and every tile counts.
          alive |= !(Memory::Maximum(entry, Row(i)) < rules_[i].least);
        }
      }
      if (Ballot(alive) != 0 && LaneIdx() == 0) {
        AtomicOr(Memory::Alive() + entry / 32, 1u << (entry % 32));
      }
    }
    SyncBlock();
  }

  // The first tile from `tile` on that holds a non-zero weight; num_tiles_ if there is none.
  LSSAR_DEVICE int NextAlive(int tile) const {
    for (; tile < num_tiles_; ++tile) {
      const int entry = tile / tiles_of_entry_;
      if ((Memory::Alive()[entry / 32] >> (entry % 32) & 1) != 0) return tile;
    }
    return num_tiles_;
  }

  LSSAR_DEVICE void SecondSweep() {
    for (int i = 0; i < Memory::kSums; ++i) Memory::Total(i) = 0;
    weight_sums_[0] = weight_sums_[1] = 0;
    split_.Clear();
    int num_read = 0;
    int buffer = 0;
    int tile = NextAlive(0);
    StartTile(tile, buffer, true);
    while (tile < num_tiles_) {
      const int next = NextAlive(tile + 1);
      StartTile(next, 1 - buffer, true);
      WaitForCopyGroups<1>();
      SyncBlock();
      if constexpr (E::kHasScales) {
        WidenTile(buffer);
        SyncBlock();
      }
      if (tile * kTileKeys < WarpEnd()) {
        num_read += IsMasked(tile) ? WeighTile<true>(tile, buffer) : WeighTile<false>(tile, buffer);
      }
      if (next == num_tiles_ || next / kTilesOfSplit != tile / kTilesOfSplit) CloseSplit();
      SyncBlock();
      tile = next;
      buffer = 1 - buffer;
    }
    WaitForCopyGroups<0>();
    num_read = SumOfLanes(num_read);
    if (LaneIdx() == 0 && num_read != 0 && args_.counters != nullptr) {
      AtomicAdd(args_.counters + tile_.sequence, static_cast<unsigned long long>(num_read));
    }
  }

  // Converts int8 values to fp16, the element type of the MMA.
  LSSAR_DEVICE void WidenTile(int buffer) const {
    for (int i = ThreadIdx(); i < kTileKeys * kDim / 4; i += kPrefillThreads) {
      const int at = i / (kDim / 4), dim = i % (kDim / 4) * 4;
      *reinterpret_cast<Bits64*>(Memory::Wide() + at * Memory::kWideStride + dim * 2) =
          E::Scale4(Memory::Values(buffer) + at * Memory::kValueStride + dim,
                    Memory::ValueScales(buffer)[at]);
    }
  }

  LSSAR_DEVICE float Weight(int row, float score) const {
    if constexpr (kPower != 0) return Reweighted<kPower>(args_, rules_[row], score);
    return WeightOf(args_, rules_[row], score);
  }

  // Returns the number of non-zero weights of this thread.
  template <bool kMasked>
  LSSAR_DEVICE int WeighTile(int tile, int buffer) {
    constexpr int kStride = E::kHasScales ? Memory::kWideStride : Memory::kValueStride;
    const unsigned char* values = E::kHasScales ? Memory::Wide() : Memory::Values(buffer);
    int num_read = 0;
    LSSAR_NO_UNROLL
    for (int group = 0; group < kTileKeys / 16; ++group) {
      float c[2][4];
      Score<kMasked>(tile, buffer, group * 16, 8, c);
      bool any = false;
      LSSAR_UNROLL
      for (int i = 0; i < 8; ++i) any |= !(c[i / 4][i % 4] < rules_[i / 2 % 2].least);
      if (Ballot(any) == 0) continue;
      unsigned a[4];
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        float weights[2];
        LSSAR_UNROLL
        for (int j = 0; j < 2; ++j) {
          // Scores of a masked key are -infinity; softmax of that is 0 too.
          weights[j] = Weight(i % 2, c[i / 2][i % 2 * 2 + j]);
          num_read += weights[j] == 0 ? 0 : 1;
          weights[j] *= rules_[i % 2].scale;
        }
        a[i] = F16Pair(weights[0], weights[1]);
      }
      split_.template Add<kMasked>(a, values + group * 16 * kStride, kStride);
    }
    return num_read;
  }

  // Adds the sums of a split to those of earlier splits.
  LSSAR_DEVICE void CloseSplit() {
    LSSAR_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) Memory::Total(n * 4 + i) += split_.values[n][i];
    }
    // Every column of weights times ones holds the sum.
    for (int i = 0; i < 2; ++i) weight_sums_[i] += double(split_.weights[2 * i]);
    split_.Clear();
  }

  LSSAR_DEVICE void Finish() const {
    for (int i = 0; i < 2; ++i) {
      if (num_keys_[i] == 0 || rules_[i].rule == WeightKind::kFlat) continue;
      const float inverse = float(1.0 / weight_sums_[i]);
      float* out = args_.out + VectorIdx(Row(i)) + LaneIdx() % 4 * 2;
      for (int n = 0; n < kDim / 8; ++n) {
        out[n * 8] = Memory::Total(n * 4 + 2 * i) * inverse;
        out[n * 8 + 1] = Memory::Total(n * 4 + 2 * i + 1) * inverse;
      }
    }
  }

  LSSAR_DEVICE void AttendFlatRows() const {
    for (int i = 0; i < 2; ++i) {
      // One of the four lanes that share a row.
      const bool is_flat = rules_[i].rule == WeightKind::kFlat && LaneIdx() % 4 == 0;
      for (unsigned left = Ballot(is_flat); left != 0; left &= left - 1) {
        const int row = WarpIdx() * 16 + LowestBit(left) / 4 + 8 * i;
        AttendFlat(RowWork<E, kDim>{args_, pages_, tile_.first_position + row + 1, tile_.sequence,
                                    VectorIdx(row)});
      }
    }
  }

  const CudaAttentionArgs& args_;
  const CudaTile tile_;
  const PagedHead<E, kDim> pages_;
  const int end_;  // number of keys of the block's last row
  const int num_tiles_;
  const int tiles_of_entry_;
  QueryRows<E, kDim> q_;
  // State of the thread's two rows; the four threads of a row hold equal values.
  int num_keys_[2];
  float scales_[2];
  double sums_[2];
  float maxima_[2];
  WeightRule rules_[2];
  double weight_sums_[2];
  ValueSums<E, kDim> split_;
};

template <typename E, int kDim, int kPower>
LSSAR_KERNEL(kPrefillThreads)
PrefillTiles(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  Prefill<E, kDim, kPower>(args).Run();
}

// Each power is a kernel to compile, so only the usual head dimensions have them: the paper's 3 and
// 15.
constexpr bool HasCompiledPowers(int dim) { return dim == 64 || dim == 128; }

}  // namespace

size_t PrefillMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim,
                  [&]<typename E, int kDim>() { return size_t(TileMemory<E, kDim>::kBytes); });
}

int StartPrefill(const CudaAttentionArgs& args, DType dtype, void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const LaunchShape shape{.num_blocks_x = args.num_tiles,
                            .num_blocks_y = args.num_heads,
                            .num_threads = kPrefillThreads,
                            .shared_bytes = TileMemory<E, kDim>::kBytes,
                            .overlaps_previous = true};
    if constexpr (HasCompiledPowers(kDim)) {
      if (args.kind == AttentionKind::kLssar && args.whole_p == 3) {
        return Launch(shape, stream, &PrefillTiles<E, kDim, 3>, args);
      }
      if (args.kind == AttentionKind::kLssar && args.whole_p == 15) {
        return Launch(shape, stream, &PrefillTiles<E, kDim, 15>, args);
      }
    }
    return Launch(shape, stream, &PrefillTiles<E, kDim, 0>, args);
  });
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Prefill attention: a block computes 64 adjacent rows of one sequence and head, a warp 16 of them,
// in two sweeps over tiles of 64 keys.
//   first sweep   Score: the sum and maximum of each row, and each tile's maximum in each row
//   Reduce        finds the tiles that hold a non-zero weight
//   second sweep  Score again and Weigh, over those tiles only; K and V of other tiles are not read
// Sums over keys are grouped as in decode (decode_split.cuh): by splits of kCudaSplitKeys keys. In
// a split, the sum of scores has 32 parts, key mod 32, and values are one chain of MMAs over groups
// of 16 keys. So a row has the same bits in prefill and in decode.
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

template <typename E, int kDim>
class Prefill {
 public:
  using Memory = TileMemory<E, kDim>;

  LSSAR_DEVICE explicit Prefill(const CudaAttentionArgs& args)
      : args_(args),
        tile_(args.tiles[BlockX()]),
        pages_(args.pages, tile_.first_page, BlockY()),
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
      scales_[i] = num_keys_[i] > 0 ? float(ScoreScale(args, num_keys_[i])) * q_.inverse[i] : 0.0f;
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
    return (size_t(tile_.first_row + row) * size_t(args_.pages.num_heads) + size_t(BlockY())) *
           kDim;
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

  // Scores of the warp's rows for keys [8n, 8n + 8) of the tile, in the layout of C.
  LSSAR_DEVICE void Score(int buffer, int n, float (&c)[4]) const {
    q_.Dot(Memory::Keys(buffer) + (n * 8 + LaneIdx() / 4) * Memory::kKeyStride, c);
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (E::kHasScales) c[i] *= Memory::KeyScales(buffer)[n * 8 + LaneIdx() % 4 * 2 + i % 2];
      c[i] *= scales_[i / 2];
    }
  }

  LSSAR_DEVICE void FirstSweep() {
    for (int i = 0; i < 2; ++i) {
      sums_[i] = 0;
      maxima_[i] = kLowestScore;
    }
    float parts[2][4][2];  // [row][key / 8 mod 4][key mod 2]
    ClearParts(parts);
    StartTile(0, 0, false);
    for (int tile = 0; tile < num_tiles_; ++tile) {
      StartTile(tile + 1, (tile + 1) % 2, false);
      WaitForCopyGroups<1>();
      SyncBlock();
      if (tile * kTileKeys < WarpEnd()) ScoreTile(tile, parts);
      if (tile % kTilesOfSplit == kTilesOfSplit - 1 || tile == num_tiles_ - 1) {
        for (int i = 0; i < 2; ++i) sums_[i] += double(SumOfParts(parts[i]));
        ClearParts(parts);
      }
      SyncBlock();
    }
    WaitForCopyGroups<0>();
  }

  LSSAR_DEVICE static void ClearParts(float (&parts)[2][4][2]) {
    LSSAR_UNROLL
    for (int i = 0; i < 16; ++i) parts[i / 8][i / 2 % 4][i % 2] = 0;
  }
  // In the order of SumOfLanes, where lane = key mod 32.
  LSSAR_DEVICE static float SumOfParts(const float (&parts)[4][2]) {
    float sums[4];
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] = parts[i][0] + parts[i][1];
    float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    return sum;
  }

  LSSAR_DEVICE void ScoreTile(int tile, float (&parts)[2][4][2]) {
    float largest[2] = {kLowestScore, kLowestScore};
    LSSAR_UNROLL
    for (int n = 0; n < kTileKeys / 8; ++n) {
      float c[4];
      Score(tile % 2, n, c);
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = tile * kTileKeys + n * 8 + LaneIdx() % 4 * 2 + i % 2;
        if (key < num_keys_[i / 2]) {
          const float score = StageOne(args_, c[i]);
          parts[i / 2][n % 4][i % 2] += score;
          largest[i / 2] = fmaxf(largest[i / 2], score);
        }
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
          // A NaN counts as a weight, and the maximum of a softmax row may have lost one.
          alive |= rules_[i].rule == WeightKind::kExp ||
                   !(WeightOf(args_, rules_[i], Memory::Maximum(entry, Row(i))) == 0);
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
      if (tile * kTileKeys < WarpEnd()) num_read += WeighTile(tile, buffer);
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

  // Returns the number of non-zero weights of this thread.
  LSSAR_DEVICE int WeighTile(int tile, int buffer) {
    constexpr int kStride = E::kHasScales ? Memory::kWideStride : Memory::kValueStride;
    const unsigned char* values = E::kHasScales ? Memory::Wide() : Memory::Values(buffer);
    int num_read = 0;
    for (int group = 0; group < kTileKeys / 16; ++group) {
      unsigned a[E::kWeightParts][4];
      bool any = false;
      LSSAR_UNROLL
      for (int half = 0; half < 2; ++half) {
        float c[4];
        Score(buffer, group * 2 + half, c);
        unsigned bits[4];
        LSSAR_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int key = tile * kTileKeys + group * 16 + half * 8 + LaneIdx() % 4 * 2 + i % 2;
          bits[i] = 0;
          if (key < num_keys_[i / 2]) {
            const WeightRule& rule = rules_[i / 2];
            bits[i] = WeightBits<E>(WeightOf(args_, rule, StageOne(args_, c[i])), rule.scale);
          }
          num_read += bits[i] != 0;
          any |= bits[i] != 0;
        }
        LSSAR_UNROLL
        for (int part = 0; part < E::kWeightParts; ++part) {
          for (int i = 0; i < 2; ++i) {
            a[part][2 * half + i] =
                (bits[2 * i] >> (16 * part) & 0xFFFF) | (bits[2 * i + 1] >> (16 * part)) << 16;
          }
        }
      }
      if (Ballot(any) == 0) continue;
      const unsigned char* rows = values + group * 16 * kStride;
      if (tile * kTileKeys + group * 16 + 16 > WarpKeysOfAll()) {
        split_.template Add<true>(a, rows, kStride);
      } else {
        split_.template Add<false>(a, rows, kStride);
      }
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

template <typename E, int kDim>
LSSAR_KERNEL(kPrefillThreads)
PrefillTiles(LSSAR_ARGS(CudaAttentionArgs) args) {
  Prefill<E, kDim>(args).Run();
}

}  // namespace

size_t PrefillMemory(DType dtype, int head_dim) {
  return MemoryOf(dtype, head_dim,
                  [&]<typename E, int kDim>() { return size_t(TileMemory<E, kDim>::kBytes); });
}

int StartPrefill(const CudaAttentionArgs& args, DType dtype, void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    const LaunchShape shape{.num_blocks_x = args.num_tiles,
                            .num_blocks_y = args.pages.num_heads,
                            .num_threads = kPrefillThreads,
                            .shared_bytes = TileMemory<E, kDim>::kBytes};
    return Launch(shape, stream, &PrefillTiles<E, kDim>, args);
  });
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

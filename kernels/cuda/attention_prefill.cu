// Prefill attention: a block computes 64 adjacent rows of one sequence and head, a warp 16 of them,
// in two sweeps over tiles of 64 keys. Where there are rows enough to fill the device, a block
// computes 128 and a warp 32 (kRowSets), which halves the work for each key.
//   first sweep   Score of q's first part: the sum and maximum of each row, and each tile's maximum
//                 in each row
//   Reduce        finds the tiles that may hold a non-zero weight
//   second sweep  over those tiles only: Score of the first part again; of both parts, and Weigh,
//                 for groups of 16 keys that may hold a non-zero weight
// Sums over keys are grouped as in decode (decode_split.cuh): by splits of kCudaSplitKeys keys. In
// a split, the sum of scores has 32 parts, key mod 32, and values are one chain of MMAs over groups
// of 16 keys. In a batch-invariant backend a row has the same bits in prefill and in decode.
//
// Keys in two planes (fx16) have both in a tile. Sums come from the high plane. The low plane is
// multiplied for groups of 16 keys whose upper bounds say that one may be the row's largest score
// (first sweep) or have a weight (second sweep); in rows of few keys for all.
//
// Most tiles lie before the diagonal: all rows attend to all of their keys, and nothing is masked.
// LSSAR with a usual p has kernels of its own (kLssar), which round q to the keys' type.
#include "kernels/cuda/attention_dispatch.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/paged_head.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillThreads = kPrefillWarps * kWarpThreads;
constexpr int kTileKeys = 64;
constexpr int kTilesOfSplit = kCudaSplitKeys / kTileKeys;

// Larger than the bound of any row in fixed point.
constexpr float kAnyBound = 0x1p64f;

struct alignas(16) Floats4 {
  float x[4];
};

// kRowSets: of 16 rows, for each warp.
template <typename E, int kDim, int kRowSets>
struct TileMemory {
  static constexpr int kRows = kPrefillWarps * 16 * kRowSets;
  // Tile maxima stored for each row. In a longer row each stands for several tiles.
  static constexpr int kMaxTileMaxima = 128 / kRowSets;
  static constexpr int kRowBytes = kDim * E::kBytes;  // of a key's high plane, and of its low one
  static constexpr int kKeyStride = KeyStride(kRowBytes * (E::kTwoPlanes ? 2 : 1));
  static constexpr int kValueRowBytes = kDim * E::Value::kBytes;
  static constexpr int kValueStride = kValueRowBytes + 16;
  static constexpr int kWideStride = kDim * 2 + 16;
  static constexpr int kKeysBytes = kTileKeys * (kKeyStride + (E::kHasScales ? 4 : 0));
  static constexpr int kValuesBytes = kTileKeys * (kValueStride + (E::Value::kHasScales ? 4 : 0));
  static constexpr int kTotalPieces = kRowSets * kDim / 8;  // [4] floats of a thread's ValueSums

  static constexpr int kKeys = 0;  // [2]
  static constexpr int kValues = kKeys + 2 * kKeysBytes;
  static constexpr int kWide = kValues + 2 * kValuesBytes;  // one tile of int8 values as fp16
  static constexpr int kTotals = kWide + (E::Value::kHasScales ? kTileKeys * kWideStride : 0);
  static constexpr int kMaxima = kTotals + kTotalPieces * kPrefillThreads * 16;  // [entry][row]
  static constexpr int kAlive = kMaxima + kMaxTileMaxima * kRows * 4;
  static constexpr int kBytes = kAlive + kMaxTileMaxima / 32 * 4;

  LSSAR_DEVICE static unsigned char* Keys(int buffer) {
    return SharedMemory() + kKeys + buffer * kKeysBytes;
  }
  // The low plane of a key is behind its high one.
  LSSAR_DEVICE static unsigned char* LowKeys(int buffer) { return Keys(buffer) + kRowBytes; }
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
  // The sums over finished splits of the thread's accumulators [n].
  LSSAR_DEVICE static Floats4& Totals(int n) {
    return reinterpret_cast<Floats4*>(SharedMemory() + kTotals)[n * kPrefillThreads + ThreadIdx()];
  }
  LSSAR_DEVICE static float& Maximum(int entry, int row) {
    return reinterpret_cast<float*>(SharedMemory() + kMaxima)[entry * kRows + row];
  }
  LSSAR_DEVICE static unsigned* Alive() {
    return reinterpret_cast<unsigned*>(SharedMemory() + kAlive);
  }
};

// 16 rows of q as the A operands of MMAs, scaled. kParts: of a row (elements.cuh).
template <typename E, int kDim, int kParts>
struct TileQueries {
  static constexpr int kSteps = kDim / 16;
  unsigned parts[kParts][kSteps][4];
  float inverse[2];  // of the powers of two of rows t/4 and t/4 + 8

  // `rows[i]`: null for a row of zeros. All lanes of the warp.
  LSSAR_DEVICE void Load(const float* const (&rows)[2], const float (&scales)[2], bool is_unit) {
    LSSAR_UNROLL
    for (int row = 0; row < 2; ++row) {
      ScaledRow<E, kDim> scaled;
      scaled.Load(rows[row], scales[row], is_unit);
      inverse[row] = scaled.inverse;
      LSSAR_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int dim = DimOfStep<kDim>(step, LaneIdx() % 4);
        LSSAR_UNROLL
        for (int i = 0; i < 2; ++i) {
          unsigned of_pair[2];
          scaled.Split(dim + 2 * i, of_pair);
          LSSAR_UNROLL
          for (int part = 0; part < kParts; ++part) parts[part][step][2 * i + row] = of_pair[part];
        }
      }
    }
  }
};

// The same in 16-bit fixed point: part 0 are the high bytes.
template <int kDim>
struct TileQueries<Fx16Element, kDim, 2> {
  static constexpr int kSteps = kByteSteps<kDim>;
  unsigned parts[2][kSteps][4];
  FixedRow<kDim> of_row[2];

  LSSAR_DEVICE void Load(const float* const (&rows)[2], const float (&scales)[2], bool) {
    LSSAR_UNROLL
    for (int i = 0; i < 8 * kSteps; ++i) parts[i % 2][i / 8][i / 2 % 4] = 0;
    LSSAR_UNROLL
    for (int row = 0; row < 2; ++row) {
      of_row[row].Load(rows[row], scales[row],
                       [&](int step, int word, const unsigned(&of_word)[2]) {
                         LSSAR_UNROLL
                         for (int part = 0; part < 2; ++part) {
                           parts[part][step][2 * word + row] = of_word[part];
                         }
                       });
    }
  }
};

// kLssar: LSSAR with a whole p from 3 to 15; q is rounded, but over fx16. Else any kind and p.
template <typename E, int kDim, bool kLssar, int kRowSets>
class Prefill {
 public:
  using Memory = TileMemory<E, kDim, kRowSets>;
  static constexpr int kParts = kLssar && !E::kTwoPlanes ? 1 : 2;  // of a row of q
  using Queries = TileQueries<E, kDim, kParts>;
  static constexpr int kSteps = Queries::kSteps;
  // No score changes after the choice of candidates: they are what has a weight.
  static constexpr bool kCountsCandidates = kParts == 1;
  // Sets of 8 keys whose scores a sweep computes at a time, as registers allow.
  static constexpr int kScoreSets = kDim <= 80 || kLssar ? 4 : 2;
  static constexpr int kWeighSets = kDim <= 80 && kRowSets == 1 ? 4 : 2;
  static constexpr int kSetsAtOnce = kLssar ? 2 : 1;  // that become weights

  LSSAR_DEVICE explicit Prefill(const CudaAttentionArgs& args)
      : args_(args),
        tile_(RowsOfBlock(args)),
        pages_(args.pages, tile_.first_page, BlockY() / args.heads_of_kv),
        end_(tile_.first_position + tile_.num_rows),
        num_tiles_((end_ + kTileKeys - 1) / kTileKeys),
        sums_first_part_(kLssar || SumsFirstPart(args)),
        has_short_rows_(E::kTwoPlanes && IsShortRow(tile_.first_position + 1)) {
    while (num_tiles_ > Memory::kMaxTileMaxima << entry_shift_) ++entry_shift_;
    own_k_ = pages_.k + ThreadIdx() * 16;
    own_v_ = pages_.v + ThreadIdx() * 16;
    const int rows_left = tile_.num_rows - WarpRow();
    if (rows_left > 0) {
      warp_end_ =
          tile_.first_position + WarpRow() + (rows_left < kWarpRows ? rows_left : kWarpRows);
    }
    keys_of_all_ = tile_.first_position + WarpRow() + 1;
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      num_keys_[i] = Row(i) < tile_.num_rows ? tile_.first_position + Row(i) + 1 : 0;
    }
    LoadQueries();
  }

  LSSAR_DEVICE void Run() {
    if (tile_.num_rows <= 0) return;  // the whole block
    FirstSweep();
    Reduce();
    SecondSweep();
    Finish();
    AttendFlatRows();
  }

 private:
  static constexpr int kWarpRows = 16 * kRowSets;
  static constexpr int kThreadRows = 2 * kRowSets;

  // The block's rows: a tile, or a part of it.
  LSSAR_DEVICE static CudaTile RowsOfBlock(const CudaAttentionArgs& args) {
    const int parts = args.tile_rows / Memory::kRows;
    CudaTile tile = args.tiles[BlockX() / parts];
    const int skipped = BlockX() % parts * Memory::kRows;
    tile.first_row += skipped;
    tile.first_position += skipped;
    tile.num_rows -= skipped;
    if (tile.num_rows > Memory::kRows) tile.num_rows = Memory::kRows;
    return tile;
  }
  LSSAR_DEVICE void LoadQueries() {
    LSSAR_UNROLL
    for (int set = 0; set < kRowSets; ++set) {
      const float* rows[2];
      float scales[2];
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int num_keys = num_keys_[2 * set + i];
        rows[i] = num_keys > 0 ? args_.q + VectorIdx(Row(2 * set + i)) : nullptr;
        scales[i] = num_keys > 0 ? RowScale(args_, log(double(num_keys))) : 0.0f;
      }
      q_[set].Load(rows, scales, kLssar || HasUnitRows(args_));
    }
  }
  LSSAR_DEVICE static int WarpRow() { return WarpIdx() * kWarpRows; }
  // The thread's rows: t/4 and t/4 + 8 of each set of 16.
  LSSAR_DEVICE static int Row(int i) {
    return WarpRow() + i / 2 * 16 + LaneIdx() / 4 + 8 * (i % 2);
  }
  LSSAR_DEVICE size_t VectorIdx(int row) const {
    return (size_t(tile_.first_row + row) * size_t(args_.num_heads) + size_t(BlockY())) * kDim;
  }
  // Starts copies of a tile's rows. Keys that no row of the block attends to become zeros.
  // row_of(key): where a row lies.
  template <int kRowBytes, typename F>
  LSSAR_DEVICE void CopyRows(unsigned char* to, int stride, int tile, const F& row_of) const {
    constexpr int kPieces = kRowBytes / 16;
    LSSAR_NO_UNROLL
    for (int i = ThreadIdx(); i < kTileKeys * kPieces; i += kPrefillThreads) {
      const int at = i / kPieces, piece = i % kPieces, key = tile * kTileKeys + at;
      const bool valid = key < end_;
      const unsigned char* from = pages_.k;
      if (valid) from = row_of(key) + piece * 16;
      CopyAsync16(to + at * stride + piece * 16, from, valid);
    }
  }
  // The same of a whole tile in one page. `from`: its first row; kFromStride: to the next.
  template <int kRowBytes, int kFromStride, int kStride>
  LSSAR_DEVICE void CopyRowsOfPage(unsigned char* to, const unsigned char* from) const {
    constexpr int kPieces = kRowBytes / 16;
    LSSAR_UNROLL
    for (int first = 0; first < kTileKeys * kPieces; first += kPrefillThreads) {
      const int piece = first + ThreadIdx();
      if (piece >= kTileKeys * kPieces) break;
      CopyAsync16(to + piece / kPieces * kStride + piece % kPieces * 16,
                  from + piece / kPieces * kFromStride + piece % kPieces * 16, true);
    }
  }
  // The same for a tile of adjacent rows. `from`: the thread's first 16 bytes.
  template <int kStride>
  LSSAR_DEVICE void CopyAdjacentRows(unsigned char* to, const unsigned char* from) const {
    constexpr int kPieces = Memory::kRowBytes / 16;
    constexpr int kCount = kTileKeys * kPieces;
    const auto place_of = [](int piece) {
      return piece / kPieces * kStride + piece % kPieces * 16;
    };
    const int own_place = place_of(ThreadIdx());
    LSSAR_UNROLL
    for (int first = 0; first < kCount; first += kPrefillThreads) {
      const int piece = first + ThreadIdx();
      if (kCount % kPrefillThreads != 0 && piece >= kCount) break;
      const int place =
          kPrefillThreads % kPieces == 0 ? own_place + place_of(first) : place_of(piece);
      CopyAsync16(to + place, from + first * 16, true);
    }
  }
  LSSAR_DEVICE void CopyScales(float* to, int tile, bool values) const {
    if constexpr (E::kHasScales) {
      if (values && !E::Value::kHasScales) return;
      const int at = ThreadIdx() * 4, key = tile * kTileKeys + at;
      if (at >= kTileKeys) return;
      const bool valid = key < end_;  // 4 scales of a page; the last ones may be unused slots
      const void* from = pages_.k;
      if (valid) from = values ? pages_.ValueScale(key) : pages_.KeyScale(key);
      CopyAsync16(to + at, from, valid);
    }
  }
  // fx16. `from`: the low plane of the tile's first key, in the pool of V.
  LSSAR_DEVICE void CopyPageOfV(const unsigned char* from, int buffer, bool values) const {
    using Pages = PagedHead<E, kDim>;
    CopyRowsOfPage<Memory::kRowBytes, Pages::kSlotBytes, Memory::kKeyStride>(
        Memory::LowKeys(buffer), from);
    if (!values) return;
    CopyRowsOfPage<Memory::kValueRowBytes, Pages::kSlotBytes, Memory::kValueStride>(
        Memory::Values(buffer), from + Pages::kValueOffset);
  }
  LSSAR_DEVICE void StartTile(int tile, int buffer, bool values) const {
    if (tile < num_tiles_) {
      const int first = tile * kTileKeys;
      if (first + kTileKeys <= end_ && 1 << pages_.page_shift >= kTileKeys) {
        // The tile lies in one page.
        const size_t at =
            pages_.BlockAt(first) + size_t(unsigned(pages_.Slot(first))) * Memory::kRowBytes;
        CopyAdjacentRows<Memory::kKeyStride>(Memory::Keys(buffer), own_k_ + at);
        if constexpr (E::kTwoPlanes) {
          CopyPageOfV(pages_.LowPlane(first), buffer, values);
        } else {
          if (values) CopyAdjacentRows<Memory::kValueStride>(Memory::Values(buffer), own_v_ + at);
        }
      } else {
        CopyRows<Memory::kRowBytes>(Memory::Keys(buffer), Memory::kKeyStride, tile,
                                    [&](int key) { return pages_.Key(key); });
        if constexpr (E::kTwoPlanes) {
          CopyRows<Memory::kRowBytes>(Memory::LowKeys(buffer), Memory::kKeyStride, tile,
                                      [&](int key) { return pages_.LowPlane(key); });
        }
        if (values) {
          CopyRows<Memory::kValueRowBytes>(Memory::Values(buffer), Memory::kValueStride, tile,
                                           [&](int key) { return pages_.Value(key); });
        }
      }
      CopyScales(Memory::KeyScales(buffer), tile, false);
      if (values) CopyScales(Memory::ValueScales(buffer), tile, true);
    }
    CpAsyncCommitGroup();
  }

  LSSAR_DEVICE bool IsMasked(int tile) const {
    return (tile + 1) * kTileKeys > keys_of_all_ || (E::kTwoPlanes && has_short_rows_);
  }

  // The factor of dot products with key `at` of a tile.
  LSSAR_DEVICE float FactorOf(int buffer, int at, int row) const {
    float factor = kLssar ? 1.0f : q_[row / 2].inverse[row % 2];
    if (E::kHasScales) factor *= Memory::KeyScales(buffer)[at];
    return factor;
  }
  LSSAR_DEVICE bool Attends(int row, int tile, int at) const {
    return tile * kTileKeys + at < num_keys_[row];
  }

  // Dot products of 16 rows with 8 keys, from `at` on, to the scores of q's first part. kMasked:
  // -infinity for keys that a row does not attend to. row: the first of the thread's two.
  template <bool kMasked>
  LSSAR_DEVICE void ToFirstScores(int tile, int buffer, int at, int row, float (&c)[4]) const {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int of_thread = at + LaneIdx() % 4 * 2 + i % 2;
      if (E::kHasScales || !kLssar) c[i] *= FactorOf(buffer, of_thread, row + i / 2);
      if (kMasked && !Attends(row + i / 2, tile, of_thread)) c[i] = FloatOfBits(kMinusInfinity);
    }
  }
  // The same of the second part, added to the scores of the first.
  template <bool kMasked>
  LSSAR_DEVICE void AddSecondScores(int tile, int buffer, int at, int row, const float (&second)[4],
                                    float (&c)[4]) const {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int of_thread = at + LaneIdx() % 4 * 2 + i % 2;
      if (kMasked && !Attends(row + i / 2, tile, of_thread)) continue;
      c[i] = MulAdd(second[i], FactorOf(buffer, of_thread, row + i / 2), c[i]);
    }
  }

  // Tiles of blocks with short rows count as masked.
  template <bool kMasked>
  LSSAR_DEVICE bool IsShort(int row) const {
    return kMasked && has_short_rows_ && IsShortRow(num_keys_[row]);
  }

  // fx16. Dot products of 16 rows and the high plane of 8 keys, of q's high bytes and of its rests,
  // to scores; -infinity for keys that a row does not attend to.
  template <bool kMasked>
  LSSAR_DEVICE void ToHighScores(int tile, int buffer, int at, const int (&high)[4],
                                 const int (&rest)[4], float (&c)[4]) const {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int of_thread = at + LaneIdx() % 4 * 2 + i % 2;
      c[i] = q_[0].of_row[i / 2].HighScore(high[i], rest[i], Memory::KeyScales(buffer)[of_thread]);
      if (kMasked && !Attends(i / 2, tile, of_thread)) c[i] = FloatOfBits(kMinusInfinity);
    }
  }
  // The same with the low plane: adds its part to the scores of two sets of 8 keys, from `at` and
  // `next` on.
  template <bool kMasked>
  LSSAR_DEVICE void AddLowPlanes(int tile, int buffer, int at, int next, float (*c)[4]) const {
    unsigned b[2][kSteps][2];
    LoadLowKeys(buffer, at, b[0]);
    LoadLowKeys(buffer, next, b[1]);
    int high[2][4], rest[2][4] = {};
    DotPlane(q_[0].parts[0], b, high);
    if (kMasked && has_short_rows_) DotPlane(q_[0].parts[1], b, rest);
    LSSAR_UNROLL
    for (int set = 0; set < 2; ++set) {
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int of_thread = (set == 0 ? at : next) + LaneIdx() % 4 * 2 + i % 2;
        if (kMasked && !Attends(i / 2, tile, of_thread)) continue;
        const FixedRow<kDim>& row = q_[0].of_row[i / 2];
        const float key_scale = Memory::KeyScales(buffer)[of_thread];
        float& score = c[set][i];
        score = IsShort<kMasked>(i / 2)
                    ? row.WithAllOfLow(score, high[set][i], rest[set][i], key_scale)
                    : row.WithLow(score, high[set][i], key_scale);
      }
    }
  }
  // The bound of a key's score, from that of its high plane. All keys of short rows need both.
  template <bool kMasked>
  LSSAR_DEVICE float UpperBound(int buffer, int at, int row, float score) const {
    const float key_scale = Memory::KeyScales(buffer)[at];
    return IsShort<kMasked>(row) ? MulAdd(kAnyBound, key_scale, score)
                                 : q_[0].of_row[row].UpperBound(score, key_scale);
  }

  using RowSums = SplitParts[kThreadRows];

  LSSAR_DEVICE void FirstSweep() {
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      sums_[i] = 0;
      maxima_[i] = kLowestScore;
      lower_bounds_[i] = kLowestScore;
    }
    RowSums parts;
    StartTile(0, 0, false);
    for (int tile = 0; tile < num_tiles_; ++tile) {
      WaitForCopyGroups<0>();
      SyncBlock();  // the tile is there, and all warps are done with the one before
      StartTile(tile + 1, (tile + 1) % 2, false);
      if (tile * kTileKeys < warp_end_) {
        if (IsMasked(tile)) {
          ScoreTile<true>(tile, parts);
        } else {
          ScoreTile<false>(tile, parts);
        }
      }
      if (tile % kTilesOfSplit == kTilesOfSplit - 1 || tile == num_tiles_ - 1) {
        for (int i = 0; i < kThreadRows; ++i) sums_[i] += double(TakeTotal(parts[i]));
      }
    }
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) maxima_[i] = LargestOfQuad(maxima_[i]);
    WaitForCopyGroups<0>();
    SyncBlock();
  }

  template <bool kMasked>
  LSSAR_DEVICE void ScoreTile(int tile, RowSums& parts) {
    if constexpr (E::kTwoPlanes) {
      ScoreFixedTile<kMasked>(tile, parts);
    } else {
      ScoreStoredTile<kMasked>(tile, parts);
    }
  }
  template <bool kMasked>
  LSSAR_DEVICE void ScoreStoredTile(int tile, RowSums& parts) {
    const int buffer = tile % 2;
    float largest[kThreadRows];
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) largest[i] = kLowestScore;
    LSSAR_UNROLL
    for (int first = 0; first < 32; first += 4 * kScoreSets) {
      // Sets 32 keys apart have their sums in the same parts.
      unsigned b[kScoreSets][kSteps][2];
      LSSAR_UNROLL
      for (int set = 0; set < kScoreSets; ++set) LoadKeys(buffer, first + KeyOfSet(set), b[set]);
      LSSAR_UNROLL
      for (int rows = 0; rows < kRowSets; ++rows) {
        float c[kScoreSets][4];
        Dot<E>(q_[rows].parts[0], b, c);
        LSSAR_UNROLL
        for (int set = 0; set < kScoreSets; ++set) {
          ToFirstScores<kMasked>(tile, buffer, first + KeyOfSet(set), 2 * rows, c[set]);
        }
        if constexpr (kParts > 1) {
          if (!sums_first_part_) {
            float second[kScoreSets][4];
            Dot<E>(q_[rows].parts[1], b, second);
            LSSAR_UNROLL
            for (int set = 0; set < kScoreSets; ++set) {
              AddSecondScores<kMasked>(tile, buffer, first + KeyOfSet(set), 2 * rows, second[set],
                                       c[set]);
            }
          }
        }
        LSSAR_UNROLL
        for (int i = 0; i < 4 * kScoreSets; ++i) {
          const int set = i / 4, row = 2 * rows + i / 2 % 2;
          const float score = c[set][i % 4];
          parts[row].sums[(first + KeyOfSet(set)) / 8 % 4 * 2 + i % 2].Add(score);
          largest[row] = fmaxf(largest[row], score);
        }
      }
    }
    LSSAR_UNROLL
    for (int row = 0; row < kThreadRows; row += 2) {
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) maxima_[row + i] = fmaxf(maxima_[row + i], largest[row + i]);
      StoreMaxima(tile, row, largest[row], largest[row + 1]);
    }
  }
  // The same over fx16. Stores the maxima of the scores' upper bounds.
  template <bool kMasked>
  LSSAR_DEVICE void ScoreFixedTile(int tile, RowSums& parts) {
    const int buffer = tile % 2;
    float largest[2] = {kLowestScore, kLowestScore};
    LSSAR_UNROLL
    for (int first = 0; first < 32; first += 4 * kScoreSets) {
      unsigned b[kScoreSets][kSteps][2];
      LSSAR_UNROLL
      for (int set = 0; set < kScoreSets; ++set) LoadKeys(buffer, first + KeyOfSet(set), b[set]);
      int high[kScoreSets][4], rest[kScoreSets][4];
      DotPlane(q_[0].parts[0], b, high);
      DotPlane(q_[0].parts[1], b, rest);
      LSSAR_UNROLL
      for (int pair = 0; pair < kScoreSets; pair += 2) {
        float c[2][4];
        bool contends = false;  // for the row's largest score
        LSSAR_UNROLL
        for (int set = 0; set < 2; ++set) {
          const int at = first + KeyOfSet(pair + set);
          ToHighScores<kMasked>(tile, buffer, at, high[pair + set], rest[pair + set], c[set]);
          LSSAR_UNROLL
          for (int i = 0; i < 4; ++i) {
            const int row = i / 2, of_thread = at + LaneIdx() % 4 * 2 + i % 2;
            if (kMasked && !Attends(row, tile, of_thread)) continue;
            const float upper = UpperBound<kMasked>(buffer, of_thread, row, c[set][i]);
            const float lower =
                q_[0].of_row[row].LowerBound(c[set][i], Memory::KeyScales(buffer)[of_thread]);
            lower_bounds_[row] = fmaxf(lower_bounds_[row], lower);
            largest[row] = fmaxf(largest[row], upper);
            contends |= !(upper < lower_bounds_[row]);
          }
        }
        float whole[2][4];
        for (int i = 0; i < 8; ++i) whole[i / 4][i % 4] = c[i / 4][i % 4];
        if (Ballot(contends) != 0) {
          AddLowPlanes<kMasked>(tile, buffer, first + KeyOfSet(pair), first + KeyOfSet(pair + 1),
                                whole);
          LSSAR_UNROLL
          for (int i = 0; i < 8; ++i) {
            maxima_[i / 2 % 2] = fmaxf(maxima_[i / 2 % 2], whole[i / 4][i % 4]);
          }
        }
        LSSAR_UNROLL
        for (int i = 0; i < 8; ++i) {
          const int row = i / 2 % 2;
          parts[row].sums[(first + KeyOfSet(pair + i / 4)) / 8 % 4 * 2 + i % 2].Add(
              IsShort<kMasked>(row) ? whole[i / 4][i % 4] : c[i / 4][i % 4]);
        }
      }
    }
    LSSAR_UNROLL
    for (int row = 0; row < 2; ++row) lower_bounds_[row] = LargestOfQuad(lower_bounds_[row]);
    StoreMaxima(tile, 0, largest[0], largest[1]);
  }

  static constexpr int KeyOfSet(int set) { return set % 2 * 32 + set / 2 * 8; }
  LSSAR_DEVICE void LoadKeys(int buffer, int at, unsigned (&b)[kSteps][2]) const {
    const unsigned char* const key =
        Memory::Keys(buffer) + (at + LaneIdx() / 4) * Memory::kKeyStride;
    if constexpr (E::kTwoPlanes) {
      LoadPlane<kDim>(key, b);
    } else {
      LoadStored<E, kDim>(key, b);
    }
  }
  LSSAR_DEVICE void LoadLowKeys(int buffer, int at, unsigned (&b)[kSteps][2]) const {
    LoadPlane<kDim>(Memory::LowKeys(buffer) + (at + LaneIdx() / 4) * Memory::kKeyStride, b);
  }

  // Adjacent lanes take one of two rows each, then add what the other two lanes of the row have.
  LSSAR_DEVICE void StoreMaxima(int tile, int row, float first, float second) const {
    const bool is_second = LaneIdx() % 2 != 0;
    float own = is_second ? second : first;
    own = fmaxf(own, ShuffleXor(is_second ? first : second, 1));
    own = fmaxf(own, ShuffleXor(own, 2));
    if (LaneIdx() % 4 > 1) return;
    const int entry = tile >> entry_shift_;
    float& maximum = Memory::Maximum(entry, Row(row + LaneIdx() % 2));
    maximum = tile == entry << entry_shift_ ? own : fmaxf(maximum, own);
  }

  // Finds each row's rule and the tiles that may hold a non-zero weight of some row.
  LSSAR_DEVICE void Reduce() {
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      if (num_keys_[i] > 0) rules_[i] = ReduceRow(args_, num_keys_[i], maxima_[i], sums_[i]);
      if (E::kTwoPlanes && num_keys_[i] > 0) {
        const WeightRule low = LowRule(args_, num_keys_[i],
                                       ReduceRow(args_, num_keys_[i], lower_bounds_[i], sums_[i]));
        rules_[i] = RefinedRule(num_keys_[i], low, rules_[i]);
      }
      least_first_[i] = rules_[i].least;
      if (kParts > 1 && !E::kTwoPlanes && num_keys_[i] > 0) {
        least_first_[i] -= SecondPartBound(RowScale(args_, log(double(num_keys_[i]))));
      }
      if (!kLssar) continue;
      // The largest weight becomes 2^8 to 2^15, near the top of fp16's range.
      const float scale = float(1u << 15u / args_.whole_p);
      rules_[i].gain *= scale;
      rules_[i].offset *= scale;
    }
    if (ThreadIdx() < Memory::kMaxTileMaxima / 32) Memory::Alive()[ThreadIdx()] = 0;
    SyncBlock();
    for (int entry = 0; entry << entry_shift_ < num_tiles_; ++entry) {
      bool alive = false;
      if ((entry << entry_shift_) * kTileKeys < warp_end_) {
        LSSAR_UNROLL
        for (int i = 0; i < kThreadRows; ++i) {
          // With a NaN in the row, `least` is NaN, and every tile counts.
          alive |= !(Memory::Maximum(entry, Row(i)) < least_first_[i]);
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
      const int entry = tile >> entry_shift_;
      if ((Memory::Alive()[entry / 32] >> (entry % 32) & 1) != 0) return tile;
    }
    return num_tiles_;
  }

  LSSAR_DEVICE void SecondSweep() {
    for (int n = 0; n < Memory::kTotalPieces; ++n) Memory::Totals(n) = {};
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      weight_sums_[i] = 0;
      if (i % 2 == 0) split_[i / 2].Clear();
    }
    int num_read = 0, num_read_of_split = 0;
    int buffer = 0;
    int tile = NextAlive(0);
    bool is_guarded = false;  // the split is computed again, for values that are not finite
    StartTile(tile, buffer, true);
    while (tile < num_tiles_) {
      const int next = NextAlive(tile + 1);
      WaitForCopyGroups<0>();
      SyncBlock();  // the tile is there, and all warps are done with the one before
      StartTile(next, 1 - buffer, true);
      if constexpr (E::Value::kHasScales) {
        WidenTile(buffer);
        SyncBlock();
      }
      if (tile * kTileKeys < warp_end_) {
        num_read_of_split += IsMasked(tile) || is_guarded ? WeighTile<true>(tile, buffer)
                                                          : WeighTile<false>(tile, buffer);
      }
      const int closed_split = tile / kTilesOfSplit;
      const bool closes = next == num_tiles_ || next / kTilesOfSplit != closed_split;
      tile = next;
      buffer = 1 - buffer;
      if (!closes) continue;
      if (!is_guarded && SyncBlockOr(IsSpoiled())) {
        is_guarded = true;
        num_read_of_split = 0;
        LSSAR_UNROLL
        for (int set = 0; set < kRowSets; ++set) split_[set].Clear();
        WaitForCopyGroups<0>();
        SyncBlock();  // the copy of the next split's tile is there, and is overwritten
        tile = NextAlive(closed_split * kTilesOfSplit);
        StartTile(tile, buffer, true);
        continue;
      }
      CloseSplit();
      num_read += num_read_of_split;
      num_read_of_split = 0;
      is_guarded = false;
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

  // Scores of 16 rows from q's first part, or from the high plane, of sets of 8 keys.
  template <bool kMasked>
  LSSAR_DEVICE void FirstScores(int tile, int buffer, int first, int rows,
                                const unsigned (&b)[kWeighSets][kSteps][2],
                                float (&c)[kWeighSets][4]) const {
    if constexpr (E::kTwoPlanes) {
      int high[kWeighSets][4], rest[kWeighSets][4];
      DotPlane(q_[0].parts[0], b, high);
      DotPlane(q_[0].parts[1], b, rest);
      LSSAR_UNROLL
      for (int set = 0; set < kWeighSets; ++set) {
        ToHighScores<kMasked>(tile, buffer, first + set * 8, high[set], rest[set], c[set]);
      }
    } else {
      Dot<E>(q_[rows].parts[0], b, c);
      LSSAR_UNROLL
      for (int set = 0; set < kWeighSets; ++set) {
        ToFirstScores<kMasked>(tile, buffer, first + set * 8, 2 * rows, c[set]);
      }
    }
  }

  // Results of MMAs, scores of the thread's rows `row` and row + 1, to an A operand: weights times
  // a scale of the row. A masked key has the score -infinity: its weight is 0, with softmax too.
  template <int kSets>
  LSSAR_DEVICE void Weigh(int row, const float (*scores)[4], unsigned* a, int* num_weights) const {
    float weights[4 * kSets];
    LSSAR_UNROLL
    for (int i = 0; i < 4 * kSets; ++i) {
      const WeightRule& rule = rules_[row + i / 2 % 2];
      const float score = scores[i / 4][i % 4];
      weights[i] = kLssar ? MulAdd(rule.gain, Softplus(score), -rule.offset)
                          : WeightOf(args_, rule, score) * rule.scale;
    }
    if (kLssar) WholePowers(args_.whole_p, weights);
    LSSAR_UNROLL
    for (int i = 0; i < 4 * kSets; ++i) {
      if (kLssar && scores[i / 4][i % 4] < rules_[row + i / 2 % 2].least) weights[i] = 0;
      if (!kCountsCandidates) AddIf(weights[i] != 0, num_weights);
    }
    LSSAR_UNROLL
    for (int i = 0; i < 2 * kSets; ++i) a[i] = F16Pair(weights[2 * i], weights[2 * i + 1]);
  }

  // Returns the number of non-zero weights of this thread.
  template <bool kMasked>
  LSSAR_DEVICE int WeighTile(int tile, int buffer) {
    constexpr int kStride = E::Value::kHasScales ? Memory::kWideStride : Memory::kValueStride;
    const unsigned char* values = E::Value::kHasScales ? Memory::Wide() : Memory::Values(buffer);
    int num_weights = 0;
    LSSAR_NO_UNROLL
    for (int first = 0; first < kTileKeys; first += 8 * kWeighSets) {
      unsigned b[kWeighSets][kSteps][2];
      LSSAR_UNROLL
      for (int set = 0; set < kWeighSets; ++set) LoadKeys(buffer, first + set * 8, b[set]);
      LSSAR_UNROLL
      for (int rows = 0; rows < kRowSets; ++rows) {
        float c[kWeighSets][4];
        FirstScores<kMasked>(tile, buffer, first, rows, b, c);
        LSSAR_UNROLL
        for (int set = 0; set < kWeighSets; set += 2) {
          bool any = false;
          int num_candidates = 0;
          LSSAR_UNROLL
          for (int i = 0; i < 8; ++i) {
            float most = c[set + i / 4][i % 4];
            if constexpr (E::kTwoPlanes) {
              const int at = first + (set + i / 4) * 8 + LaneIdx() % 4 * 2 + i % 2;
              most = UpperBound<kMasked>(buffer, at, i / 2 % 2, most);
            }
            const bool is_candidate = !(most < least_first_[2 * rows + i / 2 % 2]);
            any |= is_candidate;
            if (kCountsCandidates) AddIf(is_candidate, &num_candidates);
          }
          if (Ballot(any) == 0) continue;
          num_weights += num_candidates;
          const int group = first + set * 8;
          float second[2][4];
          if constexpr (E::kTwoPlanes) {
            AddLowPlanes<kMasked>(tile, buffer, group, group + 8, c + set);
          } else if constexpr (kParts > 1) {
            Dot<E>(q_[rows].parts[1], b + set, second);
          }
          unsigned a[4];
          LSSAR_UNROLL
          for (int i = 0; i < 2; i += kSetsAtOnce) {
            if constexpr (kParts > 1 && !E::kTwoPlanes) {
              AddSecondScores<kMasked>(tile, buffer, group + i * 8, 2 * rows, second[i],
                                       c[set + i]);
            }
            Weigh<kSetsAtOnce>(2 * rows, c + set + i, a + 2 * i, &num_weights);
          }
          split_[rows].template Add<kMasked>(a, values + group * kStride, kStride);
        }
      }
    }
    return num_weights;
  }

  // Whether a sum of the split is not finite: a weight of zero may have met an infinite value,
  // which the row does not attend to.
  LSSAR_DEVICE bool IsSpoiled() const {
    float zero = 0;
    LSSAR_UNROLL
    for (int set = 0; set < kRowSets; ++set) {
      LSSAR_UNROLL
      for (int i = 0; i < kDim / 2; ++i) {
        zero = MulAdd(split_[set].values[i / 4][i % 4], 0.0f, zero);
      }
    }
    return !(zero == 0);
  }

  // Adds the sums of a split to those of earlier splits.
  LSSAR_DEVICE void CloseSplit() {
    LSSAR_UNROLL
    for (int rows = 0; rows < kRowSets; ++rows) {
      ValueSums<E, kDim>& sums = split_[rows];
      LSSAR_UNROLL
      for (int n = 0; n < kDim / 8; ++n) {
        Floats4& place = Memory::Totals(rows * (kDim / 8) + n);
        Floats4 totals = place;
        LSSAR_UNROLL
        for (int i = 0; i < 4; ++i) totals.x[i] += sums.values[n][i];
        place = totals;
      }
      // Every column of weights times ones holds the sum.
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) weight_sums_[2 * rows + i] += double(sums.weights[2 * i]);
      sums.Clear();
    }
  }

  LSSAR_DEVICE void Finish() const {
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      if (num_keys_[i] == 0 || rules_[i].rule == WeightKind::kFlat) continue;
      const float inverse = float(1.0 / weight_sums_[i]);
      float* out = args_.out + VectorIdx(Row(i)) + LaneIdx() % 4 * 2;
      for (int n = 0; n < kDim / 8; ++n) {
        const Floats4& totals = Memory::Totals(i / 2 * (kDim / 8) + n);
        out[n * 8] = totals.x[i % 2 * 2] * inverse;
        out[n * 8 + 1] = totals.x[i % 2 * 2 + 1] * inverse;
      }
    }
  }

  LSSAR_DEVICE void AttendFlatRows() const {
    LSSAR_UNROLL
    for (int i = 0; i < kThreadRows; ++i) {
      // One of the four lanes that share a row.
      const bool is_flat = rules_[i].rule == WeightKind::kFlat && LaneIdx() % 4 == 0;
      for (unsigned left = Ballot(is_flat); left != 0; left &= left - 1) {
        const int row = WarpRow() + i / 2 * 16 + LowestBit(left) / 4 + 8 * (i % 2);
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
  const bool sums_first_part_;
  const bool has_short_rows_;            // fx16
  const unsigned char *own_k_, *own_v_;  // of the head, plus the thread's 16 bytes of a tile
  // The warp's last row attends to keys before warp_end_; all of its rows attend to keys before
  // keys_of_all_.
  int warp_end_ = 0;
  int keys_of_all_ = 0;
  int entry_shift_ = 0;  // an entry of tile maxima stands for 2^entry_shift_ tiles
  Queries q_[kRowSets];
  // State of the thread's rows; the four threads of a row hold equal values.
  int num_keys_[kThreadRows];
  double sums_[kThreadRows];
  float maxima_[kThreadRows];
  float lower_bounds_[kThreadRows];  // fx16: the largest lower bound of a score
  WeightRule rules_[kThreadRows];    // kLssar: gain and offset are times a power of two
  float least_first_[kThreadRows];   // the same for the score of q's first part
  double weight_sums_[kThreadRows];
  ValueSums<E, kDim> split_[kRowSets];
};

template <typename E, int kDim, bool kLssar, int kRowSets>
LSSAR_KERNEL(kPrefillThreads)
PrefillTiles(LSSAR_ARGS(CudaAttentionArgs) args) {
  WaitForPreviousKernel();
  Prefill<E, kDim, kLssar, kRowSets>(args).Run();
}

// Kernels take long to compile, so only the usual head dimensions have those of LSSAR.
constexpr bool HasLssarKernel(int dim) { return dim == 64 || dim == 128; }

}  // namespace

size_t PrefillMemory(DType dtype, int head_dim, bool is_wide) {
  return MemoryOf(dtype, head_dim, [&]<typename E, int kDim>() {
    return size_t(is_wide ? TileMemory<E, kDim, 2>::kBytes : TileMemory<E, kDim, 1>::kBytes);
  });
}

namespace {

template <typename E, int kDim, bool kLssar, int kRowSets>
int StartTiles(const CudaAttentionArgs& args, void* stream) {
  using Memory = TileMemory<E, kDim, kRowSets>;
  return Launch({.num_blocks_x = args.num_tiles * (args.tile_rows / Memory::kRows),
                 .num_blocks_y = args.num_heads,
                 .num_threads = kPrefillThreads,
                 .shared_bytes = Memory::kBytes,
                 .overlaps_previous = true},
                stream, &PrefillTiles<E, kDim, kLssar, kRowSets>, args);
}

template <typename E, int kDim>
int StartLssar(const CudaAttentionArgs& args, void* stream) {
  // Registers of a thread hold two sets of rows at head_dim 64, of one plane.
  if constexpr (kDim == 64 && !E::kTwoPlanes) {
    if (args.has_wide_blocks && args.tile_rows == TileMemory<E, kDim, 2>::kRows) {
      return StartTiles<E, kDim, true, 2>(args, stream);
    }
  }
  return StartTiles<E, kDim, true, 1>(args, stream);
}

}  // namespace

int StartPrefill(const CudaAttentionArgs& args, DType dtype, void* stream) {
  return WithElementAndDim(dtype, args.pages.head_dim, [&]<typename E, int kDim>() {
    if constexpr (HasLssarKernel(kDim)) {
      if (!args.is_batch_invariant && args.form.reweights && args.form.is_length_scaled &&
          args.whole_p >= 3 && args.whole_p <= 15) {
        return StartLssar<E, kDim>(args, stream);
      }
    }
    return StartTiles<E, kDim, false, 1>(args, stream);
  });
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Score and Weigh of decode attention: one warp computes one split of one row.
#ifndef LSSAR_KERNELS_CUDA_DECODE_SPLIT_CUH_
#define LSSAR_KERNELS_CUDA_DECODE_SPLIT_CUH_

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_args.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/paged_head.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {

// Keys of V in one MMA; also the smallest page size.
inline constexpr int kGroupKeys = 16;
inline constexpr int kGroupsOfSplit = kCudaSplitKeys / kGroupKeys;
inline constexpr int kKeysOfLane = kCudaSplitKeys / kWarpThreads;

constexpr int LargerOf(int a, int b) { return a > b ? a : b; }

// Shared memory of one warp.
template <typename E, int kDim>
struct WarpMemory {
  static constexpr int kRowBytes = kDim * E::kBytes;
  static constexpr int kStages = 4;
  // As many keys as make about 4 KiB a stage.
  static constexpr int kStageKeys = kRowBytes <= 128 ? 32 : 16;
  static constexpr int kScaleBytes = E::kHasScales ? int(sizeof(float)) : 0;
  static constexpr int kKeyStageBytes = kStageKeys * (kRowBytes + kScaleBytes);
  static constexpr int kValueRowBytes = kDim * E::Value::kBytes;
  // 16 bytes more than a row, so that 8 adjacent rows start in different banks.
  static constexpr int kValueStride = kValueRowBytes + 16;
  static constexpr int kValueScaleBytes = E::Value::kHasScales ? int(sizeof(float)) : 0;
  static constexpr int kValueStageBytes = kGroupKeys * (kValueStride + kValueScaleBytes);
  static constexpr int kWideStride = kDim * 2 + 16;
  static constexpr int kWideBytes = E::Value::kHasScales ? kGroupKeys * kWideStride : 0;
  // Low planes of a group of keys and the keys' scales.
  static constexpr int kLowStride = KeyStride(kDim);
  static constexpr int kLowStageBytes =
      E::kTwoPlanes ? kGroupKeys * (kLowStride + int(sizeof(float))) : 0;
  static constexpr int kStageBytes =
      LargerOf(LargerOf(kKeyStageBytes, kValueStageBytes), kLowStageBytes);

  static constexpr int kBarriers = 0;  // [kStages], 8 bytes each
  static constexpr int kSurvivors = kBarriers + kStages * 8;
  static constexpr int kGathered = kSurvivors + kCudaSplitKeys / 8;
  static constexpr int kWide = kGathered + kCudaSplitKeys;
  static constexpr int kStage = kWide + kWideBytes;
  static constexpr int kWeights = (kStage + kStages * kStageBytes + 127) / 128 * 128;
  static_assert(kCudaSplitKeys <= 256 && kWide % 16 == 0 && kHeadWeightBytes % 128 == 0);
  static constexpr int NumBytes(int num_heads) {
    return kWeights + num_heads * int(kHeadWeightBytes);
  }

  unsigned char* base;

  LSSAR_DEVICE uint64_t* Barrier(int i) const {
    return reinterpret_cast<uint64_t*>(base + kBarriers) + i;
  }
  // Bit `key` of the split: its weight in some head is not zero, or may not be.
  LSSAR_DEVICE unsigned* Survivors() const {
    return reinterpret_cast<unsigned*>(base + kSurvivors);
  }
  LSSAR_DEVICE bool Survives(int key) const {
    return (Survivors()[key / kWarpThreads] >> (key % kWarpThreads) & 1) != 0;
  }
  // Keys of the split whose values are gathered, in order.
  LSSAR_DEVICE unsigned char* Gathered() const { return base + kGathered; }
  // fp16; of all keys, later of those that are gathered, with zeros after the last.
  LSSAR_DEVICE uint16_t* Weights(int head) const {
    return reinterpret_cast<uint16_t*>(base + kWeights) + head * kCudaSplitKeys;
  }
  LSSAR_DEVICE unsigned char* Wide() const { return base + kWide; }
  LSSAR_DEVICE unsigned char* KeyStage(int i) const { return base + kStage + i * kKeyStageBytes; }
  LSSAR_DEVICE float* KeyScales(int i) const {
    return reinterpret_cast<float*>(KeyStage(i) + kStageKeys * kRowBytes);
  }
  LSSAR_DEVICE unsigned char* ValueStage(int i) const {
    return base + kStage + i * kValueStageBytes;
  }
  LSSAR_DEVICE float* ValueScales(int i) const {
    return reinterpret_cast<float*>(ValueStage(i) + kGroupKeys * kValueStride);
  }
  LSSAR_DEVICE unsigned char* LowStage(int i) const { return base + kStage + i * kLowStageBytes; }
  LSSAR_DEVICE float* LowScales(int i) const {
    return reinterpret_cast<float*>(LowStage(i) + kGroupKeys * kLowStride);
  }
};

// Copies keys to a warp's shared memory, some stages ahead of their use. kBulk: bulk copies by the
// copy engine, of contiguous keys of a page, issued by one lane and completed on a barrier.
// Otherwise each lane copies pieces of 16 bytes.
template <typename E, int kDim, bool kBulk>
class KeyStream {
 public:
  using Memory = WarpMemory<E, kDim>;

  LSSAR_DEVICE explicit KeyStream(const Memory& memory) : memory_(memory) {
    if (!kBulk) return;
    if (LaneIdx() == 0) {
      for (int i = 0; i < Memory::kStages; ++i) InitBarrier(memory_.Barrier(i), 1);
      FenceBarrierInit();
    }
    SyncWarp();
  }

  // Starts copies of keys [first, first + kStageKeys) that lie before `end`.
  LSSAR_DEVICE void Start(const PagedHead<E, kDim>& pages, int first, int end) {
    const int stage = num_started_ % Memory::kStages;
    ++num_started_;
    const int stage_end = first + Memory::kStageKeys;
    // Whole groups: slots after the last key are memory of the same page.
    for (int key = first; key < stage_end && key < end;) {
      const int run =
          pages.RunLength(key) < stage_end - key ? pages.RunLength(key) : stage_end - key;
      CopyRun(pages, key, run, stage, key - first);
      key += run;
    }
    if (!kBulk) {
      CpAsyncCommitGroup();
    } else if (LaneIdx() == 0) {
      Arrive(memory_.Barrier(stage));
    }
  }

  // Replaces Start where no keys are left: Wait counts the copy groups issued after its stage.
  LSSAR_DEVICE void Skip() {
    if (!kBulk) CpAsyncCommitGroup();
  }

  // Waits for the oldest pending stage and returns its index. Synchronises the warp.
  LSSAR_DEVICE int Wait() {
    const int stage = num_taken_ % Memory::kStages;
    if (kBulk) {
      WaitForBarrier(memory_.Barrier(stage), unsigned(num_taken_ / Memory::kStages % 2));
    } else {
      WaitForCopyGroups<Memory::kStages - 1>();
    }
    ++num_taken_;
    SyncWarp();
    return stage;
  }

  // Requires  Wait was called for every stage
  // Ensures   no copy is in flight
  LSSAR_DEVICE void Drain() {
    if (!kBulk) WaitForCopyGroups<0>();
    SyncWarp();
  }

 private:
  LSSAR_DEVICE void CopyRun(const PagedHead<E, kDim>& pages, int key, int run, int stage, int at) {
    unsigned char* to = memory_.KeyStage(stage) + at * Memory::kRowBytes;
    Copy(to, pages.Key(key), run * Memory::kRowBytes, stage);
    if constexpr (E::kHasScales) {
      Copy(memory_.KeyScales(stage) + at, pages.KeyScale(key), run * int(sizeof(float)), stage);
    }
  }

  LSSAR_DEVICE void Copy(void* to, const void* from, int num_bytes, int stage) {
    if constexpr (kBulk) {
      if (LaneIdx() != 0) return;
      ExpectBytes(memory_.Barrier(stage), unsigned(num_bytes));
      BulkCopy(to, from, unsigned(num_bytes), memory_.Barrier(stage));
    } else {
      for (int at = LaneIdx() * 16; at < num_bytes; at += kWarpThreads * 16) {
        CopyAsync16(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, true);
      }
    }
  }

  Memory memory_;
  int num_started_ = 0;
  int num_taken_ = 0;
};

struct SplitStats {
  double sum = 0;  // of softplus scores; of no use for softmax
  float max = kLowestScore;
};

// The query vectors of heads as the A operand: the first part of head h is row h, its second part
// row h + 8. So one MMA multiplies both.
template <typename E, int kDim>
struct HeadQueries {
  static constexpr int kSteps = kDim / 16;
  using Sums = float[4];
  unsigned a[kSteps][4];
  float inverse;  // of the power of two of head lane / 4

  // scale: of the row's scores (RowScale). All lanes of the warp.
  LSSAR_DEVICE void Load(const RowWork<E, kDim>& work, float scale) {
    const int head = LaneIdx() / 4;
    const float* const row =
        head < work.num_heads ? work.args.q + work.vector_idx + size_t(head * kDim) : nullptr;
    ScaledRow<E, kDim> scaled;
    scaled.Load(row, scale, HasUnitRows(work.args));
    inverse = scaled.inverse;
    LSSAR_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const int dim = DimOfStep<kDim>(step, LaneIdx() % 4);
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        unsigned parts[2];
        scaled.Split(dim + 2 * i, parts);
        a[step][2 * i] = parts[0];
        a[step][2 * i + 1] = parts[1];
      }
    }
  }
};

// The same in 16-bit fixed point: the high bytes of head h are row h, the rests row h + 8.
template <int kDim>
struct HeadQueries<Fx16Element, kDim> {
  static constexpr int kSteps = kByteSteps<kDim>;
  using Sums = int[4];
  unsigned a[kSteps][4];
  FixedRow<kDim> row;  // of head lane / 4

  LSSAR_DEVICE void Load(const RowWork<Fx16Element, kDim>& work, float scale) {
    const int head = LaneIdx() / 4;
    LSSAR_UNROLL
    for (int i = 0; i < 4 * kSteps; ++i) a[i / 4][i % 4] = 0;
    row.Load(head < work.num_heads ? work.args.q + work.vector_idx + size_t(head * kDim) : nullptr,
             scale, [&](int step, int word, const unsigned(&parts)[2]) {
               a[step][2 * word] = parts[0];
               a[step][2 * word + 1] = parts[1];
             });
  }
};

// Stages of keys that a split has.
template <typename E, int kDim>
LSSAR_DEVICE int NumStages(int num_keys, int split) {
  constexpr int kStageKeys = WarpMemory<E, kDim>::kStageKeys;
  const int first = split * kCudaSplitKeys;
  const int end = num_keys < first + kCudaSplitKeys ? num_keys : first + kCudaSplitKeys;
  return (end - first + kStageKeys - 1) / kStageKeys;
}

// Starts the copies of stage i of a split, if it has that stage.
template <typename E, int kDim, bool kBulk>
LSSAR_DEVICE void StartStage(const RowWork<E, kDim>& work, KeyStream<E, kDim, kBulk>& stream,
                             int split, int i) {
  if (i < NumStages<E, kDim>(work.num_keys, split)) {
    const int first = split * kCudaSplitKeys, last = first + kCudaSplitKeys;
    stream.Start(work.pages, first + i * WarpMemory<E, kDim>::kStageKeys,
                 work.num_keys < last ? work.num_keys : last);
  } else {
    stream.Skip();
  }
}

// Starts the first copies of a split. Before the query is loaded: memory is busy meanwhile.
template <typename E, int kDim, bool kBulk>
LSSAR_DEVICE void StartSplit(const RowWork<E, kDim>& work, KeyStream<E, kDim, kBulk>& stream,
                             int split) {
  for (int i = 0; i < WarpMemory<E, kDim>::kStages - 1; ++i) StartStage(work, stream, split, i);
}

// Lists the keys of a split that are marked in Survivors(), in order; unless `compacts`, all keys
// of groups of 16 that hold one, as prefill adds them. Returns how many there are.
template <typename E, int kDim>
LSSAR_DEVICE int ListKeys(const WarpMemory<E, kDim>& memory, bool compacts) {
  const int lane = LaneIdx();
  int count = 0;
  LSSAR_UNROLL
  for (int i = 0; i < kKeysOfLane; ++i) {
    unsigned listed = memory.Survivors()[i];
    if (!compacts) {
      listed = ((listed & 0xFFFF) != 0 ? 0xFFFFu : 0) | ((listed >> 16) != 0 ? 0xFFFF0000u : 0);
    }
    if ((listed >> lane & 1) != 0) {
      memory.Gathered()[count + CountBits(listed & ((1u << lane) - 1))] =
          static_cast<unsigned char>(i * kWarpThreads + lane);
    }
    count += CountBits(listed);
  }
  SyncWarp();
  return count;
}

// For each group of 16 of `count` listed keys, in order: use(group, stage), while the copies of the
// next groups are on their way. gather(group, stage): starts those of a group.
template <int kStages, typename F, typename G>
LSSAR_DEVICE void ForEachGroup(int count, const F& gather, const G& use) {
  const int num_groups = (count + kGroupKeys - 1) / kGroupKeys;
  int num_gathered = 0;
  const auto gather_next = [&] {
    if (num_gathered < num_groups) gather(num_gathered, num_gathered % kStages);
    ++num_gathered;
    CpAsyncCommitGroup();
  };
  for (int i = 0; i < kStages - 1; ++i) gather_next();
  for (int group = 0; group < num_groups; ++group) {
    gather_next();
    WaitForCopyGroups<kStages - 1>();
    SyncWarp();
    use(group, group % kStages);
    SyncWarp();
  }
  WaitForCopyGroups<0>();
}

// Starts copies of the low planes of 16 listed keys, and of the keys' scales.
template <typename E, int kDim>
LSSAR_DEVICE void GatherLow(const RowWork<E, kDim>& work, const WarpMemory<E, kDim>& memory,
                            int first_key, int group, int count, int stage) {
  using Memory = WarpMemory<E, kDim>;
  constexpr int kPieces = kDim / 16;
  const auto key_at = [&](int at) { return first_key + memory.Gathered()[at < count ? at : 0]; };
  LSSAR_UNROLL
  for (int i = LaneIdx(); i < kGroupKeys * kPieces; i += kWarpThreads) {
    const int at = group * kGroupKeys + i / kPieces, piece = i % kPieces;
    CopyAsync16(memory.LowStage(stage) + i / kPieces * Memory::kLowStride + piece * 16,
                work.pages.LowPlane(key_at(at)) + piece * 16, at < count);
  }
  if (LaneIdx() >= kGroupKeys) return;
  const int at = group * kGroupKeys + LaneIdx();
  CopyAsync4(memory.LowScales(stage) + LaneIdx(), work.pages.KeyScale(key_at(at)), at < count);
}

// Adds the low plane's part to the scores of the listed keys, in all heads. Returns the largest of
// them in head lane / 4.
template <bool kGrouped, typename E, int kDim>
LSSAR_DEVICE float AddLowPlanes(const RowWork<E, kDim>& work, const HeadQueries<E, kDim>& q,
                                const WarpMemory<E, kDim>& memory, int first_key, int count,
                                float* scores, int head_stride) {
  using Memory = WarpMemory<E, kDim>;
  const int lane = LaneIdx(), head = lane / 4;
  const bool has_head = head < (kGrouped ? work.num_heads : 1);
  const bool is_short = IsShortRow(work.num_keys);
  float* const of_head = scores + (kGrouped && has_head ? head * head_stride : 0);
  float max = kLowestScore;
  const auto gather = [&](int group, int stage) {
    GatherLow(work, memory, first_key, group, count, stage);
  };
  ForEachGroup<Memory::kStages>(count, gather, [&](int group, int stage) {
    unsigned b[2][kByteSteps<kDim>][2];
    LSSAR_UNROLL
    for (int set = 0; set < 2; ++set) {
      LoadPlane<kDim>(memory.LowStage(stage) + (set * 8 + lane / 4) * Memory::kLowStride, b[set]);
    }
    int c[2][4];
    DotPlane(q.a, b, c);
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int at = i / 2 * 8 + lane % 4 * 2 + i % 2, place = group * kGroupKeys + at;
      if (!has_head || place >= count) continue;
      float& score = of_head[memory.Gathered()[place]];
      const int high = c[i / 2][i % 2], rest = c[i / 2][2 + i % 2];
      const float key_scale = memory.LowScales(stage)[at];
      score = is_short ? q.row.WithAllOfLow(score, high, rest, key_scale)
                       : q.row.WithLow(score, high, key_scale);
      max = fmaxf(max, score);
    }
  });
  return LargestOfQuad(max);
}

// The sum of a short row's softplus scores in head lane / 4, as ScoreSplit adds them up.
template <bool kGrouped, typename E, int kDim>
LSSAR_DEVICE double SumOfShortRow(const RowWork<E, kDim>& work, const float* scores,
                                  int head_stride) {
  const int lane = LaneIdx(), head = lane / 4;
  const bool has_head = head < (kGrouped ? work.num_heads : 1);
  const float* const of_head = scores + (kGrouped && has_head ? head * head_stride : 0);
  SplitParts parts;
  for (int first = 0; first < work.num_keys; first += 32) {
    LSSAR_UNROLL
    for (int i = 0; i < 8; ++i) {  // of 4 sets of 8 keys
      const int key = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
      parts.sums[i].Add(key < work.num_keys ? of_head[key] : FloatOfBits(kMinusInfinity));
    }
  }
  return double(TakeTotal(parts));
}

// Refine (fx16): replaces the scores of a split's candidates, which are those of the high plane, by
// those of both planes. Candidates are the keys whose score may be at least `least`, which is of
// head LaneIdx(), or of the only head; of short rows, all keys. For head lane / 4: the largest of
// these scores, and the sum of a short row.
template <bool kGrouped, typename E, int kDim>
LSSAR_DEVICE SplitStats RefineSplit(const RowWork<E, kDim>& work, const HeadQueries<E, kDim>& q,
                                    float least, const WarpMemory<E, kDim>& memory, int split,
                                    float* scores, int head_stride) {
  const int lane = LaneIdx(), first = split * kCudaSplitKeys;
  const int num_heads = kGrouped ? work.num_heads : 1;
  const bool is_short = IsShortRow(work.num_keys);
  float scales[kKeysOfLane];
  LSSAR_UNROLL
  for (int i = 0; i < kKeysOfLane; ++i) {
    const int key = first + lane + i * kWarpThreads;
    scales[i] = key < work.num_keys ? *work.pages.KeyScale(key) : 0.0f;
  }
  for (int head = 0; head < num_heads; ++head) {
    const float bound = Shuffle(q.row.bound, 4 * head);
    const float least_of_head = kGrouped ? Shuffle(least, head) : least;
    LSSAR_UNROLL
    for (int i = 0; i < kKeysOfLane; ++i) {
      const int at = lane + i * kWarpThreads;
      const bool is_candidate =
          first + at < work.num_keys &&
          (is_short ||
           !(MulAdd(bound, scales[i], scores[head * head_stride + at]) < least_of_head));
      const unsigned candidates = Ballot(is_candidate);
      if (lane == 0) {
        memory.Survivors()[i] = head == 0 ? candidates : memory.Survivors()[i] | candidates;
      }
    }
  }
  SyncWarp();
  const int count = ListKeys(memory, /*compacts=*/true);
  SplitStats stats;
  stats.max = AddLowPlanes<kGrouped>(work, q, memory, first, count, scores, head_stride);
  SyncWarp();
  if (is_short) stats.sum = SumOfShortRow<kGrouped>(work, scores, head_stride);
  return stats;
}

// Score: reads K of one split once, for all heads of the row. Over fx16: the high plane, and the
// maximum is that of the scores' lower bounds.
// Requires  StartSplit was called for the split, and for no other since the last ScoreSplit
// scores[h * head_stride + i]: the score of key split * kCudaSplitKeys + i, in shared or device
// memory; not written after the row's last key. store(h, stats): called by one lane of each head.
// kGrouped: there may be several heads.
template <bool kGrouped, typename E, int kDim, bool kBulk, typename F>
LSSAR_DEVICE void ScoreSplit(const RowWork<E, kDim>& work, const HeadQueries<E, kDim>& q,
                             KeyStream<E, kDim, kBulk>& stream, const WarpMemory<E, kDim>& memory,
                             int split, float* scores, int head_stride, const F& store) {
  using Memory = WarpMemory<E, kDim>;
  constexpr int kSets = Memory::kStageKeys / 8;
  const int lane = LaneIdx(), head = lane / 4;
  const int first = split * kCudaSplitKeys;
  const int last = first + kCudaSplitKeys;
  const int end = work.num_keys < last ? work.num_keys : last;
  const bool has_head = head < (kGrouped ? work.num_heads : 1);
  const bool sums_first_part = SumsFirstPart(work.args);
  const int num_stages = NumStages<E, kDim>(work.num_keys, split);
  float* const of_head = scores + (kGrouped && has_head ? head * head_stride : 0);
  SplitParts parts;
  float max = kLowestScore;

  // Scores of 8 keys, `at` of a stage and of the split, from their dot products. `sums`: of their
  // parts.
  const auto take = [&](int stage, int at, int key, const auto& c, SoftplusSum* sums) {
    LSSAR_UNROLL
    for (int i = 0; i < 2; ++i) {
      // `summed`: in the row's sum. `least`: in its maximum.
      float score, summed, least;
      if constexpr (E::kTwoPlanes) {
        const float key_scale = memory.KeyScales(stage)[at + i];
        score = summed = q.row.HighScore(c[i], c[2 + i], key_scale);
        least = q.row.LowerBound(score, key_scale);
      } else {
        float factor = q.inverse;
        if (E::kHasScales) factor *= memory.KeyScales(stage)[at + i];
        const float of_first_part = c[i] * factor;
        score = MulAdd(c[2 + i], factor, of_first_part);
        summed = least = sums_first_part ? of_first_part : score;
      }
      // The dot products of keys after the last one are computed, but not used.
      const bool is_key = first + key + i < end;
      if (has_head && is_key) of_head[key + i] = score;
      sums[i].Add(is_key ? summed : FloatOfBits(kMinusInfinity));
      max = fmaxf(max, is_key ? least : FloatOfBits(kMinusInfinity));
    }
  };
  for (int i = 0; i < num_stages; ++i) {
    StartStage(work, stream, split, i + Memory::kStages - 1);
    const int stage = stream.Wait();
    unsigned b[kSets][HeadQueries<E, kDim>::kSteps][2];
    LSSAR_UNROLL
    for (int set = 0; set < kSets; ++set) {
      const unsigned char* const key =
          memory.KeyStage(stage) + (set * 8 + lane / 4) * Memory::kRowBytes;
      if constexpr (E::kTwoPlanes) {
        LoadPlane<kDim>(key, b[set]);
      } else {
        LoadStored<E, kDim>(key, b[set]);
      }
    }
    typename HeadQueries<E, kDim>::Sums c[kSets];
    if constexpr (E::kTwoPlanes) {
      DotPlane(q.a, b, c);
    } else {
      Dot<E>(q.a, b, c);
    }
    LSSAR_UNROLL
    for (int set = 0; set < kSets; ++set) {
      const int at = set * 8 + lane % 4 * 2;
      const int key = i * Memory::kStageKeys + at;
      if constexpr (kSets == 4) {
        take(stage, at, key, c[set], parts.sums + 2 * set);
      } else if (i % 2 == 0) {
        take(stage, at, key, c[set], parts.sums + 2 * set);
      } else {
        take(stage, at, key, c[set], parts.sums + 2 * (2 + set));
      }
    }
    SyncWarp();
  }
  stream.Drain();

  max = LargestOfQuad(max);
  const double sum = double(TakeTotal(parts));
  if (has_head && lane % 4 == 0) store(head, SplitStats{.sum = sum, .max = max});
  SyncWarp();
}

// Lists the keys of a split whose values are gathered (ListKeys), and moves their weights to the
// places of the list. Returns how many there are.
template <typename E, int kDim>
LSSAR_DEVICE int ListGathered(const WarpMemory<E, kDim>& memory, int num_heads, bool compacts) {
  const int lane = LaneIdx();
  const int count = ListKeys(memory, compacts);
  for (int head = 0; head < num_heads; ++head) {
    uint16_t* const weights = memory.Weights(head);
    // A weight moves down or stays, so those of later rounds are still in their places.
    for (int first = 0; first < count; first += kWarpThreads) {
      const int at = first + lane;
      const uint16_t bits = at < count ? weights[memory.Gathered()[at]] : uint16_t{0};
      SyncWarp();
      weights[at] = bits;
      SyncWarp();
    }
  }
  return count;
}

// Starts copies of the values of 16 listed keys, and of their scales. Values without a weight, and
// places after the last key, become zeros.
template <typename E, int kDim>
LSSAR_DEVICE void GatherGroup(const RowWork<E, kDim>& work, const WarpMemory<E, kDim>& memory,
                              int first_key, int group, int count, int stage) {
  using Memory = WarpMemory<E, kDim>;
  constexpr int kPieces = Memory::kValueRowBytes / 16;
  const auto key_at = [&](int at) { return int(memory.Gathered()[at < count ? at : 0]); };
  const auto survives = [&](int at, int key) { return at < count && memory.Survives(key); };
  LSSAR_UNROLL
  for (int i = LaneIdx(); i < kGroupKeys * kPieces; i += kWarpThreads) {
    const int at = group * kGroupKeys + i / kPieces, piece = i % kPieces;
    const int key = key_at(at);
    CopyAsync16(memory.ValueStage(stage) + i / kPieces * Memory::kValueStride + piece * 16,
                work.pages.Value(first_key + key) + piece * 16, survives(at, key));
  }
  if constexpr (E::Value::kHasScales) {
    if (LaneIdx() >= kGroupKeys) return;
    const int at = group * kGroupKeys + LaneIdx(), key = key_at(at);
    CopyAsync4(memory.ValueScales(stage) + LaneIdx(), work.pages.ValueScale(first_key + key),
               survives(at, key));
  }
}

// Converts the int8 values of a stage to fp16, the element type of the MMA.
template <typename E, int kDim>
LSSAR_DEVICE void WidenGroup(const WarpMemory<E, kDim>& memory, int stage) {
  using Memory = WarpMemory<E, kDim>;
  LSSAR_UNROLL
  for (int i = LaneIdx(); i < kGroupKeys * kDim / 4; i += kWarpThreads) {
    const int at = i / (kDim / 4), dim = i % (kDim / 4) * 4;
    *reinterpret_cast<Bits64*>(memory.Wide() + at * Memory::kWideStride + dim * 2) = E::Scale4(
        memory.ValueStage(stage) + at * Memory::kValueStride + dim, memory.ValueScales(stage)[at]);
  }
  SyncWarp();
}

// The weights of a group as the A operand: row h is head h, others are zeros.
template <typename E, int kDim>
LSSAR_DEVICE void LoadWeights(const WarpMemory<E, kDim>& memory, int num_heads, int group,
                              unsigned (&a)[4]) {
  const int head = LaneIdx() / 4;
  LSSAR_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = 0;
  if (head >= num_heads) return;
  const uint16_t* const weights = memory.Weights(head) + group * kGroupKeys + LaneIdx() % 4 * 2;
  LSSAR_UNROLL
  for (int i = 0; i < 2; ++i) a[2 * i] = *reinterpret_cast<const unsigned*>(weights + 8 * i);
}

// Weigh: turns the scores of one split into weights and adds up the values that have a non-zero
// one in some head. rule: of head LaneIdx(), or of the only head. partials [head][head_stride]:
// sums of u^p v (kDim of them), then of u^p, both times the head's scale. Returns the number of
// pairs of head and value with a non-zero weight.
template <bool kGrouped, typename E, int kDim>
LSSAR_DEVICE int WeighSplit(const RowWork<E, kDim>& work, const WeightRule& rule,
                            const WarpMemory<E, kDim>& memory, int split, const float* scores,
                            int score_stride, float* partials, int partial_stride) {
  using Memory = WarpMemory<E, kDim>;
  const int lane = LaneIdx();
  const int first = split * kCudaSplitKeys;
  const int num_heads = kGrouped ? work.num_heads : 1;
  int num_read = 0;
  for (int head = 0; head < num_heads; ++head) {
    const WeightRule of_head = kGrouped ? RuleOfLane(rule, head) : rule;
    for (int i = 0; i < kKeysOfLane; ++i) {
      const int at = lane + i * kWarpThreads;
      uint16_t bits = 0;
      if (first + at < work.num_keys) {
        const float score = scores[head * score_stride + at];
        bits = F16FromFloat(WeightOf(work.args, of_head, score) * of_head.scale);
      }
      memory.Weights(head)[at] = bits;
      const unsigned survivors = Ballot(bits != 0);
      num_read += CountBits(survivors);
      if (lane == 0) {
        memory.Survivors()[i] = head == 0 ? survivors : memory.Survivors()[i] | survivors;
      }
    }
  }
  SyncWarp();

  ValueSums<E, kDim> sums;
  sums.Clear();
  const int count = ListGathered(memory, num_heads, work.args.compacts_values);
  const auto gather = [&](int group, int stage) {
    GatherGroup(work, memory, first, group, count, stage);
  };
  ForEachGroup<Memory::kStages>(count, gather, [&](int group, int stage) {
    unsigned a[4];
    LoadWeights(memory, num_heads, group, a);
    // Every value of a single head is one that it attends to.
    if constexpr (E::Value::kHasScales) {
      WidenGroup(memory, stage);
      sums.template Add<kGrouped>(a, memory.Wide(), Memory::kWideStride);
    } else {
      sums.template Add<kGrouped>(a, memory.ValueStage(stage), Memory::kValueStride);
    }
  });

  if (lane / 4 < num_heads) {
    float* const partial = partials + (kGrouped ? lane / 4 * partial_stride : 0);
    LSSAR_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      partial[n * 8 + lane % 4 * 2] = sums.values[n][0];
      partial[n * 8 + lane % 4 * 2 + 1] = sums.values[n][1];
    }
    if (lane % 4 == 0) partial[kDim] = sums.weights[0];
  }
  SyncWarp();
  return num_read;
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_DECODE_SPLIT_CUH_

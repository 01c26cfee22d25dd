// Sample: one block a row. All sums are of integers (sample_math.h), so their order does not matter
// and a row has the bits of the CPU's.
#include <limits>

#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/sample_math.h"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpThreads;
constexpr int kBins = 2 * kThreads;

constexpr float kLargest = std::numeric_limits<float>::max();

using Count = unsigned long long;

// A sum of 64 bits in two words: shared memory has an atomic add of 32 bits, while one of 64 bits
// is a loop of compare-and-swap.
struct Bin {
  unsigned low;
  unsigned high;

  LSSAR_DEVICE Count Value() const { return Count(high) << 32 | low; }
  LSSAR_DEVICE void Add(Count amount) {
    const unsigned added = unsigned(amount);
    const unsigned before = AtomicAdd(&low, added);
    const unsigned carry = before + added < before ? 1 : 0;
    const unsigned rest = unsigned(amount >> 32) + carry;
    if (rest != 0) AtomicAdd(&high, rest);
  }
};

struct Shared {
  Bin bins[kBins];
  // Ids in the bin where a search ends; later the best ids.
  Count listed_ranks[kMaxTopLogprobs];
  Count listed_amounts[kMaxTopLogprobs];
  Count warps[kWarps];  // one value a warp, for block-wide sums
  Count found;
  unsigned num_listed;
};

LSSAR_DEVICE Shared& BlockShared() { return *reinterpret_cast<Shared*>(SharedMemory()); }

LSSAR_DEVICE Count WarpSum(Count value) {
  for (int mask = 1; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
  return value;
}

// Sum over the lanes up to this one.
LSSAR_DEVICE Count WarpPrefix(Count value) {
  for (int distance = 1; distance < kWarpThreads; distance *= 2) {
    const bool has_left = LaneIdx() >= distance;
    const Count left = Shuffle(value, has_left ? LaneIdx() - distance : 0);
    if (has_left) value += left;
  }
  return value;
}

// Returns the sum to all threads; BlockMax, the maximum.
LSSAR_DEVICE Count BlockSum(Count value) {
  Shared& shared = BlockShared();
  value = WarpSum(value);
  if (LaneIdx() == 0) shared.warps[WarpIdx()] = value;
  SyncBlock();
  const Count sum = WarpSum(shared.warps[LaneIdx()]);
  SyncBlock();
  return sum;
}

LSSAR_DEVICE Count BlockMax(Count value) {
  Shared& shared = BlockShared();
  const auto warp_max = [](Count x) {
    for (int mask = 1; mask < kWarpThreads; mask *= 2) {
      const Count other = ShuffleXor(x, mask);
      x = other > x ? other : x;
    }
    return x;
  };
  value = warp_max(value);
  if (LaneIdx() == 0) shared.warps[WarpIdx()] = value;
  SyncBlock();
  const Count max = warp_max(shared.warps[LaneIdx()]);
  SyncBlock();
  return max;
}

// The ids of a row, ordered by a value each (a score, a log-probability), with an amount each (1, a
// weight). All threads of the block call each function.
template <typename Value, typename Amount>
class Ranking {
 public:
  // Requires  values in [worst, best], one of them `best`; a sum of amounts of at least 1
  LSSAR_DEVICE Ranking(int vocab, const Value& value, const Amount& amount, float best, float worst)
      : vocab_(vocab), value_(value), amount_(amount), best_(best) {
    const float range = best - worst;
    bins_per_unit_ = range > 0 && range <= kLargest ? (kBins - 1) / range : 0.0f;
    if (!(bins_per_unit_ <= kLargest)) bins_per_unit_ = 0;
  }

  // Fills the bins and returns the sum of all amounts.
  LSSAR_DEVICE Count FillBins() {
    Shared& shared = BlockShared();
    for (int bin = ThreadIdx(); bin < kBins; bin += kThreads) shared.bins[bin] = {};
    SyncBlock();
    Count sum = 0;
    for (int first = 0; first < vocab_; first += kThreads) {
      const int id = first + ThreadIdx();
      const Count amount = id < vocab_ ? amount_(id) : 0;
      sum += amount;
      AddToBin(id < vocab_ ? BinOf(id) : kBins - 1, amount);
    }
    return BlockSum(sum);  // also synchronises the bins
  }

  // The rank at which the sum of amounts, best rank first, reaches `wanted`.
  // Requires  FillBins; 1 <= wanted <= their sum
  LSSAR_DEVICE Count FindLast(Count wanted) {
    Shared& shared = BlockShared();
    const int bin = FindBin(wanted);
    for (int id = ThreadIdx(); id < vocab_; id += kThreads) {
      if (BinOf(id) != bin) continue;
      const Count amount = amount_(id);
      if (amount == 0) continue;
      const unsigned at = AtomicAdd(&shared.num_listed, 1u);
      if (at >= kMaxTopLogprobs) continue;
      shared.listed_ranks[at] = RankOf(value_(id), id);
      shared.listed_amounts[at] = amount;
    }
    SyncBlock();
    const int num_listed = int(shared.num_listed);
    if (num_listed > kMaxTopLogprobs) return FindAmongMany(wanted_);
    for (int i = ThreadIdx(); i < num_listed; i += kThreads) {
      Count before = 0;
      for (int j = 0; j < num_listed; ++j) {
        if (shared.listed_ranks[j] > shared.listed_ranks[i]) before += shared.listed_amounts[j];
      }
      if (before < in_bin_ && in_bin_ <= before + shared.listed_amounts[i]) {
        shared.found = shared.listed_ranks[i];
      }
    }
    SyncBlock();
    const Count last = shared.found;
    SyncBlock();
    return last;
  }

 private:
  // Bins rise as values fall.
  LSSAR_DEVICE int BinOf(int id) const {
    const float bin = (best_ - value_(id)) * bins_per_unit_;
    return bin < float(kBins - 1) ? int(bin) : kBins - 1;
  }

  // Called by a whole warp. If all lanes have the same bin, they make one addition.
  LSSAR_DEVICE void AddToBin(int bin, Count amount) {
    Shared& shared = BlockShared();
    if (Ballot(bin == Shuffle(bin, 0)) == 0xFFFFFFFFu) {
      amount = WarpSum(amount);
      if (LaneIdx() != 0) return;
    }
    if (amount != 0) shared.bins[bin].Add(amount);
  }

  // The bin in which the sum reaches `wanted`. Sets in_bin_ to the amount wanted from that bin.
  LSSAR_DEVICE int FindBin(Count wanted) {
    Shared& shared = BlockShared();
    wanted_ = wanted;
    const int bin = 2 * ThreadIdx();
    const Count first = shared.bins[bin].Value(), both = first + shared.bins[bin + 1].Value();
    const Count prefix = WarpPrefix(both);
    if (LaneIdx() == kWarpThreads - 1) shared.warps[WarpIdx()] = prefix;
    if (ThreadIdx() == 0) shared.num_listed = 0;
    SyncBlock();
    const Count of_warps = WarpPrefix(shared.warps[LaneIdx()]);
    const Count before_warp = Shuffle(of_warps, WarpIdx() == 0 ? 0 : WarpIdx() - 1);
    const Count before = (WarpIdx() == 0 ? 0 : before_warp) + prefix - both;
    SyncBlock();
    if (before < wanted && wanted <= before + both) {
      const bool is_first = wanted <= before + first;
      shared.found = Count(is_first ? bin : bin + 1);
      shared.warps[0] = wanted - before - (is_first ? 0 : first);
    }
    SyncBlock();
    const int found = int(shared.found);
    in_bin_ = shared.warps[0];
    SyncBlock();
    return found;
  }

  // Binary search over the bits of a rank, one pass over the row for each. For rows with thousands
  // of nearly equal values.
  LSSAR_DEVICE Count FindAmongMany(Count wanted) {
    Count last = 0;
    for (int bit = 51; bit >= 0; --bit) {
      const Count tried = last | (Count{1} << bit);
      Count sum = 0;
      for (int id = ThreadIdx(); id < vocab_; id += kThreads) {
        if (RankOf(value_(id), id) >= tried) sum += amount_(id);
      }
      if (BlockSum(sum) >= wanted) last = tried;
    }
    return last;
  }

  const int vocab_;
  const Value value_;
  const Amount amount_;
  const float best_;
  float bins_per_unit_;
  Count wanted_ = 0;
  Count in_bin_ = 0;
};

template <typename Value, typename Amount>
LSSAR_DEVICE Ranking<Value, Amount> MakeRanking(int vocab, const Value& value, const Amount& amount,
                                                float best, float worst) {
  return Ranking<Value, Amount>(vocab, value, amount, best, worst);
}

// The best id of a row and its value, and the least allowed value.
struct Extremes {
  bool all_finite = false;
  Count best_rank = 0;
  float best = 0;
  float worst = 0;

  LSSAR_DEVICE Extremes(const float* values, int vocab) {
    bool is_bad = false;
    Count highest = 0, lowest = 0;  // ranks; `lowest` is the rank of the negated value
    LSSAR_UNROLL_BY(4)              // loads in flight
    for (int first = 4 * ThreadIdx(); first < vocab; first += 4 * kThreads) {
      const Floats4 four = Load4(values, first, vocab);
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int id = first + i;
        if (id >= vocab) continue;
        const float value = four.x[i];
        is_bad |= !(fabsf(value) <= kLargest);
        const Count rank = RankOf(value, id);
        const Count opposite = value == kNotAllowed ? 0 : RankOf(-value, id);
        highest = rank > highest ? rank : highest;
        lowest = opposite > lowest ? opposite : lowest;
      }
    }
    all_finite = !SyncBlockOr(is_bad);
    best_rank = BlockMax(highest);
    best = ScoreOfRank(best_rank);
    worst = -ScoreOfRank(BlockMax(lowest));
  }
};

class LogitsSampler {
 public:
  LSSAR_DEVICE explicit LogitsSampler(const CudaSampleArgs& args)
      : args_(args),
        row_(args.rows[BlockX()]),
        vocab_(args.vocab),
        num_ids_(args.num_ids),
        logits_(args.logits + size_t(BlockX()) * size_t(args.vocab)) {}

  LSSAR_DEVICE void Run() {
    CudaSampledRow sampled;
    const Extremes extremes(logits_, vocab_);
    if (extremes.all_finite) {
      const int best_id = IdOfRank(extremes.best_rank);
      sampled.finite = 1;
      sampled.id = row_.target >= 0 ? row_.target : DrawId(extremes);
      sampled.is_best = sampled.id == best_id ? 1 : 0;
      if (row_.num_logprobs >= 0) {
        sampled.num_top = uint32_t(row_.num_logprobs);
        SetLogprobs(extremes, sampled);
      }
    }
    if (ThreadIdx() == 0) args_.sampled[BlockX()] = sampled;
  }

 private:
  LSSAR_DEVICE int DrawId(const Extremes& of_logits) {
    if (row_.scores_row < 0) {
      return DrawFrom(logits_, num_ids_ == vocab_ ? of_logits : Extremes(logits_, num_ids_));
    }
    float* const scores = args_.scores + size_t(row_.scores_row) * size_t(vocab_);
    Adjust(scores);
    return DrawFrom(scores, Extremes(scores, num_ids_));
  }

  template <typename Change>
  LSSAR_DEVICE void ForEach(const CudaSampleIds& ids, const Change& change) const {
    for (int i = ThreadIdx(); i < ids.count; i += kThreads) {
      const CudaSampleId& at = args_.ids[ids.first + i];
      if (at.id < num_ids_) change(at);
    }
    SyncBlock();
  }

  // Requires  each id at most once in each list
  LSSAR_DEVICE void Adjust(float* scores) const {
    const bool allows_all = row_.allowed.count == 0, has_mask = row_.mask.count > 0;
    for (int id = ThreadIdx(); id < num_ids_; id += kThreads) {
      scores[id] = allows_all ? logits_[id] : kNotAllowed;
    }
    SyncBlock();
    ForEach(row_.allowed, [&](const CudaSampleId& at) { scores[at.id] = logits_[at.id]; });
    ForEach(row_.banned, [&](const CudaSampleId& at) { scores[at.id] = kNotAllowed; });
    for (int id = ThreadIdx(); id < num_ids_ && has_mask; id += kThreads) {
      uint32_t word = 0;
      if (id / 64 < row_.mask.count) {
        const CudaSampleId& words = args_.ids[row_.mask.first + id / 64];
        word = id % 64 < 32 ? uint32_t(words.id) : words.value;
      }
      if ((word >> (id % 32) & 1) == 0) scores[id] = kNotAllowed;
    }
    SyncBlock();
    ForEach(row_.biases, [&](const CudaSampleId& at) {
      scores[at.id] = Biased(scores[at.id], FloatOfBits(at.value));
    });
    const Penalties penalties{.repetition = double(row_.repetition_penalty),
                              .presence = double(row_.presence_penalty),
                              .frequency = double(row_.frequency_penalty)};
    ForEach(row_.counts, [&](const CudaSampleId& at) {
      scores[at.id] = Penalised(scores[at.id], int(at.value), penalties);
    });
  }

  LSSAR_DEVICE int DrawFrom(const float* scores, const Extremes& extremes) const {
    if (row_.rate == 0.0f) return IdOfRank(extremes.best_rank);
    const float best = extremes.best, rate = row_.rate;
    const auto score = [=](int id) { return scores[id]; };
    Count last = 0;  // ranks from `last` on stay candidates
    if (row_.top_k > 0 && row_.top_k < num_ids_) {
      const auto one = [=](int id) { return Count{scores[id] != kNotAllowed}; };
      auto ranking = MakeRanking(num_ids_, score, one, best, extremes.worst);
      const Count num_allowed = ranking.FillBins(), top_k = Count(row_.top_k);
      if (top_k < num_allowed) last = ranking.FindLast(top_k);
    }
    const auto weight = [=](int id) -> Count {
      return RankOf(scores[id], id) >= last ? WeightOf(scores[id], best, rate) : 0;
    };
    if (row_.top_p < 1.0f) {
      // Weights are zero 43 powers of 2 below the best.
      const float weightless = best - 43.0f / rate;
      auto ranking = MakeRanking(num_ids_, score, weight, best,
                                 weightless > extremes.worst ? weightless : extremes.worst);
      const Count total = ranking.FillBins();
      last = ranking.FindLast(WantedWeight(row_.top_p, total));
    }
    const Count least = row_.least_weight;
    return PickId([=](int id) -> Count {
      if (RankOf(scores[id], id) < last) return 0;
      const Count kept = WeightOf(scores[id], best, rate);
      return kept >= least ? kept : 0;
    });
  }

  // The first id at which the running sum of weights is above the draw. Each warp adds up a range
  // of ids; the warp whose range contains the draw then searches its range.
  template <typename Weight>
  LSSAR_DEVICE int PickId(const Weight& weight) const {
    Shared& shared = BlockShared();
    const int run = (num_ids_ + kThreads - 1) / kThreads * kWarpThreads;
    const int begin = WarpIdx() * run;
    const int end = begin + run < num_ids_ ? begin + run : num_ids_;
    Count sum = 0;
    for (int id = begin + LaneIdx(); id < end; id += kWarpThreads) sum += weight(id);
    sum = WarpSum(sum);
    if (LaneIdx() == 0) shared.warps[WarpIdx()] = sum;
    SyncBlock();
    const Count prefix = WarpPrefix(shared.warps[LaneIdx()]);
    const Count total = Shuffle(prefix, kWarpThreads - 1);
    const Count before_run = Shuffle(prefix, WarpIdx()) - sum;
    const Count target = ScaledDraw(row_.draw, total);
    if (before_run <= target && target < before_run + sum) {
      Count before = before_run;
      for (int first = begin; first < end; first += kWarpThreads) {
        const int id = first + LaneIdx();
        const Count up_to = before + WarpPrefix(id < end ? weight(id) : 0);
        const unsigned above = Ballot(up_to > target);
        if (above != 0) {
          if (LaneIdx() == 0) shared.found = Count(first + LowestBit(above));
          break;
        }
        before = Shuffle(up_to, kWarpThreads - 1);
      }
    }
    SyncBlock();
    const int found = int(shared.found);
    SyncBlock();
    return found;
  }

  LSSAR_DEVICE void SetLogprobs(const Extremes& extremes, CudaSampledRow& sampled) const {
    const float* const logits = logits_;
    const float best = extremes.best;
    Count sum = 0;
    for (int id = ThreadIdx(); id < vocab_; id += kThreads) {
      sum += WeightOf(logits[id], best, kRateOfLogprobs);
    }
    constexpr double kUnit = 1.0 / double(Count{1} << kWeightBits);
    const double log_sum = double(best) + log(double(BlockSum(sum)) * kUnit);
    const auto logprob = [=](int id) { return float(double(logits[id]) - log_sum); };
    sampled.logprob = logprob(sampled.id);
    if (row_.num_logprobs == 0) return;

    // Two logits may round to the same log-probability; the lower id is then the better.
    const float worst = float(double(extremes.worst) - log_sum);
    const float largest = float(double(best) - log_sum);
    const auto one = [](int) { return Count{1}; };
    auto ranking = MakeRanking(vocab_, logprob, one, largest, worst);
    ranking.FillBins();
    const Count last = ranking.FindLast(Count(row_.num_logprobs));
    StoreTop(logprob, last);
  }

  // Stores ids of rank `last` and above, best first.
  template <typename Logprob>
  LSSAR_DEVICE void StoreTop(const Logprob& logprob, Count last) const {
    Shared& shared = BlockShared();
    if (ThreadIdx() == 0) shared.num_listed = 0;
    SyncBlock();
    for (int id = ThreadIdx(); id < vocab_; id += kThreads) {
      const Count rank = RankOf(logprob(id), id);
      if (rank >= last) shared.listed_ranks[AtomicAdd(&shared.num_listed, 1u)] = rank;
    }
    SyncBlock();
    CudaTopLogprob* const top = args_.top + size_t(BlockX()) * size_t(args_.max_top);
    for (int i = ThreadIdx(); i < row_.num_logprobs; i += kThreads) {
      const Count rank = shared.listed_ranks[i];
      int place = 0;
      for (int j = 0; j < row_.num_logprobs; ++j) place += shared.listed_ranks[j] > rank ? 1 : 0;
      top[place] = {.id = IdOfRank(rank), .logprob = ScoreOfRank(rank)};
    }
  }

  const CudaSampleArgs& args_;
  const CudaSampleRow& row_;
  const int vocab_;
  const int num_ids_;  // ids that may be drawn
  const float* const logits_;
};

LSSAR_KERNEL(kThreads) SampleRows(LSSAR_ARGS(CudaSampleArgs) args) { LogitsSampler(args).Run(); }

}  // namespace

int StartSample(const CudaSampleArgs& args, void* stream) {
  return Launch(
      {.num_blocks_x = args.num_rows, .num_threads = kThreads, .shared_bytes = sizeof(Shared)},
      stream, &SampleRows, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

// Phi of attention in registers: from scores to phi, with the sum and the maximum of a chunk.
// Included once per target, inside foreach_target.h.
#if defined(LSSAR_KERNELS_CPU_ATTENTION_PHI_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LSSAR_KERNELS_CPU_ATTENTION_PHI_INL_H_
#undef LSSAR_KERNELS_CPU_ATTENTION_PHI_INL_H_
#else
#define LSSAR_KERNELS_CPU_ATTENTION_PHI_INL_H_
#endif

#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/attention_spec.h"
#include "kernels/cpu/attention_dot-inl.h"
#include "kernels/cpu/float_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lssar {
namespace HWY_NAMESPACE {
namespace {

// Lower bounds of scores, and of every phi.
constexpr float kLeastScore = std::numeric_limits<float>::lowest();
constexpr float kLeastPhi = 0.0f;

// How Score turns a row's scores into phi.
//   e^s                       Score leaves the scores unchanged: e^(s - max) needs the maximum,
//                             which Reduce computes
//   softplus, re-weighted     Score leaves the scores unchanged and computes only their sum: most
//                             keys are below the row's threshold, and Weigh computes phi of the
//                             others. Scores are in units of ln 2: phi = log2(1 + 2^score). The
//                             unit cancels in u
//   others                    Score replaces the scores by phi
struct StageOne {
  Phi phi = Phi::kSoftplus;
  float shift = 0;
  bool is_base_2 = false;  // softplus, re-weighted

  constexpr float Least() const { return phi == Phi::kExp || is_base_2 ? kLeastScore : kLeastPhi; }
};

// Sum of a row's phi and maximum of its phi or scores, in one chunk.
struct ChunkStats {
  HWY_INLINE void Reset(float least) {
    for (size_t v = 0; v < kSumVectors; ++v) {
      sum[v] = hn::Zero(ScoreTag());
      product[v] = hn::Zero(ScoreTag());
    }
    max = hn::Set(ScoreTag(), least);
  }
  HWY_INLINE double Sum(StageOne stage) const {
    const ScoreTag d;
    if (!stage.is_base_2) return double{hn::GetLane(hn::SumOfLanes(d, sum[0]))};
    ScoreVec whole[kSumVectors];
    for (size_t v = 0; v < kSumVectors; ++v) {
      whole[v] = hn::Add(sum[v], Log2OnePlus(d, product[v]));
    }
    return double{SumInOrder(whole)};
  }
  HWY_INLINE float Max() const { return hn::GetLane(hn::MaxOfLanes(ScoreTag(), max)); }

  // Only sum[0], one accumulator per lane, unless is_base_2.
  ScoreVec sum[kSumVectors];
  // is_base_2: the sum of phi is the sum of max(y, 0) plus the sum of log2(1 + t), t = 2^-|y|. The
  // latter is one logarithm of a product: product = (1 + t_1) (1 + t_2) ... - 1. Without the 1, so
  // that small t keep their digits. A chunk's 16 factors are at most 2 each.
  ScoreVec product[kSumVectors];
  ScoreVec max;
};

// Adds a row's first `count` scores of a tile, or of some vectors of it, to the chunk's stats.
// first_vector: of the scores, in their tile. The maximum is of of_max(i, y), y the scores from i
// on.
template <class OfMax>
HWY_INLINE void AddBase2(const float* scores, size_t first_vector, size_t count, ChunkStats& stats,
                         const OfMax& of_max) {
  const ScoreTag d;
  const auto add = [&](size_t v, ScoreVec y, ScoreVec t, ScoreVec bounded) {
    ScoreVec& product = stats.product[v];
    product = FusedMulAdd(d, product, t, hn::Add(product, t));
    stats.sum[v] = hn::Add(stats.sum[v], AtLeast(d, 0.0f, y));
    stats.max = hn::Max(stats.max, bounded);
  };
  size_t i = 0;
  for (; i + kScoreLanes <= count; i += kScoreLanes) {
    const ScoreVec y = hn::LoadU(d, scores + i);
    add((first_vector + i / kScoreLanes) % kSumVectors, y, Exp2OfNegativeAbs(d, y), of_max(i, y));
  }
  if (i < count) {
    const auto is_key = hn::FirstN(d, count - i);
    const ScoreVec y = hn::IfThenElse(is_key, hn::LoadU(d, scores + i), hn::Set(d, kLeastScore));
    add((first_vector + i / kScoreLanes) % kSumVectors, y,
        hn::IfThenElseZero(is_key, Exp2OfNegativeAbs(d, y)),
        hn::IfThenElse(is_key, of_max(i, y), hn::Set(d, kLeastScore)));
  }
}

// ApplyPhi for the phi that are not inlined into Score's loops.
HWY_NOINLINE ChunkStats ApplyOtherPhi(StageOne stage, float* scores, size_t count, size_t capacity,
                                      ChunkStats stats) {
  const ScoreTag d;
  const ScoreVec shift = hn::Set(d, stage.shift);
  const auto apply = [&](const auto& phi) {
    MapScores(
        scores, count, capacity, kLeastPhi, [&](ScoreVec s) { return phi(hn::Add(s, shift)); },
        [&](ScoreVec a) {
          stats.sum[0] = hn::Add(stats.sum[0], a);
          stats.max = hn::Max(stats.max, a);
        });
    return stats;
  };
  switch (stage.phi) {
    case Phi::kRelu: return apply([&](ScoreVec s) { return Relu(d, s); });
    case Phi::kRelu2:
      return apply([&](ScoreVec s) {
        const ScoreVec relu = Relu(d, s);
        return hn::Mul(relu, relu);
      });
    case Phi::kRelu6: return apply([&](ScoreVec s) { return AtMost(d, 6.0f, Relu(d, s)); });
    case Phi::kGelu: return apply([&](ScoreVec s) { return Gelu(d, s); });
    case Phi::kSigmoid: return apply([&](ScoreVec s) { return Sigmoid(d, s); });
    case Phi::kMish: return apply([&](ScoreVec s) { return Mish(d, s); });
    case Phi::kSoftplus:
    case Phi::kExp: break;  // in ApplyPhi
  }
  return stats;
}

// Applies StageOne to a row's first `count` scores of a tile, or of some vectors of it.
// first_vector: of the scores, in their tile.
HWY_INLINE void ApplyPhi(StageOne stage, float* scores, size_t first_vector, size_t count,
                         size_t capacity, ChunkStats& stats) {
  const ScoreTag d;
  if (stage.is_base_2) {
    AddBase2(scores, first_vector, count, stats, [](size_t, ScoreVec y) { return y; });
  } else if (stage.phi == Phi::kSoftplus) {  // no kind with softplus has a shift
    MapScores(
        scores, count, capacity, kLeastPhi, [&](ScoreVec s) { return Softplus(d, s); },
        [&](ScoreVec softplus) {
          stats.sum[0] = hn::Add(stats.sum[0], softplus);
          stats.max = hn::Max(stats.max, softplus);
        });
  } else if (stage.phi == Phi::kExp) {
    MapScores(
        scores, count, capacity, kLeastScore, [](ScoreVec s) { return s; },
        [&](ScoreVec s) { stats.max = hn::Max(stats.max, s); });
  } else {
    stats = ApplyOtherPhi(stage, scores, count, capacity, stats);
  }
}

// Sum of e^(score - max) over a chunk's first `count` scores.
HWY_INLINE double SumOfExp(const float* scores, size_t count, float max) {
  const ScoreTag d;
  ScoreVec sum = hn::Zero(d);
  for (size_t i = 0; i < count; i += kScoreLanes) {
    const ScoreVec exp = ExpOfNegative(d, hn::Sub(hn::LoadU(d, scores + i), hn::Set(d, max)));
    const size_t left = count - i;
    sum = hn::Add(sum, left >= kScoreLanes ? exp : hn::IfThenElseZero(hn::FirstN(d, left), exp));
  }
  return double{hn::GetLane(hn::SumOfLanes(d, sum))};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lssar
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

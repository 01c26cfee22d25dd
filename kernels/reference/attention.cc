// LSSAR as in arXiv 2501.13428, Algorithm 1, and the other kinds of its Table 1, one query row of
// one head at a time, in double. Names follow the paper: N keys, s scores, a stage-1 weights, x =
// max(0, N a - o), w final weights.
#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/attention_math.h"
#include "kernels/kv_rows.h"
#include "kernels/quantize.h"
#include "kernels/two_planes.h"

namespace lssar {
namespace {

using Row = std::vector<double>;  // one element per key, or one per dimension

// Stage 1, normalisation:
//   a_j = phi(s_j) / divisor,   s_j = scale <q, k_j> + shift
// LSSA and LSSAR, with q and k of unit length:
//   a_j = softplus(s_j) / sum_m softplus(s_m),   s_j = ln(d) ln(N) <q, k_j>
// Softmax: s_j gets -slope (N - 1 - j) with ALiBi, and is -infinity before the window.
Row StageOneWeights(const AttentionSpec& spec, const Row& dots, int head_dim, double slope) {
  const int num_keys = int(dots.size());
  const double scale = ScaleOf(spec, head_dim, num_keys);
  const double shift = ShiftOf(spec, num_keys);
  Row a;
  for (double dot : dots) {
    const int key = int(a.size());
    a.push_back(key < spec.FirstKey(num_keys) ? -std::numeric_limits<double>::infinity()
                                              : scale * dot + shift - slope * (num_keys - 1 - key));
  }
  // e^s / sum e^s with the largest score subtracted first, so that nothing overflows.
  const double largest = *std::max_element(a.begin(), a.end());
  const bool is_exp = IsExpRow(spec.Form(), largest);
  double norm = 0;
  for (double& a_j : a) {
    a_j = is_exp ? PhiOf(Phi::kExp, a_j - largest) : PhiOf(spec.Form().phi, a_j);
    norm += std::fabs(a_j);
  }
  const double divisor = DivisorOf(spec, norm);
  for (double& a_j : a) a_j /= divisor;
  return a;
}

int NumZero(const Row& row) { return int(std::ranges::count(row, 0.0)); }

// A row without stage 2.
AttentionRow StageOneRow(const Row& a) { return {.weights = a, .num_zero = NumZero(a)}; }

// Stage 2, re-weighting:
//   x_j = max(0, N a_j - o),   w_j = x_j^p / sum_m x_m^p,   o = 0 in rows 1..3, else 1
// The base of the power is x_j over the row's peak, which is in [0, 1]: nothing overflows. A row
// without a peak, for which the paper's formula is 0/0, keeps its stage-1 weights.
AttentionRow StageTwoRow(const Row& a, double p) {
  const double num_keys = double(a.size());
  const double offset = a.size() <= 3 ? 0.0 : 1.0;
  Row x;
  for (double a_j : a) x.push_back(std::max(0.0, num_keys * a_j - offset));
  const double peak = *std::max_element(x.begin(), x.end());
  if (peak <= double(kDegeneratePeak)) return StageOneRow(a);
  Row w;
  for (double x_j : x) {
    const double power = std::pow(x_j / peak, p);
    w.push_back(power < double(kNegligibleWeight) ? 0.0 : power);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& w_j : w) w_j /= sum;
  return {.weights = std::move(w), .num_zero = NumZero(x)};
}

// A row over keys in two planes (fx16): <q, k_j> with q in 16-bit fixed point.
struct FixedDots {
  Row exact;  // from both planes
  Row both;   // from both planes, the low one times q's high byte alone
  Row high;   // from the high plane alone
  Row bound;  // |both - high| is at most this
};

FixedDots DotsOf(const KvHeadView& head, int num_keys, const float* q) {
  const size_t head_dim = size_t(head.kv.layout.head_dim);
  std::vector<int16_t> fixed(head_dim);
  const double q_scale = double{QuantizeFixed({q, head_dim}, fixed.data())};
  std::vector<int64_t> q_high;  // x = 256 q_high + a rest in [-128, 127]
  double norm = 0;
  for (const int16_t x : fixed) {
    q_high.push_back((x + 128) >> 8);
    norm += std::fabs(double(q_high.back()));
  }
  FixedDots dots;
  for (int j = 0; j < num_keys; ++j) {
    const KvRow key = KeyRow(head.kv, head.Block(j), head.Slot(j));
    int64_t high = 0, low = 0, high_low = 0;
    for (size_t dim = 0; dim < head_dim; ++dim) {
      high += int64_t{fixed[dim]} * key.LoadHigh(int(dim));
      low += int64_t{fixed[dim]} * key.LoadLow(int(dim));
      high_low += q_high[dim] * key.LoadLow(int(dim));
    }
    const double scale = q_scale * double{*key.scale};
    dots.exact.push_back(scale * double(256 * high + low));
    dots.both.push_back(scale * 256 * double(high + high_low));
    dots.high.push_back(scale * 256 * double(high));
    dots.bound.push_back(scale * 256 * 128 * norm);
  }
  return dots;
}

// The weights of a row over fx16 keys, of kind lssar:
//   short rows (N <= kShortRowKeys)   from both planes, all of q
//   S                 = sum of softplus of the high plane's scores
//   x_low             = x of the largest lower bound of a score; below FlatFixedPeak, the row is
//                       flat: as a short row, its sum too
//   candidates        keys whose upper bound u = x / x_low has a u^p that is not negligible
//   x_j               = max(0, N softplus(s_j) / S - 1), s_j from both planes, the low one times
//                       q's high byte, of candidates; 0 for the other keys
// Keys with x_j = 0 are counted with that s_j, candidates or not.
AttentionRow FixedRow(const AttentionSpec& spec, const KvHeadView& head, int num_keys, double p,
                      const float* q) {
  LSSAR_CHECK(CheckKvType(spec, DType::kFx16).ok());
  const int head_dim = head.kv.layout.head_dim;
  const FixedDots dots = DotsOf(head, num_keys, q);
  const auto from_both = [&] {
    return StageTwoRow(StageOneWeights(spec, dots.exact, head_dim, /*slope=*/0), p);
  };
  if (num_keys <= kShortRowKeys) return from_both();
  const Phi phi = spec.Form().phi;
  const double scale = ScaleOf(spec, head_dim, num_keys);
  double sum = 0;
  for (const double dot : dots.high) sum += PhiOf(phi, scale * dot);
  const auto x_of = [&](double dot) { return num_keys * PhiOf(phi, scale * dot) / sum - 1; };
  double x_low = x_of(dots.high[0] - dots.bound[0]);
  for (size_t j = 1; j < dots.high.size(); ++j) {
    x_low = std::max(x_low, x_of(dots.high[j] - dots.bound[j]));
  }
  if (!(x_low >= FlatFixedPeak(p, num_keys))) return from_both();
  const double least = x_low * std::pow(double{kNegligibleWeight}, 1 / p);
  Row a(dots.high.size());
  for (size_t j = 0; j < a.size(); ++j) {
    if (x_of(dots.high[j] + dots.bound[j]) > least) a[j] = PhiOf(phi, scale * dots.both[j]) / sum;
  }
  AttentionRow row = StageTwoRow(a, p);
  row.num_zero =
      int(std::ranges::count_if(dots.both, [&](double dot) { return !(x_of(dot) > 0); }));
  return row;
}

// The elements of `num_tokens` keys or values. [num_tokens, head_dim]
Row Load(KvRow (*row_at)(const KvView&, const KvBlock&, int), const KvHeadView& head,
         int num_tokens) {
  const int head_dim = head.kv.layout.head_dim;
  Row elements;
  elements.reserve(size_t(num_tokens) * size_t(head_dim));
  for (int token = 0; token < num_tokens; ++token) {
    const KvRow row = row_at(head.kv, head.Block(token), head.Slot(token));
    for (int dim = 0; dim < head_dim; ++dim) elements.push_back(row.Load(dim));
  }
  return elements;
}

// FixedRow reads both planes itself.
Row LoadKeys(const KvHeadView& head, int num_tokens) {
  if (head.kv.layout.dtype == DType::kFx16) return {};
  return Load(KeyRow, head, num_tokens);
}

// keys: LoadKeys of at least num_keys
AttentionRow RowOver(const Row& keys, const AttentionSpec& spec, const KvHeadView& head,
                     int num_keys, double p, double slope, const float* q) {
  if (head.kv.layout.dtype == DType::kFx16) return FixedRow(spec, head, num_keys, p, q);
  const int head_dim = head.kv.layout.head_dim;
  Row dots;  // <q, k_j>
  const double* k = keys.data();
  for (int j = 0; j < num_keys; ++j, k += head_dim) {
    double dot = 0;
    for (int dim = 0; dim < head_dim; ++dim) dot += double{q[dim]} * k[dim];
    dots.push_back(dot);
  }
  const Row a = StageOneWeights(spec, dots, head_dim, slope);
  return spec.Form().reweights ? StageTwoRow(a, p) : StageOneRow(a);
}

// out = sum_j w_j v_j over the row's N keys. w [N], values [>= N, head_dim], out [head_dim]
void SumValues(const Row& w, const Row& values, std::span<float> out, AttentionStats* counters) {
  Row sums(out.size(), 0.0);
  for (size_t j = 0; j < w.size(); ++j) {
    counters->num_value_rows += 1;
    if (w[j] == 0) continue;
    counters->num_value_rows_read += 1;
    const double* v = &values[j * out.size()];
    for (size_t dim = 0; dim < out.size(); ++dim) sums[dim] += w[j] * v[dim];
  }
  for (size_t dim = 0; dim < out.size(); ++dim) out[dim] = float(sums[dim]);
}

}  // namespace

AttentionRow ReferenceRow(const AttentionSpec& spec, const KvHeadView& head, int num_keys, double p,
                          double slope, const float* q) {
  return RowOver(LoadKeys(head, num_keys), spec, head, num_keys, p, slope, q);
}

void ReferenceAttention(const AttentionArgs& args) {
  const int num_heads = args.num_heads;
  const int num_kv_heads = args.kv.layout.num_kv_heads;
  LSSAR_CHECK(num_heads >= 1 && num_heads % num_kv_heads == 0);
  const int group_size = num_heads / num_kv_heads;
  const size_t head_dim = size_t(args.kv.layout.head_dim);
  for (size_t s = 0; s < args.rows->sequences.size(); ++s) {
    const SequenceSlice& sequence = args.rows->sequences[s];
    AttentionStats counters;
    for (int kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      const KvHeadView view = {
          .kv = args.kv, .pages = sequence.pages, .layer = args.layer, .kv_head = kv_head};
      const int num_tokens = sequence.first_position + sequence.num_rows;
      const Row keys = LoadKeys(view, num_tokens);
      const Row values = Load(ValueRow, view, num_tokens);
      for (int head = kv_head * group_size; head < (kv_head + 1) * group_size; ++head) {
        const double slope = args.spec.has_alibi ? AlibiSlope(head, num_heads) : 0;
        for (int r = 0; r < sequence.num_rows; ++r) {
          const int num_keys = sequence.first_position + r + 1;  // N, from the row's position only
          const size_t at =
              (size_t(sequence.first_row + r) * size_t(num_heads) + size_t(head)) * head_dim;
          const Row w = RowOver(keys, args.spec, view, num_keys, args.spec.PowerOf(head, num_keys),
                                slope, args.q + at)
                            .weights;
          SumValues(w, values, {args.out + at, head_dim}, &counters);
        }
      }
    }
    if (args.counters != nullptr) {
      args.counters[s].num_value_rows += counters.num_value_rows;
      args.counters[s].num_value_rows_read += counters.num_value_rows_read;
    }
  }
}

}  // namespace lssar

// LSSAR as in arXiv 2501.13428, Algorithm 1, and the other kinds of its Table 1, one query row of
// one head at a time, in double. Names follow the paper: N keys, s scores, a stage-1 weights, x =
// max(0, N a - o), w final weights.
#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "kernels/attention_math.h"
#include "kernels/kv_rows.h"

namespace lssar {
namespace {

using Row = std::vector<double>;  // one element per key, or one per dimension

// Stage 1, normalisation:
//   a_j = phi(s_j) / divisor,   s_j = scale <q, k_j> + shift
// LSSA and LSSAR, with q and k of unit length:
//   a_j = softplus(s_j) / sum_m softplus(s_m),   s_j = ln(d) ln(N) <q, k_j>
Row StageOneWeights(const AttentionSpec& spec, const Row& dots, int head_dim) {
  const Phi phi = spec.Form().phi;
  const int num_keys = int(dots.size());
  const double scale = ScaleOf(spec, head_dim, num_keys);
  const double shift = ShiftOf(spec, num_keys);
  Row a;
  for (double dot : dots) a.push_back(scale * dot + shift);
  // e^s / sum e^s with the largest score subtracted first, so that nothing overflows.
  const double largest = phi == Phi::kExp ? *std::max_element(a.begin(), a.end()) : 0.0;
  double norm = 0;
  for (double& a_j : a) {
    a_j = PhiOf(phi, a_j - largest);
    norm += std::fabs(a_j);
  }
  const double divisor = DivisorOf(spec, norm);
  for (double& a_j : a) a_j /= divisor;
  return a;
}

// Stage 2, re-weighting:
//   x_j = max(0, N a_j - o),   w_j = x_j^p / sum_m x_m^p,   o = 0 in rows 1..3, else 1
// The base of the power is x_j over the row's peak, which is in [0, 1]: nothing overflows. A row
// without a peak, for which the paper's formula is 0/0, keeps its stage-1 weights.
Row StageTwoWeights(const Row& a, double p) {
  const double num_keys = double(a.size());
  const double offset = a.size() <= 3 ? 0.0 : 1.0;
  Row x;
  for (double a_j : a) x.push_back(std::max(0.0, num_keys * a_j - offset));
  const double peak = *std::max_element(x.begin(), x.end());
  if (peak <= double(kDegeneratePeak)) return a;
  Row w;
  for (double x_j : x) {
    const double power = std::pow(x_j / peak, p);
    w.push_back(power < double(kNegligibleWeight) ? 0.0 : power);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& w_j : w) w_j /= sum;
  return w;
}

// out = sum_j w_j v_j over the row's N keys. q, out [head_dim]
void AttendRow(const AttentionSpec& spec, const KvHeadView& head, int num_keys, const float* q,
               float* out, AttentionStats* counters) {
  const Row w = ReferenceWeights(spec, head, num_keys, q);
  Row sums(size_t(head.kv.layout.head_dim), 0.0);
  for (int j = 0; j < num_keys; ++j) {
    const double w_j = w[size_t(j)];
    counters->num_value_rows += 1;
    if (w_j == 0) continue;
    counters->num_value_rows_read += 1;
    const KvRow value = ValueRow(head.kv, head.Block(j), head.Slot(j));
    for (size_t dim = 0; dim < sums.size(); ++dim) sums[dim] += w_j * value.Load(int(dim));
  }
  for (size_t dim = 0; dim < sums.size(); ++dim) out[dim] = float(sums[dim]);
}

}  // namespace

std::vector<double> ReferenceWeights(const AttentionSpec& spec, const KvHeadView& head,
                                     int num_keys, const float* q) {
  const int head_dim = head.kv.layout.head_dim;
  Row dots;  // <q, k_j>
  for (int j = 0; j < num_keys; ++j) {
    const KvRow key = KeyRow(head.kv, head.Block(j), head.Slot(j));
    double dot = 0;
    for (int dim = 0; dim < head_dim; ++dim) dot += double{q[dim]} * key.Load(dim);
    dots.push_back(dot);
  }
  const Row a = StageOneWeights(spec, dots, head_dim);
  return spec.Form().reweights ? StageTwoWeights(a, spec.p) : a;
}

void ReferenceAttention(const AttentionArgs& args) {
  const int num_heads = args.num_heads;
  const int num_kv_heads = args.kv.layout.num_kv_heads;
  LSSAR_CHECK(num_heads >= 1 && num_heads % num_kv_heads == 0);
  const size_t head_dim = size_t(args.kv.layout.head_dim);
  for (size_t s = 0; s < args.rows->sequences.size(); ++s) {
    const SequenceSlice& sequence = args.rows->sequences[s];
    AttentionStats counters;
    for (int r = 0; r < sequence.num_rows; ++r) {
      const int num_keys = sequence.first_position + r + 1;  // N, from the row's position only
      for (int head = 0; head < num_heads; ++head) {
        const size_t at =
            (size_t(sequence.first_row + r) * size_t(num_heads) + size_t(head)) * head_dim;
        const KvHeadView kv_head = {.kv = args.kv,
                                    .pages = sequence.pages,
                                    .layer = args.layer,
                                    .kv_head = head / (num_heads / num_kv_heads)};
        AttendRow(args.spec, kv_head, num_keys, args.q + at, args.out + at, &counters);
      }
    }
    if (args.counters != nullptr) {
      args.counters[s].num_value_rows += counters.num_value_rows;
      args.counters[s].num_value_rows_read += counters.num_value_rows_read;
    }
  }
}

}  // namespace lssar

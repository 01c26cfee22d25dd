// LSSAR as arXiv 2501.13428 states it (Algorithm 1), and the other kinds of its Table 1, one query
// row of one head at a time, in double. Names follow the paper: N keys, s scores, a stage-1
// weights, x re-weighted values, w final weights.
#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/attention_stage_one.h"
#include "kernels/kv_rows.h"

namespace lssar {
namespace {

using Row = std::vector<double>;  // one element a key, or one a dimension

// Stage 1, normalisation: a_j = phi(s_j) / divisor, s_j = scale <q, k_j> + shift. Of LSSA and
// LSSAR:
//   s_j = ln(d) ln(N) <q, k_j>,   a_j = softplus(s_j) / sum_m softplus(s_m)
// with q and k of unit length.
Row StageOneWeights(const AttentionSpec& spec, const Row& dots, int head_dim) {
  const Phi phi = spec.Form().phi;
  const int num_keys = int(dots.size());
  const double scale = ScaleOf(spec, head_dim, num_keys);
  const double shift = ShiftOf(spec, num_keys);
  Row a;
  for (double dot : dots) a.push_back(scale * dot + shift);
  // e^s / sum e^s, the largest score taken off first: it overflows nowhere.
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
// The power is taken of x_j over its row's peak, which is in [0, 1] and overflows nowhere.
// A row without a peak, where the paper leaves 0/0, keeps its stage-1 weights.
Row StageTwoWeights(const Row& a, double p) {
  const double num_keys = static_cast<double>(a.size());
  const double offset = a.size() <= 3 ? 0.0 : 1.0;
  Row x;
  for (double a_j : a) x.push_back(std::max(0.0, num_keys * a_j - offset));
  const double peak = *std::max_element(x.begin(), x.end());
  if (peak <= static_cast<double>(kDegeneratePeak)) return a;
  Row w;
  for (double x_j : x) {
    const double power = std::pow(x_j / peak, p);
    w.push_back(power < static_cast<double>(kNegligibleWeight) ? 0.0 : power);
  }
  const double sum = std::accumulate(w.begin(), w.end(), 0.0);
  for (double& w_j : w) w_j /= sum;
  return w;
}

// out = sum_j w_j v_j over the row's N keys. q, out [head_dim]
void AttendRow(const AttentionSpec& spec, const HeadPages& pages, int num_keys, const float* q,
               float* out, AttentionStats& counters) {
  const Row w = ReferenceWeights(spec, pages, num_keys, q);
  Row sums(static_cast<size_t>(pages.kv.layout.head_dim), 0.0);
  for (int j = 0; j < num_keys; ++j) {
    const double w_j = w[static_cast<size_t>(j)];
    counters.num_value_rows += 1;
    if (w_j == 0) continue;
    counters.num_value_rows_read += 1;
    const KvRow value = ValueRow(pages.kv, pages.Block(j), pages.Slot(j));
    for (size_t dim = 0; dim < sums.size(); ++dim) sums[dim] += w_j * value.Load(int(dim));
  }
  for (size_t dim = 0; dim < sums.size(); ++dim) out[dim] = static_cast<float>(sums[dim]);
}

}  // namespace

std::vector<double> ReferenceWeights(const AttentionSpec& spec, const HeadPages& pages,
                                     int num_keys, const float* q) {
  const int head_dim = pages.kv.layout.head_dim;
  Row dots;  // <q, k_j>
  for (int j = 0; j < num_keys; ++j) {
    const KvRow key = KeyRow(pages.kv, pages.Block(j), pages.Slot(j));
    double dot = 0;
    for (int dim = 0; dim < head_dim; ++dim) dot += double{q[dim]} * key.Load(dim);
    dots.push_back(dot);
  }
  const Row a = StageOneWeights(spec, dots, head_dim);
  return spec.Form().reweights ? StageTwoWeights(a, spec.p) : a;
}

void ReferenceAttention(const AttentionArgs& args) {
  const int num_heads = args.kv.layout.num_heads;
  const int head_dim = args.kv.layout.head_dim;
  for (size_t s = 0; s < args.rows->sequences.size(); ++s) {
    const SequenceSlice& sequence = args.rows->sequences[s];
    AttentionStats counters;
    for (int r = 0; r < sequence.num_rows; ++r) {
      const int num_keys = sequence.first_position + r + 1;  // the row's own N, nobody else's
      for (int head = 0; head < num_heads; ++head) {
        const size_t at =
            (static_cast<size_t>(sequence.first_row + r) * static_cast<size_t>(num_heads) +
             static_cast<size_t>(head)) *
            static_cast<size_t>(head_dim);
        const HeadPages pages = {
            .kv = args.kv, .pages = sequence.pages, .layer = args.layer, .head = head};
        AttendRow(args.spec, pages, num_keys, args.q + at, args.out + at, counters);
      }
    }
    if (args.counters != nullptr) {
      args.counters[s].num_value_rows += counters.num_value_rows;
      args.counters[s].num_value_rows_read += counters.num_value_rows_read;
    }
  }
}

}  // namespace lssar

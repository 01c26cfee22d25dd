// Attention over K/V pages of type fx16: which numbers of a row come from the high plane of its
// keys alone. kernels/DESIGN.md, "K in two planes", has the definition and its reasons.
#ifndef LSSAR_KERNELS_TWO_PLANES_H_
#define LSSAR_KERNELS_TWO_PLANES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "kernels/attention_spec.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "kernels/quantize.h"

namespace lssar {

// A peak x_m is a difference of numbers near 1. A row whose peak is below this is flat: x loses
// digits, and every score matters. About 2% of the rows of a trained model are flat, nearly all
// among the first dozens of a prompt.
//
// Below p = 1/2 every row is flat: u^p comes near a step at u = 0, so that a key which lies within
// a rounding error of the mean would have a weight of its own or none by luck.
inline float FlatPeak(double p) {
  return p < 0.5 ? std::numeric_limits<float>::infinity() : float(0.03 * std::min(p, 15.0));
}

// The same for a row of num_keys keys in two planes, whose sum has the errors of the high plane.
// Equal keys have equal errors: x of all keys just below the mean may come out as 0.05, two
// standard deviations of it over unit vectors of 64 dims at 16K, in place of 0. Together they would
// weigh num_keys (0.05 / x_m)^p of the largest key. From this peak on that is at most 2^-12; for a
// p below 3 few rows have such a peak, from p = 9 on all that are not flat anyway.
inline double FlatFixedPeak(double p, int num_keys) {
  return std::max(double{FlatPeak(p)}, 0.05 * std::exp2((12 + std::log2(double(num_keys))) / p));
}

// Every integer of a dot product is exact: the sum over head_dim of q (16 bits) times a plane of a
// key (8 bits), whatever the order of its terms.
static_assert(int64_t{kMaxFixedHeadDim} * kMaxFixed * 128 <= INT32_MAX);

// Errors  UNIMPLEMENTED: keys of `type` do not serve this kind of attention; names both
absl::Status CheckKvType(const AttentionSpec& spec, DType type);

}  // namespace lssar

#endif  // LSSAR_KERNELS_TWO_PLANES_H_

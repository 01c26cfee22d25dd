// Attention over K/V pages of type fx16: which numbers of a row come from the high plane of its
// keys alone. kernels/DESIGN.md, "K in two planes", has the definition and its reasons.
#ifndef LSSAR_KERNELS_TWO_PLANES_H_
#define LSSAR_KERNELS_TWO_PLANES_H_

#include <algorithm>
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

// Every integer of a dot product is exact: the sum over head_dim of q (16 bits) times a plane of a
// key (8 bits), whatever the order of its terms.
static_assert(int64_t{kMaxFixedHeadDim} * kMaxFixed * 128 <= INT32_MAX);

// Errors  UNIMPLEMENTED: keys of `type` do not serve this kind of attention; names both
absl::Status CheckKvType(const AttentionSpec& spec, DType type);

}  // namespace lssar

#endif  // LSSAR_KERNELS_TWO_PLANES_H_

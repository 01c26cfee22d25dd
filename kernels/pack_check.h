// The errors of Backend::Pack, shared by all backends.
#ifndef LSSAR_KERNELS_PACK_CHECK_H_
#define LSSAR_KERNELS_PACK_CHECK_H_

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace lssar {

// Requires  view has elements and at least one row and column
// Errors    INVALID_ARGUMENT: the type needs scales, and the view has none; it has scales, and its
//           type needs none; it has scales and is transposed
absl::Status CheckPack(const MatrixView& view);

// Row `row` of a view that CheckPack accepts, widened to fp32 (exact).
// Shapes  out [view.num_cols]
void LoadRow(const MatrixView& view, int row, float* out);

// INVALID_ARGUMENT: `stored` cannot hold a weight.
absl::Status WeightDoesNotFit(DType stored);

}  // namespace lssar

#endif  // LSSAR_KERNELS_PACK_CHECK_H_

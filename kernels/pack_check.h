// The errors of Backend::Pack, shared by all backends.
#ifndef LSSAR_KERNELS_PACK_CHECK_H_
#define LSSAR_KERNELS_PACK_CHECK_H_

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace lssar {

// Requires  view has elements and at least one row and column
// Errors    INVALID_ARGUMENT: the type needs scales, and a MatrixView has none
absl::Status CheckPack(const MatrixView& view);

// INVALID_ARGUMENT: `stored` cannot hold a weight.
absl::Status WeightDoesNotFit(DType stored);

}  // namespace lssar

#endif  // LSSAR_KERNELS_PACK_CHECK_H_

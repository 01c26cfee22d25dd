// What Pack refuses, in the words of every backend that runs on the host.
#ifndef LSSAR_KERNELS_PACK_CHECK_H_
#define LSSAR_KERNELS_PACK_CHECK_H_

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace lssar {

// INVALID_ARGUMENT: elements of a type that needs scales, which a MatrixView has none of.
// Requires  view has elements and at least one row and column
absl::Status CheckPack(const MatrixView& view);

// The error for an element that `stored` cannot hold.
absl::Status WeightDoesNotFit(DType stored);

}  // namespace lssar

#endif  // LSSAR_KERNELS_PACK_CHECK_H_

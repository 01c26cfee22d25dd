// The definitions of Embed, Norm, Linear and Logits.
#ifndef LSSAR_KERNELS_REFERENCE_DENSE_H_
#define LSSAR_KERNELS_REFERENCE_DENSE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/ops.h"

namespace lssar {

// Stores the rounded elements, widened to fp32, row-major.
absl::StatusOr<std::unique_ptr<PackedMatrix>> ReferencePack(const MatrixView& view, DType stored);

// y = norm(y); kNone leaves y as it is.
void ReferenceNormInPlace(const NormView& norm, std::vector<double>* y);

void ReferenceEmbed(const EmbedArgs& args);
void ReferenceNorm(const NormArgs& args);
void ReferenceLinear(const LinearArgs& args);
void ReferenceLogits(const LogitsArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_DENSE_H_

#include "kernels/pack_check.h"

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar {

absl::Status CheckPack(const MatrixView& view) {
  LSSAR_CHECK(view.elements != nullptr && view.num_rows >= 1 && view.num_cols >= 1);
  if (IsFloat(view.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("weights of type ", NameOf(view.dtype),
                                           " have no scales: pass them as fp32, fp16 or bf16"));
}

absl::Status WeightDoesNotFit(DType stored) {
  if (stored == DType::kI8) {
    return absl::InvalidArgumentError(
        StrCat("a weight is not finite, which ", NameOf(stored), " cannot hold"));
  }
  return absl::InvalidArgumentError(
      StrCat("a weight is too large for ", NameOf(stored), "; keep it as fp32 or bf16"));
}

}  // namespace lssar

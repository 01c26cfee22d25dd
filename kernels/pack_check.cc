#include "kernels/pack_check.h"

#include <string>

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar {

absl::Status CheckPack(const MatrixView& view) {
  LSSAR_CHECK(view.elements != nullptr && view.num_rows >= 1 && view.num_cols >= 1);
  if (IsFloat(view.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("weights given as ", std::string(NameOf(view.dtype)),
                                           " have no scales: give them as fp32, fp16 or bf16"));
}

absl::Status WeightDoesNotFit(DType stored) {
  const std::string name(NameOf(stored));
  if (stored == DType::kI8) {
    return absl::InvalidArgumentError(
        StrCat("a weight is not finite, which ", name, " cannot hold"));
  }
  return absl::InvalidArgumentError(
      StrCat("a weight is too large for ", name, "; keep it as fp32 or bf16"));
}

}  // namespace lssar

#include "kernels/pack_check.h"

#include "base/check.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "kernels/quantize.h"

namespace lssar {

absl::Status CheckPack(const MatrixView& view) {
  LSSAR_CHECK(view.elements != nullptr && view.num_rows >= 1 && view.num_cols >= 1);
  const bool has_scales = view.scales != nullptr;
  if (IsFloat(view.dtype) == has_scales) {
    return absl::InvalidArgumentError(
        StrCat("weights of type ", NameOf(view.dtype), has_scales ? " have" : " have no",
               " scales: pass int8 and int4 with them, fp32, fp16 and bf16 without"));
  }
  if (has_scales && view.transposed) {
    return absl::InvalidArgumentError(
        StrCat(NameOf(view.dtype), " weights are transposed: pass them as [rows, cols]"));
  }
  return absl::OkStatus();
}

void LoadRow(const MatrixView& view, int row, float* out) {
  const size_t num_cols = size_t(view.num_cols), first = size_t(row) * num_cols;
  if (view.scales != nullptr) {
    const size_t group_cols = size_t(GroupColsOf(view.dtype));
    const uint16_t* scales = view.scales + size_t(row) * ((num_cols + group_cols - 1) / group_cols);
    if (view.dtype == DType::kI4) {
      const uint8_t* codes =
          static_cast<const uint8_t*>(view.elements) + size_t(row) * Int4RowBytes(view.num_cols);
      for (size_t col = 0; col < num_cols; ++col) {
        out[col] =
            float(kInt4Values[Int4CodeAt(codes, col)]) * FloatFromBf16(scales[col / group_cols]);
      }
      return;
    }
    const int8_t* steps = static_cast<const int8_t*>(view.elements) + first;
    for (size_t col = 0; col < num_cols; ++col) {
      out[col] = float(steps[col]) * FloatFromBf16(scales[col / group_cols]);
    }
    return;
  }
  for (size_t col = 0; col < num_cols; ++col) {
    const size_t from = view.transposed ? col * size_t(view.num_rows) + size_t(row) : first + col;
    out[col] = LoadElement(view.elements, view.dtype, from);
  }
}

absl::Status WeightDoesNotFit(DType stored) {
  if (!IsFloat(stored)) {
    return absl::InvalidArgumentError(
        StrCat("a weight is not finite, which ", NameOf(stored), " cannot hold"));
  }
  return absl::InvalidArgumentError(
      StrCat("a weight is too large for ", NameOf(stored), "; keep it as fp32 or bf16"));
}

}  // namespace lssar

#include "kernels/two_planes.h"

#include "base/str_cat.h"

namespace lssar {

absl::Status CheckKvType(const AttentionSpec& spec, DType type) {
  const AttentionForm form = spec.Form();
  if (type != DType::kFx16 || (form.is_length_scaled && form.reweights)) return absl::OkStatus();
  return absl::UnimplementedError(
      StrCat("attention of kind ", NameOf(spec.kind),
             " does not run on K/V of type fx16: that needs keys of unit length and re-weighting "
             "(kind lssar); use fp16, fp32 or int8"));
}

}  // namespace lssar

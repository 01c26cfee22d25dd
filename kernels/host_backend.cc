#include "kernels/host_backend.h"

#include <cstring>

#include "base/str_cat.h"
#include "kernels/copy_pages.h"
#include "kernels/host_buffer.h"

namespace lssar {

absl::Status HostBackend::FitLayout(KvLayout& layout) const {
  if (!HoldsKv(layout.dtype)) {
    return absl::UnimplementedError(StrCat("K/V pages of ", NameOf(layout.dtype),
                                           " are not supported; fp32, fp16, int8 and fx16 are"));
  }
  if (layout.dtype == DType::kFx16 &&
      (layout.head_dim % 4 != 0 || layout.head_dim > kMaxFixedHeadDim)) {
    return absl::UnimplementedError(
        StrCat("K/V pages of fx16 need a head_dim that is a multiple of 4 and at most ",
               kMaxFixedHeadDim, "; it is ", layout.head_dim));
  }
  layout.key_order = KeyOrder::kDimMajor;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Buffer>> HostBackend::Allocate(size_t num_bytes) {
  return AllocateHostBuffer(num_bytes);
}

absl::Status HostBackend::CopyIn(void* to, const void* from_host, size_t num_bytes) {
  std::memcpy(to, from_host, num_bytes);
  return absl::OkStatus();
}

absl::Status HostBackend::CopyOut(void* to_host, const void* from, size_t num_bytes) {
  std::memcpy(to_host, from, num_bytes);
  return absl::OkStatus();
}

void HostBackend::CopyPages(const CopyPagesArgs& args) { CopyHostPages(args); }

}  // namespace lssar

// The part of Backend that backends in host memory share.
#ifndef LSSAR_KERNELS_HOST_BACKEND_H_
#define LSSAR_KERNELS_HOST_BACKEND_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "kernels/backend.h"

namespace lssar {

// Buffers and copies in host memory, dim-major K, ops that are complete when they return.
class HostBackend : public Backend {
 public:
  bool Supports(Feature feature) const override { return InfoOf(feature).on_host; }
  absl::Status FitLayout(KvLayout& layout) const override;
  bool IsBatchInvariant() const override { return true; }
  absl::StatusOr<std::optional<int64_t>> FreeBytes() override { return std::nullopt; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override;
  absl::Status ReserveSteps(int, int) override { return absl::OkStatus(); }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override;
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override;
  void CopyPages(const CopyPagesArgs& args) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }
  void RunStep(const StepArgs&, absl::FunctionRef<void()> ops) override { ops(); }
  void PrepareSteps(const StepArgs&, int, int, absl::FunctionRef<void()>) override {}
  bool IsLost() override { return false; }
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_HOST_BACKEND_H_

#include "kernels/backend.h"

#include "absl/strings/numbers.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/str_cat.h"
#if LSSAR_WITH_CUDA
#include "kernels/cuda/device/device_backend.h"
#endif
#include "kernels/reference/reference_backend.h"

namespace lssar {
namespace {

constexpr int kMaxThreads = 1024;

// "cuda" | "cuda:N"
absl::StatusOr<std::unique_ptr<Backend>> MakeCuda(const BackendOptions& options) {
  int device_idx = 0;
  if (options.name != "cuda" && !absl::SimpleAtoi(options.name.substr(5), &device_idx)) {
    return absl::InvalidArgumentError(
        StrCat("backend is \"", options.name, "\": the device must be a number, as in cuda:0"));
  }
#if LSSAR_WITH_CUDA
  return MakeDeviceBackend(device_idx, options.fast_gemm);
#else
  return absl::FailedPreconditionError(
      "this build has no cuda backend: build with LSSAR_WITH_CUDA=ON");
#endif
}

}  // namespace

void Backend::RunStep(const StepArgs&, absl::FunctionRef<void()> ops) { ops(); }

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        StrCat("num_threads is ", options.num_threads, ", must be in [0, ", kMaxThreads, "]"));
  }
  if (options.name == "reference") {
    if (!options.instruction_set.empty()) {
      return absl::InvalidArgumentError("instruction_set is a choice of the cpu backend only");
    }
    return MakeReferenceBackend();
  }
  if (options.name == "cpu") return MakeCpuBackend(options);
  if (options.name == "cuda" || options.name.starts_with("cuda:")) return MakeCuda(options);
  return absl::InvalidArgumentError(
      StrCat("backend is \"", options.name, "\", must be \"cpu\", \"cuda\" or \"reference\""));
}

}  // namespace lssar

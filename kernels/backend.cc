#include "kernels/backend.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

namespace lssar {
namespace {

constexpr int kMaxThreads = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("num_threads is ", options.num_threads,
                                                   ", must be in [0, ", kMaxThreads, "]"));
  }
  if (options.name == "reference") {
    if (!options.instruction_set.empty()) {
      return absl::InvalidArgumentError("instruction_set is a choice of the cpu backend only");
    }
    return MakeReferenceBackend();
  }
  if (options.name == "cpu") return MakeCpuBackend(options);
  return absl::InvalidArgumentError(
      absl::StrCat("backend is \"", options.name, "\", must be \"cpu\" or \"reference\""));
}

}  // namespace lssar

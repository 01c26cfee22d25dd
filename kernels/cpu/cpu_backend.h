// The backend that runs on the CPU's vector units.
#ifndef LSSAR_KERNELS_CPU_CPU_BACKEND_H_
#define LSSAR_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// Requires  options.num_threads >= 0
// Errors    INVALID_ARGUMENT: an instruction set that this machine or build does not have
// Threads   one caller at a time. Backends of different instruction sets may live side by side, but
//           ops of two of them must not run at once: Highway's choice is one word per process
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_CPU_BACKEND_H_

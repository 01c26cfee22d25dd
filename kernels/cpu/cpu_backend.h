// The backend for the vector units of the CPU.
#ifndef LSSAR_KERNELS_CPU_CPU_BACKEND_H_
#define LSSAR_KERNELS_CPU_CPU_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// Requires  options.num_threads >= 0; options.cpus are usable, and num_threads of them or 0
// Errors    INVALID_ARGUMENT: an instruction set that this machine or build does not have
// Threads   one caller at a time. Several backends may exist, but ops of two backends with
//           different instruction sets must not run at the same time: Highway's selection is global
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_CPU_BACKEND_H_

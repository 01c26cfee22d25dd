// The backend that defines the ops; every other backend is tested against it.
#ifndef LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "kernels/backend.h"

namespace lssar {

// Naive loops with double accumulators on one thread. It is slow, so that the code reads like the
// formulas.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

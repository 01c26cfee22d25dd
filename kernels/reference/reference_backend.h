// The backend that every other one is tested against.
#ifndef LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "kernels/backend.h"

namespace lssar {

// Naive loops with double accumulators, one thread. Slow on purpose: nothing stands between the
// code and the formula.
std::unique_ptr<Backend> MakeReferenceBackend();

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

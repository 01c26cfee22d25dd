// The definition of RopeWrite.
#ifndef LSSAR_KERNELS_REFERENCE_ROPE_WRITE_H_
#define LSSAR_KERNELS_REFERENCE_ROPE_WRITE_H_

#include "kernels/ops.h"

namespace lssar {

void ReferenceRopeWrite(const RopeWriteArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_ROPE_WRITE_H_

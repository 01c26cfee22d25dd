// The definition of Sample: the stages of ops.h in order, in double.
#ifndef LSSAR_KERNELS_REFERENCE_SAMPLE_H_
#define LSSAR_KERNELS_REFERENCE_SAMPLE_H_

#include "kernels/ops.h"

namespace lssar {

void ReferenceSample(const SampleArgs& args);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_SAMPLE_H_

// The elementary functions of attention, over arrays: what float_math-inl.h computes in registers
// on the chosen instruction set, open to tests of its accuracy.
#ifndef LSSAR_KERNELS_CPU_FLOAT_MATH_H_
#define LSSAR_KERNELS_CPU_FLOAT_MATH_H_

#include <span>

namespace lssar {

// Each overwrites x by its function of x; accuracies stand in float_math-inl.h.
void SoftplusOnCpu(std::span<float> x);
void SigmoidOnCpu(std::span<float> x);
void GeluOnCpu(std::span<float> x);
void MishOnCpu(std::span<float> x);
void ExpOfNegativeOnCpu(std::span<float> x);    // x <= 0
void PowerOnCpu(double p, std::span<float> x);  // 0 < x <= 1

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_FLOAT_MATH_H_

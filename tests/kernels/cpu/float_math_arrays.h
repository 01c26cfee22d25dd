// The vector functions of float_math-inl.h over arrays, on the selected instruction set, for tests
// of their accuracy.
#ifndef LSSAR_TESTS_KERNELS_CPU_FLOAT_MATH_ARRAYS_H_
#define LSSAR_TESTS_KERNELS_CPU_FLOAT_MATH_ARRAYS_H_

#include <span>

namespace lssar {

// Each replaces x by its function of x. float_math-inl.h states the accuracies.
void SoftplusOnCpu(std::span<float> x);
void SoftplusOfBase2OnCpu(std::span<float> x);
void Log2OnePlusOnCpu(std::span<float> x);     // 0 <= x < 2^127
void Exp2OfNegativeOnCpu(std::span<float> x);  // x <= 0
void SigmoidOnCpu(std::span<float> x);
void GeluOnCpu(std::span<float> x);
void MishOnCpu(std::span<float> x);
void ExpOfNegativeOnCpu(std::span<float> x);    // x <= 0
void PowerOnCpu(double p, std::span<float> x);  // 0 < x <= 1

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_CPU_FLOAT_MATH_ARRAYS_H_

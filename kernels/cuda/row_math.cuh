// Rows of fp32: loads of four elements, and the scale of a norm.
#ifndef LSSAR_KERNELS_CUDA_ROW_MATH_CUH_
#define LSSAR_KERNELS_CUDA_ROW_MATH_CUH_

#include "kernels/cuda/instructions.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {

template <typename T>
LSSAR_DEVICE T AllLanes(T value) {
  for (int mask = 1; mask < kWarpThreads; mask *= 2) value += ShuffleXor(value, mask);
  return value;
}

struct alignas(16) Floats4 {
  float x[4];
};

LSSAR_DEVICE bool IsAligned16(const float* from) {
  return reinterpret_cast<uintptr_t>(from) % 16 == 0;
}

// Elements [i, i + 4) of a row of `width` elements, zeros after its end. i: a multiple of 4
LSSAR_DEVICE Floats4 Load4(const float* row, int i, int width) {
  if (IsAligned16(row) && i + 4 <= width) return *reinterpret_cast<const Floats4*>(row + i);
  Floats4 values;
  LSSAR_UNROLL
  for (int j = 0; j < 4; ++j) values.x[j] = i + j < width ? row[i + j] : 0.0f;
  return values;
}

// 1 / sqrt(x), within 2^-22 of itself. In fp32 where x fits: square root and division in double
// take as long as a load from memory.
LSSAR_DEVICE float InverseRoot(double x) {
  const float in_float = float(x);
  return in_float > 1e-30f && in_float < 1e30f ? InverseRoot(in_float) : float(1.0 / sqrt(x));
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ROW_MATH_CUH_

// Vectorized weights of scores (sample_math.h).
#ifndef LSSAR_KERNELS_CPU_SAMPLE_WEIGHTS_H_
#define LSSAR_KERNELS_CPU_SAMPLE_WEIGHTS_H_

#include <cstdint>
#include <span>

namespace lssar {

// weights[i] = WeightOf(scores[i], best, rate), the same bits on every instruction set.
void WeighScores(std::span<const float> scores, float best, float rate, uint64_t* weights);

// The sum of these weights.
uint64_t SumOfWeights(std::span<const float> scores, float best, float rate);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_SAMPLE_WEIGHTS_H_

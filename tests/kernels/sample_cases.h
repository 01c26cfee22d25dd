// Rows of logits for the tests of Sample, functions that run them, and the expected distributions.
#ifndef LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_
#define LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"

namespace lssar {

// Normally distributed logits with standard deviation 3; some are equal, to test ties.
std::vector<float> RandomLogits(size_t vocab, uint32_t seed);

// Rows of `logits`, [rows.size(), vocab].
std::vector<SampleResult> RunSample(Backend& backend, const std::vector<float>& logits, int vocab,
                                    const std::vector<SampleRequest>& rows);
SampleResult RunSampleOfRow(Backend& backend, const std::vector<float>& logits,
                            const SampleRequest& row);

// Draws with `params` from one row at positions [0, num_draws). Returns the count of each id.
std::map<int32_t, int> DrawHistogram(Backend& backend, const std::vector<float>& logits,
                                     const SamplingParams& params,
                                     const std::vector<TokenCount>& counts, int num_draws);

// The earlier tokens of SampleCases.
extern const std::vector<TokenCount> kCaseCounts;

struct SampleCase {
  const char* name;
  SamplingParams params;
};
// Every stage at its limits and between them, alone and combined. For vocabularies of at least 20.
std::vector<SampleCase> SampleCases();

// The probability of each id, computed naively by stage.
std::map<int32_t, double> NaiveDistribution(const std::vector<float>& logits,
                                            const SamplingParams& params,
                                            const std::vector<TokenCount>& counts);

// The distance of a histogram from the expected one, as a normal deviate.
double ChiSquareDeviate(const std::map<int32_t, int>& histogram,
                        const std::map<int32_t, double>& expected, int num_draws);

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_

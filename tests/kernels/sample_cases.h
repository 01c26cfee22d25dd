// Rows for the tests of Sample, how to run them, and what their draws must be.
#ifndef LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_
#define LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"

namespace lssar {

// Normal, of deviation 3; some equal ones, so that ties are met.
std::vector<float> RandomLogits(size_t vocab, uint32_t seed);

// Rows of `logits`, [rows.size(), vocab].
std::vector<SampleResult> RunSample(Backend& backend, const std::vector<float>& logits, int vocab,
                                    const std::vector<SampleRequest>& rows);
SampleResult RunSampleOfRow(Backend& backend, const std::vector<float>& logits,
                            const SampleRequest& row);

// Ids that `params` draw from one row at positions [0, num_draws): times each.
std::map<int32_t, int> DrawHistogram(Backend& backend, const std::vector<float>& logits,
                                     const SamplingParams& params,
                                     const std::vector<TokenCount>& counts, int num_draws);

// What was said before the draws of SampleCases.
extern const std::vector<TokenCount> kCaseCounts;

struct SampleCase {
  const char* name;
  SamplingParams params;
};
// Each stage at its bounds and between them, alone and all together. Vocabularies of at least 20.
std::vector<SampleCase> SampleCases();

// The probability of each id, stage by stage by the book.
std::map<int32_t, double> NaiveDistribution(const std::vector<float>& logits,
                                            const SamplingParams& params,
                                            const std::vector<TokenCount>& counts);

// How far a histogram is from what is expected, as a normal deviate.
double ChiSquareDeviate(const std::map<int32_t, int>& histogram,
                        const std::map<int32_t, double>& expected, int num_draws);

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_SAMPLE_CASES_H_

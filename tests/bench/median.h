#ifndef LSSAR_TESTS_BENCH_MEDIAN_H_
#define LSSAR_TESTS_BENCH_MEDIAN_H_

#include <vector>

namespace lssar::bench {

// For an even number of samples: the mean of the two in the middle.
// Requires  at least one sample
double Median(std::vector<double> samples);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_MEDIAN_H_

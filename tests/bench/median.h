#ifndef LSSAR_TESTS_BENCH_MEDIAN_H_
#define LSSAR_TESTS_BENCH_MEDIAN_H_

#include <vector>

namespace lssar::bench {

// The mean of the two in the middle where there is an even number. Requires one or more
double Median(std::vector<double> samples);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_MEDIAN_H_

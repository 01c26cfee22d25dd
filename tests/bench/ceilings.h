// What this machine can do at most: the figures that every bench divides by.
#ifndef LSSAR_TESTS_BENCH_CEILINGS_H_
#define LSSAR_TESTS_BENCH_CEILINGS_H_

#include <string>
#include <vector>

namespace lssar::bench {

// Bytes a second (in 1e9) that `num_threads` threads read together from memory far larger than the
// caches. Median of 7 passes.
double MeasureReadGbPerSecond(int num_threads);

// fp32 GFLOP/s of oneDNN's matrix product, 512 x 768 by 768 x 3072: the shape of a prefill chunk.
// Median of 7.
double MeasureSgemmGflops(int num_threads);

// Processor name, threads and memory: the line that every table of figures starts with.
std::string MachineLine(int num_threads);

double Median(std::vector<double> samples);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_CEILINGS_H_

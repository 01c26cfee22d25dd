// The limits of the machine for the threads of one pool.
#ifndef LSSAR_TESTS_BENCH_POOL_CEILINGS_H_
#define LSSAR_TESTS_BENCH_POOL_CEILINGS_H_

#include <cstddef>

#include "kernels/cpu/thread_pool.h"

namespace lssar::bench {

// Bytes: much more than any last-level cache.
inline constexpr size_t kColdBytes = size_t{384} << 20;

// Seconds of a clock that never goes back.
double Now();

// fp32 GFLOP/s of independent multiply-adds in registers on all threads: the upper bound of every
// GEMM. Median.
double MeasureFmaGflops(ThreadPool& pool, int num_samples);

// GB/s at which all threads read memory on huge pages, each what it has written. Median.
double MeasureReadGb(ThreadPool& pool, int num_samples);

// Microseconds of a loop without work in which every thread takes part. Median.
double MeasureLoopUs(ThreadPool& pool, int num_samples);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_POOL_CEILINGS_H_

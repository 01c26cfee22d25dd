// What this machine can do at most: the figures that every bench divides by.
#ifndef LSSAR_TESTS_BENCH_CEILINGS_H_
#define LSSAR_TESTS_BENCH_CEILINGS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lssar::bench {

// A machine shared with others gives half as much memory bandwidth at one moment as at the next: a
// figure is compared with ceilings taken just before and after it.
class Ceilings {
 public:
  explicit Ceilings(int num_threads);

  // Bytes a second that all threads read together from memory far larger than the caches: one pass.
  double ReadBytesPerSecond();
  // fp32 FLOP/s of oneDNN's matrix product, 512 x 768 by 768 x 3072: the shape of a prefill chunk.
  double ProductFlops();

  // Memory that this object holds.
  int64_t NumBytes() const;

 private:
  int num_threads_;
  std::unique_ptr<Buffer> memory_;
  std::vector<float> x_, w_, y_;
};

// Median of 7 passes, in 1e9 bytes a second.
double MeasureReadGbPerSecond(int num_threads);

// Processor name, threads and memory: the line that every table of figures starts with.
std::string MachineLine(int num_threads);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_CEILINGS_H_

// The limits of this machine. Benches report their figures as shares of these.
#ifndef LSSAR_TESTS_BENCH_CEILINGS_H_
#define LSSAR_TESTS_BENCH_CEILINGS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace lssar::bench {

// On a shared machine the memory bandwidth may change by a factor of two between two moments. A
// figure is therefore compared with ceilings measured just before and after it.
class Ceilings {
 public:
  explicit Ceilings(int num_threads);

  // Read bandwidth of all threads together in bytes per second, from one pass over memory much
  // larger than the caches.
  double ReadBytesPerSecond();
  // fp32 FLOP/s of oneDNN's GEMM, 512 x 768 by 768 x 3072: the shape of a prefill chunk.
  double GemmFlops();

  // Bytes of memory that this object uses.
  int64_t NumBytes() const;

 private:
  int num_threads_;
  std::unique_ptr<Buffer> memory_;
  std::vector<float> x_, w_, y_;
};

// Median of 7 passes, in 1e9 bytes per second.
double MeasureReadGbPerSecond(int num_threads);

// Processor name, threads and memory: the line that every table of figures starts with.
std::string MachineLine(int num_threads);

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_CEILINGS_H_

// When the requests of an open-loop bench arrive.
#ifndef LSSAR_CLIENTS_CLI_BENCH_ARRIVALS_H_
#define LSSAR_CLIENTS_CLI_BENCH_ARRIVALS_H_

#include <cstdint>
#include <random>

namespace lssar::cli {

// A Poisson process: exponential gaps, whatever becomes of the requests.
class PoissonArrivals {
 public:
  // `rate` in requests a second, > 0. The same seed gives the same arrivals.
  PoissonArrivals(double rate, uint64_t seed) : random_(seed), gap_s_(rate) {}

  // Microseconds from the begin to the next arrival; rises.
  int64_t NextUs() {
    now_s_ += gap_s_(random_);
    return static_cast<int64_t>(now_s_ * 1e6);
  }

 private:
  std::mt19937_64 random_;
  std::exponential_distribution<double> gap_s_;
  double now_s_ = 0;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_ARRIVALS_H_

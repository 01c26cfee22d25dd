#include "tests/bench/median.h"

#include <algorithm>
#include <cstddef>

namespace lssar::bench {

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

}  // namespace lssar::bench

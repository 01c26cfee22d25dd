#include "runtime/attention_statistics.h"

#include <cmath>

namespace lssar {

bool HeadStatistics::Add(std::span<const double> weights, int num_zero_weights) {
  double sum = 0, sum_of_logs = 0;
  int64_t num_nonzero_keys = 0;
  std::array<double, kNumDistances> by_distance = {};
  for (size_t key = 0; key < weights.size(); ++key) {
    const double size = std::fabs(weights[key]);
    if (size == 0) continue;
    ++num_nonzero_keys;
    sum += size;
    sum_of_logs += size * std::log(size);
    by_distance[DistanceBucket(int(weights.size() - 1 - key))] += size;
  }
  if (!std::isfinite(sum_of_logs)) return false;
  ++num_rows;
  num_keys += std::ssize(weights);
  num_nonzero += num_nonzero_keys;
  num_zero += num_zero_weights;
  if (num_nonzero_keys == 0) return true;
  effective_keys += std::exp(std::log(sum) - sum_of_logs / sum);
  first_token_mass += std::fabs(weights.front()) / sum;
  for (size_t i = 0; i < kNumDistances; ++i) distance_mass[i] += by_distance[i] / sum;
  return true;
}

}  // namespace lssar

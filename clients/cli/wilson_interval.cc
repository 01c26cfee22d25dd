#include "clients/cli/wilson_interval.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace lssar::cli {

Interval WilsonInterval(int num_hits, int num_trials) {
  LSSAR_CHECK(num_hits >= 0 && num_hits <= num_trials);
  if (num_trials == 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5% point of the standard normal
  const double n = num_trials;
  const double share = num_hits / n;
  const double denominator = 1 + kZ * kZ / n;
  const double centre = (share + kZ * kZ / (2 * n)) / denominator;
  const double half = kZ * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n)) / denominator;
  return {.low = num_hits == 0 ? 0.0 : std::max(0.0, centre - half),
          .high = num_hits == num_trials ? 1.0 : std::min(1.0, centre + half)};
}

}  // namespace lssar::cli

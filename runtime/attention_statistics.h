// What the attention of one head does with its keys, summed over rows.
#ifndef LSSAR_RUNTIME_ATTENTION_STATISTICS_H_
#define LSSAR_RUNTIME_ATTENTION_STATISTICS_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lssar {

// Sums over rows. Masses are shares of the row's sum of absolute weights, so that a row's masses
// sum to 1 for every kind of attention; a row whose weights are all zero adds none.
struct HeadStatistics {
  // Distance 0 (the row's own token), then [2^(i-1), 2^i): up to limits::kMaxModelLen.
  static constexpr size_t kNumDistances = 22;
  static constexpr size_t DistanceBucket(int distance) {
    return size_t(std::bit_width(uint32_t(distance)));
  }

  int layer = 0;
  int head = 0;
  int64_t num_rows = 0;
  int64_t num_keys = 0;
  int64_t num_nonzero = 0;      // weights that are neither zero nor negligible
  int64_t num_zero = 0;         // weights that the formula makes zero: AttentionRow
  double effective_keys = 0;    // e^entropy
  double first_token_mass = 0;  // of key 0
  std::array<double, kNumDistances> distance_mass = {};

  // Buckets up to the last one that is not empty.
  size_t NumDistances() const {
    size_t count = kNumDistances;
    while (count > 0 && distance_mass[count - 1] == 0) --count;
    return count;
  }

  // Adds a row (AttentionRow): its own token is the last key.
  // Ensures  false, and nothing added, if a weight is NaN or infinite
  bool Add(std::span<const double> weights, int num_zero_weights);
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ATTENTION_STATISTICS_H_

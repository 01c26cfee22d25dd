// How often each token id occurred in a sequence: the input of the sampling penalties.
#ifndef LSSAR_RUNTIME_TOKEN_COUNTS_H_
#define LSSAR_RUNTIME_TOKEN_COUNTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/sampling.h"

namespace lssar {

// Stores only the ids that occurred, so its cost follows the text and not the vocabulary.
class TokenCounts {
 public:
  void AddPrompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) CountOf(id);
  }
  void AddOutput(int32_t id) { ++CountOf(id).num_in_output; }

  // Writes the counts to `counts` as if the ids of `output` had been added.
  // Cost  one copy of the counts
  void CountWith(std::span<const int32_t> output, std::vector<TokenCount>* counts) const {
    *counts = counts_;
    for (const int32_t id : output) {
      const auto known = indices_.find(id);
      auto at = known != indices_.end() ? counts->begin() + std::ptrdiff_t(known->second)
                                        : std::ranges::find(counts->begin() + std::ssize(counts_),
                                                            counts->end(), id, &TokenCount::id);
      if (at == counts->end()) at = counts->insert(at, {.id = id});
      ++at->num_in_output;
    }
  }

  // In the order of their first occurrence.
  std::span<const TokenCount> Counts() const { return counts_; }

 private:
  TokenCount& CountOf(int32_t id) {
    const auto [at, is_first] = indices_.try_emplace(id, counts_.size());
    if (is_first) counts_.push_back({.id = id});
    return counts_[at->second];
  }

  std::vector<TokenCount> counts_;
  absl::flat_hash_map<int32_t, size_t> indices_;  // into counts_
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TOKEN_COUNTS_H_

// How often each id occurred in a sequence: what the penalties look at.
#ifndef LSSAR_RUNTIME_TOKEN_COUNTS_H_
#define LSSAR_RUNTIME_TOKEN_COUNTS_H_

#include <cstdint>
#include <span>

#include "absl/container/flat_hash_map.h"

namespace lssar {

// Of the ids that occurred alone, so its cost follows the text and not the vocabulary.
class TokenCounts {
 public:
  void AddPrompt(std::span<const int32_t> ids) {
    for (const int32_t id : ids) num_in_output_.try_emplace(id, 0);
  }
  void AddOutput(int32_t id) { ++num_in_output_[id]; }

  // id -> times in the output; 0: in the prompt alone.
  const absl::flat_hash_map<int32_t, int>& NumInOutput() const { return num_in_output_; }

 private:
  absl::flat_hash_map<int32_t, int> num_in_output_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TOKEN_COUNTS_H_

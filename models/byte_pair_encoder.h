// Byte pair encoding: the bytes of a word, joined by the merges that a vocabulary was trained to.
#ifndef LSSAR_MODELS_BYTE_PAIR_ENCODER_H_
#define LSSAR_MODELS_BYTE_PAIR_ENCODER_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace lssar {

// Const after construction and safe from any thread.
class BytePairEncoder {
 public:
  struct Merge {
    int32_t left, right;  // side by side they become
    int32_t merged;
  };

  // byte_ids: the ids of single bytes. merges: the first that was learnt first.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  // Appends the ids of `word`: again and again the merge that was learnt first is done, of several
  // places the leftmost.
  // Cost  O(n log n): a word may be as long as a text
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  struct Rule {
    int32_t rank;
    int32_t merged;
  };

  // nullptr: the two are not merged.
  const Rule* Find(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Rule> rules_;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_BYTE_PAIR_ENCODER_H_

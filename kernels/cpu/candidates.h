// The ids that a draw may still give, while its stages cut them down.
#ifndef LSSAR_KERNELS_CPU_CANDIDATES_H_
#define LSSAR_KERNELS_CPU_CANDIDATES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/sampling.h"

namespace lssar {

// In rising order of id, in memory of the caller's.
class Candidates {
 public:
  // That a row of `vocab` logits takes; 64-byte aligned.
  static size_t NumBytes(size_t vocab);

  // All ids of the row.
  Candidates(std::span<const float> logits, void* memory);

  // Bias, allowed and banned ids, penalties.
  void Adjust(const SampleRequest& row);
  // Scores of all ids, before anything is cut.
  std::span<const float> Scores() const { return {scores_, count_}; }

  // Cuts down to what a draw at `params` may give.
  // Requires  best is the largest score; temperature > 0
  void Cut(const SamplingParams& params, float best);
  // The id that `draw` of [0, 2^64) falls on.
  // Requires  Cut
  int32_t Pick(uint64_t draw) const;

 private:
  // Rank order's elements up to one: those of a higher key, and of its key up to its id.
  struct Last {
    uint32_t key;
    int32_t id;
  };
  // Where the amounts of the best reach `wanted`. `amounts` of null: 1 each.
  Last FindLast(const uint64_t* amounts, uint64_t wanted);
  template <typename IsKept>
  void Keep(IsKept is_kept);
  void KeepTo(const Last& last);
  uint64_t TotalWeight() const;

  size_t vocab_;
  size_t count_;
  float* scores_;
  int32_t* ids_;
  uint64_t* weights_;
  uint64_t* bins_;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_CANDIDATES_H_

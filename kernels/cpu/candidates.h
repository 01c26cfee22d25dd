// The candidates of a draw, which the stages of Sample filter.
#ifndef LSSAR_KERNELS_CPU_CANDIDATES_H_
#define LSSAR_KERNELS_CPU_CANDIDATES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/sampling.h"

namespace lssar {

// Ids with their scores, in rising order of id. The caller owns the memory.
class Candidates {
 public:
  // Bytes of memory for `vocab` logits.
  static size_t NumBytes(size_t vocab);

  // All ids of the row.
  // Requires  memory of NumBytes(logits.size()) bytes, 64-byte aligned
  Candidates(std::span<const float> logits, void* memory);

  // Applies the mask, allowed and banned ids, bias and penalties. Ids beyond the row's are
  // skipped.
  void Adjust(const SampleRequest& row);
  // Scores of all ids. Only before Filter.
  std::span<const float> Scores() const { return {scores_, count_}; }

  // Computes weights and applies top-k, top-p and min-p.
  // Requires  best is the largest score; temperature > 0
  void Filter(const SamplingParams& params, float best);
  // The id that `draw`, uniform in [0, 2^64), selects.
  // Requires  Filter was called
  int32_t Pick(uint64_t draw) const;

 private:
  // A prefix of the candidates in rank order: all with a higher key, and those with this key up to
  // id.
  struct RankPrefix {
    uint32_t key;
    int32_t id;
  };
  // The shortest prefix whose amounts sum to at least `wanted`. amounts null: 1 each.
  RankPrefix FindPrefix(const uint64_t* amounts, uint64_t wanted);
  template <typename Predicate>
  void Retain(Predicate predicate);
  void RetainPrefix(const RankPrefix& prefix);
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

// The definition of Attention in code.
#ifndef LSSAR_KERNELS_REFERENCE_ATTENTION_H_
#define LSSAR_KERNELS_REFERENCE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace lssar {

void ReferenceAttention(const AttentionArgs& args);

// Where the keys and values of one head of one sequence lie.
struct HeadPages {
  KvView kv;
  std::span<const int32_t> pages;  // as SequenceSlice'
  int layer = 0;
  int head = 0;

  int Slot(int token) const { return token % kv.layout.page_size; }
  size_t Block(int token) const {
    return kv.layout.BlockIndex(layer, pages[size_t(token / kv.layout.page_size)], head);
  }
};

// The final weights w_j of one row over its first `num_keys` keys: what ReferenceAttention
// multiplies their values by. q [head_dim]; kv.v is not read.
std::vector<double> ReferenceWeights(const AttentionSpec& spec, const HeadPages& pages,
                                     int num_keys, const float* q);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_ATTENTION_H_

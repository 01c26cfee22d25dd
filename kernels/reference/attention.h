// The definition of Attention.
#ifndef LSSAR_KERNELS_REFERENCE_ATTENTION_H_
#define LSSAR_KERNELS_REFERENCE_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention_row.h"
#include "kernels/ops.h"

namespace lssar {

void ReferenceAttention(const AttentionArgs& args);

// One sequence's keys and values of one layer and KV head.
struct KvHeadView {
  KvView kv;
  std::span<const int32_t> pages;  // as in SequenceSlice
  int layer = 0;
  int kv_head = 0;

  int Slot(int token) const { return token % kv.layout.page_size; }
  KvBlock Block(int token) const {
    return kv.layout.Block(layer, pages[size_t(token / kv.layout.page_size)], kv_head);
  }
};

// One row over its first `num_keys` keys: ReferenceAttention multiplies the values by its weights.
// Does not read values. p: PowerOf the query head and num_keys. slope: its AlibiSlope, or 0.
// Shapes  q [head_dim]
AttentionRow ReferenceRow(const AttentionSpec& spec, const KvHeadView& head, int num_keys, double p,
                          double slope, const float* q);

}  // namespace lssar

#endif  // LSSAR_KERNELS_REFERENCE_ATTENTION_H_

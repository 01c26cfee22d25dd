#include "kernels/attention_weights.h"

#include <cstddef>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/attention_math.h"
#include "kernels/reference/attention.h"

namespace lssar {

absl::StatusOr<AttentionRow> AttentionWeights(const AttentionWeightsArgs& args, Backend* backend) {
  const SequenceSlice& sequence = *args.sequence;
  const KvLayout& from = args.kv.layout;
  const int row_idx = args.row - sequence.first_row;
  LSSAR_CHECK(row_idx >= 0 && row_idx < sequence.num_rows);
  LSSAR_CHECK(args.layer >= 0 && args.layer < from.num_layers);
  LSSAR_CHECK(args.head >= 0 && args.head < args.num_heads);
  LSSAR_CHECK(args.num_heads % from.num_kv_heads == 0);
  const int kv_head = args.head / (args.num_heads / from.num_kv_heads);
  const int num_keys = sequence.first_position + row_idx + 1;

  std::vector<float> q(size_t(from.head_dim));
  const size_t at = (size_t(args.row) * size_t(args.num_heads) + size_t(args.head)) * q.size();
  RETURN_IF_ERROR(backend->CopyOut(q.data(), args.q + at, q.size() * sizeof(float)));

  // The KV head's blocks of K, in token order, as the pages of a pool of one layer and one head.
  // fx16: of V too, which hold the low planes.
  KvLayout to = from;
  to.num_layers = to.num_kv_heads = 1;
  to.num_pages = from.PagesFor(num_keys);
  const size_t element_bytes = BytesOf(from.dtype);
  std::vector<std::byte> keys(to.PoolBytes());
  std::vector<std::byte> values(from.dtype == DType::kFx16 ? to.ValuePoolBytes() : 0);
  std::vector<int32_t> pages(size_t(to.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  const auto copy_block = [&](std::vector<std::byte>& blocks, size_t to_block, const void* pool,
                              size_t from_block, size_t stride) {
    return backend->CopyOut(&blocks[to_block * element_bytes],
                            static_cast<const std::byte*>(pool) + from_block * element_bytes,
                            stride * element_bytes);
  };
  for (const int32_t page : pages) {
    const KvBlock block = from.Block(args.layer, sequence.pages[size_t(page)], kv_head);
    const KvBlock copy = to.Block(0, page, 0);
    RETURN_IF_ERROR(copy_block(keys, copy.k, args.kv.k, block.k, from.BlockStride()));
    if (values.empty()) continue;
    RETURN_IF_ERROR(copy_block(values, copy.v, args.kv.v, block.v, from.ValueBlockStride()));
  }
  const double slope = args.spec.has_alibi ? AlibiSlope(args.head, args.num_heads) : 0;
  return ReferenceRow(args.spec,
                      {.kv = {.layout = to, .k = keys.data(), .v = values.data()}, .pages = pages},
                      num_keys, args.spec.PowerOf(args.head, num_keys), slope, q.data());
}

}  // namespace lssar

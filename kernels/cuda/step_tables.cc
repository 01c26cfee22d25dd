#include "kernels/cuda/step_tables.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"

namespace lssar {

template <typename T>
size_t StepTables::Add(const std::vector<T>& array) {
  const size_t at = (bytes_.size() + 15) / 16 * 16;
  bytes_.resize(at + array.size() * sizeof(T));
  if (!array.empty()) std::memcpy(bytes_.data() + at, array.data(), array.size() * sizeof(T));
  return at;
}

bool StepTables::Holds(const RaggedRows& rows, const CudaPlanSetup& setup) const {
  const std::vector<SequenceRows>& sequences = planned_.sequences;
  if (rows.sequences.size() != sequences.size() || sequences.empty() ||
      setup.num_heads != planned_.setup.num_heads ||
      setup.page_tokens != planned_.setup.page_tokens) {
    return false;
  }
  auto page = plan_.pages.begin();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceRows &a = sequences[s], &b = rows.sequences[s];
    if (a.first_row != b.first_row || a.num_rows != b.num_rows ||
        a.first_position != b.first_position) {
      return false;
    }
    const int num_keys = b.first_position + b.num_rows;
    const auto first = b.pages.begin();
    const auto end = first + (num_keys + setup.page_tokens - 1) / setup.page_tokens;
    if (!std::equal(first, end, page)) return false;
    page += end - first;
  }
  return true;
}

bool StepTables::Prepare(const RaggedRows& rows, const KvLayout& layout) {
  const CudaDevice& device = context_.Device();
  const CudaPlanSetup setup{.num_heads = layout.num_heads,
                            .page_tokens = layout.page_tokens,
                            .num_multiprocessors = device.num_multiprocessors,
                            .has_clusters = device.HasClusters()};
  if (Holds(rows, setup)) return true;
  PlanCudaStep(rows, setup, plan_);
  bytes_.clear();
  at_.rows = Add(plan_.rows);
  at_.pages = Add(plan_.pages);
  at_.decode_rows = Add(plan_.decode_rows);
  at_.tiles = Add(plan_.tiles);
  planned_.sequences.clear();
  void* const to = context_.Reserve<void>(memory_, bytes_.size());
  if (to == nullptr || !context_.Check(context_.Driver().CopyIn(to, bytes_.data(), bytes_.size()),
                                       "copying a step's tables")) {
    return false;
  }
  planned_.sequences.assign(rows.sequences.begin(), rows.sequences.end());
  planned_.setup = setup;
  return true;
}

CudaPages StepTables::PagesOf(const KvView& kv, int layer) const {
  const KvLayout& layout = kv.layout;
  LSSAR_CHECK(layout.key_order == KeyOrder::kSlotMajor && layer >= 0 && layer < layout.num_layers);
  const size_t first = layout.BlockIndex(layer, 0, 0) * BytesOf(layout.dtype);
  return {.k = static_cast<unsigned char*>(kv.k) + first,
          .v = static_cast<unsigned char*>(kv.v) + first,
          .pages = At<int32_t>(at_.pages),
          .block_bytes = layout.BlockStride() * BytesOf(layout.dtype),
          .num_heads = layout.num_heads,
          .head_dim = layout.head_dim,
          .page_tokens = layout.page_tokens};
}

}  // namespace lssar

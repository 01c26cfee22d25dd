#include "kernels/cuda/device_tables.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lssar {

namespace {

// Pages of the largest bucket.
size_t MaxBucketPages(int page_size) {
  return size_t{kMaxBucketRows} * size_t{kMaxBucketSplits} * size_t{kCudaSplitKeys} /
         size_t(page_size);
}

}  // namespace

template <typename T>
size_t DeviceTables::Add(std::span<const T> array, size_t max_count) {
  const size_t at = (bytes_.size() + 15) / 16 * 16;
  bytes_.resize(at + max_count * sizeof(T));
  if (!array.empty()) std::memcpy(bytes_.data() + at, array.data(), array.size_bytes());
  return at;
}

CudaPlanSetup DeviceTables::SetupFor(const KvLayout& layout) const {
  return {.num_heads = layout.num_kv_heads,
          .page_size = layout.page_size,
          .num_multiprocessors = context_.Device().num_multiprocessors,
          .has_clusters = context_.Device().has_clusters};
}

bool DeviceTables::Holds(const RaggedBatch& rows, const CudaPlanSetup& setup) const {
  const std::vector<SequenceSlice>& sequences = planned_.sequences;
  if (rows.sequences.size() != sequences.size() || sequences.empty() ||
      setup.num_heads != planned_.setup.num_heads || setup.page_size != planned_.setup.page_size) {
    return false;
  }
  auto page = plan_.pages.begin();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const SequenceSlice &a = sequences[s], &b = rows.sequences[s];
    if (a.first_row != b.first_row || a.num_rows != b.num_rows ||
        a.first_position != b.first_position) {
      return false;
    }
    const int num_keys = b.first_position + b.num_rows;
    const auto first = b.pages.begin();
    const auto end = first + (num_keys + setup.page_size - 1) / setup.page_size;
    if (!std::equal(first, end, page)) return false;
    page += end - first;
  }
  return true;
}

bool DeviceTables::Prepare(const RaggedBatch& rows, const KvLayout& layout) {
  if (is_in_bucket_) return true;
  const CudaPlanSetup setup = SetupFor(layout);
  if (Holds(rows, setup)) return true;
  PlanCudaStep(rows, setup, plan_);
  bytes_.clear();
  at_.rows = Add<CudaRow>(plan_.rows, plan_.rows.size());
  at_.pages = Add<int32_t>(plan_.pages, plan_.pages.size());
  at_.decode_rows = Add<CudaDecodeRow>(plan_.decode_rows, plan_.decode_rows.size());
  at_.tiles = Add<CudaTile>(plan_.tiles, plan_.tiles.size());
  planned_.sequences.clear();
  void* const to = context_.Reserve<void>(memory_, bytes_.size());
  if (to == nullptr ||
      !context_.CopyIn(to, bytes_.data(), bytes_.size(), "copying a step's tables")) {
    return false;
  }
  planned_.sequences.assign(rows.sequences.begin(), rows.sequences.end());
  planned_.setup = setup;
  return true;
}

bool DeviceTables::EnterBucket(const StepArgs& args, const DecodeBucket& bucket) {
  PlanDecodeStep(*args.rows, SetupFor(args.kv.layout), bucket, plan_);
  ids_.assign(args.ids.begin(), args.ids.end());
  ids_.resize(plan_.rows.size(), -1);
  planned_.sequences.clear();
  bytes_.clear();
  at_ = {};
  at_.rows = Add<CudaRow>(plan_.rows, size_t{kMaxBucketRows});
  at_.decode_rows = Add<CudaDecodeRow>(plan_.decode_rows, size_t{kMaxBucketRows});
  at_.ids = Add<int32_t>(ids_, size_t{kMaxBucketRows});
  at_.pages = Add<int32_t>(plan_.pages, plan_.pages.size());  // last: their number varies
  const size_t num_bytes = at_.pages + MaxBucketPages(args.kv.layout.page_size) * sizeof(int32_t);
  void* const to = context_.Reserve<void>(bucket_memory_, num_bytes);
  is_in_bucket_ =
      to != nullptr && context_.CopyIn(to, bytes_.data(), bytes_.size(), "copying a step's tables");
  return is_in_bucket_;
}

void DeviceTables::LeaveBucket() { is_in_bucket_ = false; }

CudaPages DeviceTables::PagesOf(const KvView& kv, int layer) const {
  const KvLayout& layout = kv.layout;
  LSSAR_CHECK(layout.key_order == KeyOrder::kSlotMajor && layer >= 0 && layer < layout.num_layers);
  const size_t bytes = BytesOf(layout.dtype);
  const KvBlock first = layout.Block(layer, 0, 0);
  return {.k = static_cast<unsigned char*>(kv.k) + first.k * bytes,
          .v = static_cast<unsigned char*>(kv.v) + first.v * bytes,
          .pages = At<int32_t>(at_.pages),
          .head_bytes = layout.HeadStride() * bytes,
          .page_bytes = layout.BlockStride() * bytes,
          .value_head_bytes = layout.ValueHeadStride() * bytes,
          .value_page_bytes = layout.ValueBlockStride() * bytes,
          .num_heads = layout.num_kv_heads,
          .head_dim = layout.head_dim,
          .page_size = layout.page_size};
}

}  // namespace lssar

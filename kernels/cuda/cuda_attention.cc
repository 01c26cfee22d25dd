#include "kernels/cuda/cuda_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

#include "base/check.h"
#include "kernels/cuda/cuda_gemm.h"

namespace lssar {
namespace {

constexpr unsigned kMaxWholePower = 1u << 24;

double ScoreUnit(const AttentionForm& form, int head_dim) {
  const double dim = head_dim;
  return std::numbers::log2e * (form.is_length_scaled ? std::log(dim) : 1.0 / std::sqrt(dim));
}

// Divides a batch into blocks that compute several of the query heads that share a K/V head: as
// many as the scores' memory of a cluster allows, on more blocks where that helps.
void GroupHeads(CudaDecodeBatch* batch, CudaAttentionArgs* args) {
  int& num_heads = args->heads_of_block;
  num_heads = std::min(args->heads_of_kv, kMaxHeadsOfBlock);
  if (batch->cluster_blocks == 0) return;
  for (; num_heads > 1; num_heads = (num_heads + 1) / 2) {
    for (int blocks = batch->cluster_blocks; blocks <= kMostClusterBlocks; blocks *= 2) {
      const int splits_of_block = (batch->max_splits + blocks - 1) / blocks;
      if (splits_of_block * num_heads > kSplitsOfBlock) continue;
      batch->cluster_blocks = blocks;
      return;
    }
  }
}

// The most warps of a split decode block whose shared memory the device has. Fewer heads a block
// where not even one warp fits.
void FitSplitDecode(size_t warp_bytes, size_t block_bytes, CudaAttentionArgs* args) {
  const auto bytes_of = [&](int num_warps) {
    return size_t(num_warps) * (warp_bytes + size_t(args->heads_of_block - 1) * kHeadWeightBytes);
  };
  while (args->heads_of_block > 1 && bytes_of(1) > block_bytes) --args->heads_of_block;
  args->split_decode_warps = args->heads_of_block == 1 ? kDecodeWarps : kGroupedDecodeWarps;
  while (args->split_decode_warps > 1 && bytes_of(args->split_decode_warps) > block_bytes) {
    args->split_decode_warps /= 2;
  }
}

}  // namespace

bool CudaAttention::BeginCounting(const AttentionArgs& args) {
  if (args.counters == nullptr) return true;
  if (StepShape* const shape = context_.Shape(); shape != nullptr) {
    shape->num_counted_heads += args.num_heads;
    return true;
  }
  if (!stats_.Begin(args.counters, args.rows->sequences.size())) return false;
  stats_.AddRows(*args.rows, args.num_heads);
  return true;
}

bool CudaAttention::ReserveScratch(int num_heads, int head_dim) {
  const CudaLaunchPlan& plan = tables_.Plan();
  if (plan.num_splits == 0) return true;
  const size_t num_splits = plan.num_splits * size_t(num_heads);
  const size_t num_scores = num_splits * kCudaSplitKeys;
  const size_t floats = num_scores + num_splits * size_t(head_dim + 3);
  unsigned char* const memory = context_.Reserve<unsigned char>(
      scratch_memory_, num_splits * sizeof(double) + floats * sizeof(float));
  // Arrival counters have their own memory, because they must be zero before each launch.
  unsigned* const arrivals = context_.Reserve<unsigned>(
      arrivals_memory_, plan.decode_rows.size() * size_t(num_heads) * sizeof(unsigned));
  if (memory == nullptr || arrivals == nullptr) return false;
  scratch_.sums = reinterpret_cast<double*>(memory);
  scratch_.scores = reinterpret_cast<float*>(scratch_.sums + num_splits);
  scratch_.maxima = scratch_.scores + num_scores;
  scratch_.refined = scratch_.maxima + num_splits;
  scratch_.partials = scratch_.refined + num_splits;
  scratch_.arrivals = arrivals;
  return true;
}

void CudaAttention::Attention(const AttentionArgs& args) {
  LSSAR_CHECK(args.rows != nullptr && args.q != nullptr && args.out != nullptr);
  LSSAR_CHECK(args.q != args.out);
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % layout.num_kv_heads == 0);
  if (!context_.IsOk() || !tables_.Prepare(*args.rows, layout) ||
      !ReserveScratch(args.num_heads, layout.head_dim) || !BeginCounting(args)) {
    return;
  }

  const AttentionForm form = args.spec.Form();
  const double p = args.spec.p;
  const bool is_whole = p == std::floor(p) && p < double{kMaxWholePower};
  const CudaLaunchPlan& plan = tables_.Plan();
  const CudaKernels& kernels = context_.Kernels();
  CudaAttentionArgs to{
      .pages = tables_.PagesOf(args.kv, args.layer),
      .q = args.q,
      .out = args.out,
      .num_heads = args.num_heads,
      .heads_of_kv = args.num_heads / layout.num_kv_heads,
      .heads_of_block = 1,
      .counters = args.counters == nullptr ? nullptr : stats_.RowsRead(),
      .flat_rows = args.counters == nullptr ? nullptr : stats_.FlatRows(),
      .decode_rows = nullptr,
      .num_decode_rows = 0,
      .max_splits = 0,
      .split_decode_warps = 1,
      .tiles = tables_.Tiles(),
      .num_tiles = int(plan.tiles.size()),
      .tile_rows = plan.tile_rows,
      .has_wide_blocks = kernels.attention_memory(layout.dtype, layout.head_dim).wide_prefill <=
                         context_.Device().shared_bytes_of_block,
      .scratch = scratch_,
      .form = form,
      .score_unit = ScoreUnit(form, layout.head_dim),
      .p = float(p),
      .whole_p = is_whole ? unsigned(p) : 0,
      .floor = float(std::pow(double{kNegligibleWeight}, 1.0 / p) * (1 - 0x1p-20)),
      .is_batch_invariant = is_batch_invariant_,
      // Not of grouped heads: which heads a block gathers for together depends on the batch.
      .compacts_values = !is_batch_invariant_ && args.num_heads == layout.num_kv_heads};
  if (to.num_tiles > 0 &&
      !context_.Check(kernels.prefill(to, layout.dtype, context_.Stream()), "prefill attention")) {
    return;
  }
  for (CudaDecodeBatch batch : plan.batches) {
    GroupHeads(&batch, &to);
    FitSplitDecode(kernels.attention_memory(layout.dtype, layout.head_dim).split_decode_warp,
                   context_.Device().shared_bytes_of_block, &to);
    to.decode_rows = tables_.DecodeRows() + batch.first;
    to.num_decode_rows = batch.count;
    to.max_splits = batch.max_splits;
    const int code =
        batch.cluster_blocks > 0
            ? kernels.cluster_decode(to, layout.dtype, batch.cluster_blocks, context_.Stream())
            : kernels.split_decode(to, layout.dtype, context_.Stream());
    if (!context_.Check(code, "decode attention")) return;
  }
}

void CudaAttention::RopeWrite(const RopeWriteArgs& args) {
  LSSAR_CHECK(args.rows != nullptr && args.qkv != nullptr && args.q != nullptr);
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % layout.num_kv_heads == 0);
  LSSAR_CHECK(args.RotaryDims() % 2 == 0 && args.RotaryDims() <= layout.head_dim);
  if (!context_.IsOk() || !tables_.Prepare(*args.rows, layout)) return;
  context_.Check(
      context_.Kernels().rope_write({.pages = tables_.PagesOf(args.kv, args.layer),
                                     .rows = tables_.Rows(),
                                     .qkv = args.qkv,
                                     .rope = args.rope,
                                     .q = args.q,
                                     .num_rows = context_.PaddedRows(args.rows->num_rows),
                                     .num_heads = args.num_heads,
                                     .rotary_dims = args.RotaryDims(),
                                     .dtype = layout.dtype,
                                     .half_split = args.rope_layout == RopeLayout::kHalfSplit,
                                     .q_norm = NormOf(args.qk_norm.q),
                                     .k_norm = NormOf(args.qk_norm.k),
                                     .norm_after_rotary = args.qk_norm.after_rotary,
                                     .normalize = args.normalize},
                                    context_.Stream()),
      "writing keys and values");
}

}  // namespace lssar

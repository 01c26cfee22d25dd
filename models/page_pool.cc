#include "models/page_pool.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/two_planes.h"

namespace lssar {

absl::StatusOr<PagePool> MakePagePool(KvLayout layout, int num_tokens, Backend* backend) {
  RETURN_IF_ERROR(backend->FitLayout(layout));
  layout.num_pages = layout.PagesFor(num_tokens);
  PagePool pool;
  ASSIGN_OR_RETURN(pool.k, backend->Allocate(layout.PoolBytes()));
  ASSIGN_OR_RETURN(pool.v, backend->Allocate(layout.ValuePoolBytes()));
  pool.view = {.layout = layout, .k = pool.k->Address(), .v = pool.v->Address()};
  pool.pages.resize(size_t(layout.num_pages));
  std::iota(pool.pages.begin(), pool.pages.end(), 0);
  return pool;
}

KvLayout LayoutOf(const ModelConfig& config, DType kv_cache_dtype, int page_size) {
  return {.num_layers = config.num_hidden_layers,
          .num_kv_heads = config.NumKvHeads(),
          .head_dim = config.HeadDim(),
          .page_size = page_size,
          .num_pages = 0,
          .dtype = kv_cache_dtype};
}

std::vector<DType> KvTypes() {
  std::vector<DType> types;
  for (const DTypeInfo& info : kDTypes) {
    if (info.holds_kv) types.push_back(info.dtype);
  }
  return types;
}

absl::Status CheckKvType(const ModelConfig& config, DType kv_cache_dtype) {
  for (const AttentionSpec& spec : config.attention) {
    RETURN_IF_ERROR(CheckKvType(spec, kv_cache_dtype));
  }
  return absl::OkStatus();
}

absl::Status RunChunkedPrefill(const ChunkedPrefill& prefill, const KvView& kv,
                               LanguageModel* model,
                               absl::FunctionRef<absl::Status(const ForwardBatch&)> on_step) {
  LSSAR_CHECK(prefill.chunk_size >= 1);
  const int num_tokens = int(prefill.tokens.size());
  size_t next = 0;  // in logits_positions
  ForwardBatch batch;
  for (int begin = 0; begin < num_tokens; begin += prefill.chunk_size) {
    const int count = std::min(prefill.chunk_size, num_tokens - begin);
    const int first_position = prefill.first_position + begin;
    const auto chunk = prefill.tokens.subspan(size_t(begin), size_t(count));
    batch.Clear();
    batch.token_ids.assign(chunk.begin(), chunk.end());
    batch.sequences = {
        {.num_rows = count, .first_position = first_position, .pages = prefill.pages}};
    batch.rope_bases = {prefill.rope_base};
    for (; next < prefill.logits_positions.size() &&
           prefill.logits_positions[next] < first_position + count;
         ++next) {
      batch.logits_indices.push_back(prefill.logits_positions[next] - first_position);
      batch.logits_sequences.push_back(0);
    }
    RETURN_IF_ERROR(model->Forward(batch, kv, prefill.stats));
    RETURN_IF_ERROR(on_step(batch));
  }
  return absl::OkStatus();
}

double LogitsError(std::span<const float> logits, std::span<const float> expected) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double(logits[i]) - double(expected[i]));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
    largest = std::max(largest, std::fabs(double(expected[i])));
  }
  return worst == 0 ? 0 : worst / largest;  // equal rows of zeros are equal, too
}

}  // namespace lssar

// The K/V pages of one sequence, and its chunked prefill: what the self-check, golden_check and the
// benches run a model on. The server's pages belong to the runtime.
#ifndef LSSAR_MODELS_PAGE_POOL_H_
#define LSSAR_MODELS_PAGE_POOL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "models/config.h"
#include "models/language_model.h"

namespace lssar {

struct PagePool {
  std::unique_ptr<Buffer> k, v;
  KvView view;
  std::vector<int32_t> pages;  // of the sequence, in token order
};

// Pages for `num_tokens` tokens. `layout` gives their shape; its num_pages is set here.
// Errors  RESOURCE_EXHAUSTED: no memory
absl::StatusOr<PagePool> MakePagePool(KvLayout layout, int num_tokens, Backend* backend);

// The layout of a model's K/V, without pages yet.
KvLayout LayoutOf(const ModelConfig& config, DType kv_cache_dtype, int page_size);

// The types that K/V may have, in the order of kDTypes.
std::vector<DType> KvTypes();

// Errors  UNIMPLEMENTED: K/V of this type do not serve the attention of a layer; names both
absl::Status CheckKvType(const ModelConfig& config, DType kv_cache_dtype);

// One sequence's tokens, computed in steps of at most `chunk_size`.
struct ChunkedPrefill {
  std::span<const int32_t> tokens;
  int first_position = 0;          // of tokens[0]
  std::span<const int32_t> pages;  // of the sequence
  double rope_base = 0;
  int chunk_size = 0;                         // >= 1, at most the model's max_num_batched_tokens
  std::span<const int32_t> logits_positions;  // whose logits are computed; ascending
  AttentionStats* stats = nullptr;            // added to; nullable
};

// Runs the steps. After each Forward it calls `on_step` with the step's batch; the step's logits
// are those of the positions in order.
// Errors  the model's and on_step's
absl::Status RunChunkedPrefill(const ChunkedPrefill& prefill, const KvView& kv,
                               LanguageModel* model,
                               absl::FunctionRef<absl::Status(const ForwardBatch&)> on_step);

// max |d| of one token's logits, in units of the expected ones' max |logit|; NaN where one is NaN.
double LogitsError(std::span<const float> logits, std::span<const float> expected);

}  // namespace lssar

#endif  // LSSAR_MODELS_PAGE_POOL_H_

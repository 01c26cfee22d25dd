// The GPT-2 block with rotary positions and an attention of the LSSAR family.
#ifndef LSSAR_MODELS_GPT_H_
#define LSSAR_MODELS_GPT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/gpt_weights.h"
#include "models/language_model.h"

namespace lssar {

// Runs one step at a time. The weights do not change after Create.
class Gpt : public LanguageModel {
 public:
  // Allocates the activations of `max_num_batched_tokens` tokens. `backend` must outlive the model.
  // Errors  RESOURCE_EXHAUSTED: no memory for them; UNIMPLEMENTED: an attention kind that the
  //         backend does not compute; INVALID_ARGUMENT: max_num_batched_tokens < 1
  static absl::StatusOr<std::unique_ptr<Gpt>> Create(const ModelConfig& config, GptWeights weights,
                                                     Backend* backend, int max_num_batched_tokens);

  const ModelConfig& Config() const override { return config_; }
  // Requires  besides the interface's: at most max_num_batched_tokens tokens
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv, AttentionStats* stats) override;
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
              std::span<SampleResult> results) override;
  absl::Status Synchronize() override;
  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override;

 private:
  Gpt(const ModelConfig& config, GptWeights weights, Backend* backend, int max_num_batched_tokens);
  absl::Status AllocateActivations();
  LayerNormView View(const GptNorm& norm) const;
  // For every token: x += attention(norm(x)), then x += mlp(norm(x)).
  void RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* stats);
  // Passes the attention weights of `layer`, whose block has just run, to batch.captures.
  absl::Status Capture(int layer, const ForwardBatch& batch, const KvView& kv);
  // Logits of batch.logits_indices[first, first + count), to logits_.
  // Requires  count <= kMaxLogitsRows
  void ComputeLogits(const ForwardBatch& batch, size_t first, size_t count);

  const ModelConfig config_;
  const GptWeights weights_;
  Backend* const backend_;
  const int max_num_batched_tokens_;

  // Activations, [max_num_batched_tokens, ...], in the backend's memory.
  std::unique_ptr<Buffer> x_;             // [hidden_size], the residual stream
  std::unique_ptr<Buffer> qkv_;           // [QkvSize()]
  std::unique_ptr<Buffer> q_;             // [num_attention_heads, head_dim]
  std::unique_ptr<Buffer> attended_;      // [num_attention_heads, head_dim]
  std::unique_ptr<Buffer> mlp_;           // [intermediate_size]
  std::unique_ptr<Buffer> rope_;          // [head_dim]
  std::unique_ptr<Buffer> logits_;        // [kMaxLogitsRows, vocab]
  std::unique_ptr<Buffer> no_norm_bias_;  // [hidden_size] zeros: the bias of a norm without one

  // Host copies.
  std::vector<float> rope_angles_;
  std::vector<double> rope_frequencies_;  // [head_dim / 2]
};

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_H_

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

// One step at a time; the weights do not change after Create.
class Gpt : public LanguageModel {
 public:
  // Reserves the activations of `max_num_batched_tokens` rows. `backend` must outlive the model.
  // Errors  RESOURCE_EXHAUSTED: they do not fit; UNIMPLEMENTED: an attention kind that the backend
  //         does not compute; INVALID_ARGUMENT: max_num_batched_tokens < 1
  static absl::StatusOr<std::unique_ptr<Gpt>> Create(const ModelConfig& config, GptWeights weights,
                                                     Backend* backend, int max_num_batched_tokens);

  const ModelConfig& Config() const override { return config_; }
  // Requires of the contract, and at most max_num_batched_tokens rows.
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionStats* counters) override;
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> rows,
              std::span<SampleResult> out) override;
  absl::Status Synchronize() override;
  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override;

 private:
  Gpt(const ModelConfig& config, GptWeights weights, Backend* backend, int max_num_batched_tokens);
  absl::Status ReserveActivations();
  // x += attention(norm(x)); x += mlp(norm(x)), of every row.
  void RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* counters);
  // Gives batch.captures the weights of `layer`, whose block has just run.
  absl::Status Capture(int layer, const ForwardBatch& batch, const KvView& kv);
  // Of batch.logits_indices[first, first + count), to logits_. Requires count <= kMaxLogitsRows.
  void ComputeLogits(const ForwardBatch& batch, size_t first, size_t count);

  const ModelConfig config_;
  const GptWeights weights_;
  Backend* const backend_;
  const int max_num_batched_tokens_;

  // Activations, [max_num_batched_tokens, ...], in the backend's memory.
  std::unique_ptr<Buffer> x_;         // width: the residual stream
  std::unique_ptr<Buffer> qkv_;       // 3 width
  std::unique_ptr<Buffer> q_;         // heads, head_dim
  std::unique_ptr<Buffer> attended_;  // heads, head_dim
  std::unique_ptr<Buffer> mlp_;       // intermediate_size
  std::unique_ptr<Buffer> rope_;      // head_dim
  std::unique_ptr<Buffer> logits_;    // [kMaxLogitsRows, vocab]

  // Host copies.
  std::vector<float> rope_angles_;
  std::vector<double> rope_frequencies_;  // [head_dim / 2]
};

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_H_

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
  // Reserves the activations of `max_batch_rows` rows. `backend` must outlive the model.
  // Errors  RESOURCE_EXHAUSTED: they do not fit; UNIMPLEMENTED: an attention kind that the backend
  //         does not compute; INVALID_ARGUMENT: max_batch_rows < 1
  static absl::StatusOr<std::unique_ptr<Gpt>> Create(const ModelConfig& config, GptWeights weights,
                                                     Backend* backend, int max_batch_rows);

  const ModelConfig& Config() const override { return config_; }
  // Requires of the contract, and at most max_batch_rows rows.
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionCounters* counters) override;
  int MaxLogitsRows() const override;
  absl::StatusOr<LogitsBlock> Logits(const ForwardBatch& batch, int first, int count) override;
  void TopLogprobs(std::span<const int32_t> targets, std::span<const int32_t> num_top,
                   std::span<RowLogprobs> out) override;

 private:
  Gpt(const ModelConfig& config, GptWeights weights, Backend* backend, int max_batch_rows);
  absl::Status ReserveActivations();
  // x += attention(norm(x)); x += mlp(norm(x)), of every row.
  void RunBlock(int layer, const RaggedRows& rows, const KvView& kv, AttentionCounters* counters);

  const ModelConfig config_;
  const GptWeights weights_;
  Backend* const backend_;
  const int max_batch_rows_;

  // Activations, [max_batch_rows, ...], in the backend's memory.
  std::unique_ptr<Buffer> x_;         // width: the residual stream
  std::unique_ptr<Buffer> qkv_;       // 3 width
  std::unique_ptr<Buffer> q_;         // heads, head_dim
  std::unique_ptr<Buffer> attended_;  // heads, head_dim
  std::unique_ptr<Buffer> mlp_;       // mlp_width
  std::unique_ptr<Buffer> rope_;      // head_dim
  std::unique_ptr<Buffer> logits_;    // [MaxLogitsRows(), vocab]

  // Host copies.
  std::vector<float> rope_angles_;
  std::vector<double> rope_frequencies_;  // [head_dim / 2]
  std::vector<float> logits_values_;
  int num_logits_rows_ = 0;  // of the last Logits
};

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_H_

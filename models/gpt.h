// A GPT with attention of the LSSAR family: the one forward pass of every architecture that
// ModelConfig describes.
#ifndef LSSAR_MODELS_GPT_H_
#define LSSAR_MODELS_GPT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/gpt_weights.h"
#include "models/language_model.h"

namespace lssar {

// Runs one step at a time. The weights do not change after Create.
class Gpt : public LanguageModel {
 public:
  // Allocates the activations of `max_num_batched_tokens` tokens. `backend` must outlive the model.
  // Errors  RESOURCE_EXHAUSTED: no memory for them; INVALID_ARGUMENT: max_num_batched_tokens < 1;
  //         those of CheckBackend
  static absl::StatusOr<std::unique_ptr<Gpt>> Create(const ModelConfig& config, GptWeights weights,
                                                     Backend* backend, int max_num_batched_tokens);

  // Errors  UNIMPLEMENTED: `backend` does not compute an attention kind or a feature of the model
  //         (names the field, its value and what the backend computes)
  static absl::Status CheckBackend(const ModelConfig& config, const Backend& backend);

  // Bytes of the backend's memory that Create allocates.
  static int64_t ActivationBytes(const ModelConfig& config, int max_num_batched_tokens);
  // Errors  RESOURCE_EXHAUSTED: they are more than `free_bytes` (names the fields of config.json
  //         that take most of them)
  static absl::Status CheckActivationsFit(const ModelConfig& config, int max_num_batched_tokens,
                                          int64_t free_bytes);

  const ModelConfig& Config() const override { return config_; }
  // Requires  besides the interface's: at most max_num_batched_tokens tokens
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv, AttentionStats* stats) override;
  absl::Status PrepareSteps(const KvView& kv, int max_rows, int max_keys) override;
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
              std::span<SampleResult> results) override;
  absl::Status Synchronize() override;
  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override;
  absl::Status CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) override;
  int NumHeadOutputs() const override { return int(weights_.regression_head.bias.size()); }
  void ApplyHead(std::span<const float> hidden, std::span<float> out) const override;

 private:
  Gpt(const ModelConfig& config, GptWeights weights, Backend* backend, int max_num_batched_tokens);
  absl::Status AllocateActivations();
  absl::Status FillOnes();
  absl::Status FillNoRotation();
  absl::Status CopyFinalNorm();
  // A norm of hidden states. An absent weight is ones_, an absent bias zeros_.
  NormView View(const GptNorm& norm) const;
  // A norm of heads.
  NormView HeadView(const GptNorm& norm) const;
  // Forward, of which run_step runs the ops if the step can be replayed from a graph.
  using RunStep = absl::FunctionRef<void(const StepArgs& args, absl::FunctionRef<void()> ops)>;
  absl::Status ForwardBy(RunStep run_step, const ForwardBatch& batch, const KvView& kv,
                         AttentionStats* stats);
  // The formula of ModelConfig, for every token.
  void RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* stats);
  // Adjacent sequences of a batch that have the same attention, as a batch of their own: rows and
  // sequences count from the group's first.
  struct AttentionGroup {
    const std::vector<AttentionSpec>* layers = nullptr;
    int first_row = 0;
    int first_sequence = 0;
    std::vector<SequenceSlice> sequences = {};
    RaggedBatch rows = {};
  };
  // Fills what the tokens' positions need: positions_, or angles.
  absl::Status PlaceTokens(const ForwardBatch& batch, const RaggedBatch& rows);
  // Splits the batch into groups_. False: all of it has the model's own attention.
  bool GroupByAttention(const ForwardBatch& batch, const RaggedBatch& rows);
  // attended_ = attention(norm(x)), before its output projection, of the groups.
  void RunAttention(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* stats);
  void RunGroup(int layer, const AttentionGroup& group, const KvView& kv, AttentionStats* stats);
  // mlp_ = the MLP's hidden units of norm(x).
  void RunMlpIn(const GptLayer& w, int num_rows);
  // x += scale * (`from` W^T + bias), through `post_norm` if the norms are a sandwich.
  void AddToResidual(const GptLinear& linear, const float* from, const GptNorm& post_norm,
                     float scale, int num_rows);
  // Passes the attention weights of `layer`, whose block has just run, to batch.captures.
  absl::Status Capture(int layer, const ForwardBatch& batch, const KvView& kv);
  // x += the vectors of batch.steered that are for `layer`, in fp32 on the host.
  absl::Status Steer(int layer, const ForwardBatch& batch);
  // Copies x_ to batch.hidden_captures, where they have `layer`.
  absl::Status CaptureHidden(int layer, const ForwardBatch& batch);
  // Logits of batch.logits_indices[first, first + count), to logits_.
  // Requires  count <= kMaxLogitsRows
  void ComputeLogits(const ForwardBatch& batch, size_t first, size_t count);

  const ModelConfig config_;
  const GptWeights weights_;
  Backend* const backend_;
  const int max_num_batched_tokens_;

  // Activations, [max_num_batched_tokens, ...], in the backend's memory.
  std::unique_ptr<Buffer> x_;         // [hidden_size], the residual stream
  std::unique_ptr<Buffer> qkv_;       // [QkvSize()]
  std::unique_ptr<Buffer> q_;         // [num_attention_heads, head_dim]
  std::unique_ptr<Buffer> attended_;  // [num_attention_heads, head_dim]
  std::unique_ptr<Buffer> mlp_;       // [intermediate_size]
  std::unique_ptr<Buffer> branch_;    // [hidden_size], a branch before its norm; sandwich only
  std::unique_ptr<Buffer> rope_;      // [RotaryDims()]
  std::unique_ptr<Buffer> no_rope_;   // [RotaryDims()], of layers without positions
  std::unique_ptr<Buffer> logits_;    // [kMaxLogitsRows, vocab]
  std::unique_ptr<Buffer> ones_,
      zeros_;  // [hidden_size or head_dim]: of norms without weight, bias

  bool IsInterrupted() const {
    return interrupt_ != nullptr && interrupt_->load(std::memory_order_relaxed);
  }

  std::vector<AttentionGroup> groups_;                // of the batch that runs
  const std::atomic<bool>* interrupt_ = nullptr;      // of the batch that runs
  std::atomic<int64_t>* num_layers_begun_ = nullptr;  // of the same

  // Host copies.
  std::vector<float> final_norm_weight_, final_norm_bias_;  // [hidden_size]
  std::vector<float> rope_angles_;
  std::vector<double> rope_frequencies_;  // [RotaryDims() / 2]
  std::vector<int32_t> positions_;        // of the batch's tokens; learned positions only
  std::vector<float> steered_;            // rows of x_
};

}  // namespace lssar

#endif  // LSSAR_MODELS_GPT_H_

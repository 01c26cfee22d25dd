// Runs the model for one step: batch in, Forward, Sample, results to the tasks.
#ifndef LSSAR_RUNTIME_MODEL_RUNNER_H_
#define LSSAR_RUNTIME_MODEL_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/language_model.h"
#include "runtime/attention_sampler.h"
#include "runtime/engine_stats.h"
#include "runtime/scheduler.h"

namespace lssar {

// One step is PrepareBatch, Forward, then Sample or Discard, with the same scheduled sequences.
// Threads   the engine's thread only
class ModelRunner {
 public:
  // `model` and the memory of `kv` must outlive the runner.
  // `attention_sample_interval`: as in EngineOptions.
  ModelRunner(LanguageModel* model, const KvView& kv, int attention_sample_interval)
      : model_(model), kv_(kv) {
    if (attention_sample_interval > 0) {
      sampler_.emplace(model->Config(), attention_sample_interval);
    }
  }

  // Builds the model's input. The page tables stay in the sequences, which must not change before
  // the end of Sample. Element i of the batch's sequences belongs to scheduled[i].
  void PrepareBatch(std::span<const ScheduledSequence> scheduled);
  int NumTokens() const { return int(batch_.token_ids.size()); }

  // `interrupt`: of ForwardBatch. Ignored in a step that captures attention: its sinks would get
  // the weights again.
  // Errors  CANCELLED: interrupted, Discard must be called; INTERNAL: the backend's, Sample must be
  //         called even so
  absl::Status Forward(const std::atomic<bool>* interrupt = nullptr);
  // Samples the logits that the tasks need, waits for the device and gives each result to its task.
  // `forward`: the status of Forward. A sequence whose logits are not finite gets a DATA_LOSS
  // status, and none of its later results. If the step failed, every sequence gets its error.
  // Errors  INTERNAL: the backend's, of Forward or since
  absl::Status Sample(const absl::Status& forward, std::span<ScheduledSequence> scheduled);

  // Ends a step that was interrupted: waits for the device, and counts nothing. The step may be
  // repeated.
  // Errors  INTERNAL: the backend's, and the step has failed: Sample must be called with it
  absl::Status Discard() { return model_->Synchronize(); }

  const ModelCounters& Totals() const { return totals_; }
  // Counted over all Forwards since the start; rises while one runs.
  // Threads   any
  int64_t NumLayersBegun() const { return num_layers_begun_; }
  // Threads   any
  std::vector<HeadStatistics> SampledAttention() const {
    return sampler_ ? sampler_->Statistics() : std::vector<HeadStatistics>();
  }

 private:
  // The position of token `token_idx` of the batch in its sequence.
  int PositionOf(int32_t sequence_idx, int32_t token_idx) const;
  void RequestSamples(std::span<const ScheduledSequence> scheduled);
  void CountTokens(std::span<const ScheduledSequence> scheduled);
  absl::Status DeliverResults(std::span<ScheduledSequence> scheduled);
  // The logits of batch_.logits_indices[index], which its task wants; those of the tokens after it
  // are fetched with them.
  absl::StatusOr<std::span<const float>> LogitsOf(size_t index);
  void AddHiddenRow(int row, int32_t sequence_idx, std::span<const int32_t> layers);
  // Gives the captures of hidden_runs_ their memory, and adds them to the batch.
  void PlaceHiddenRuns();
  absl::Status DeliverHiddenStates(std::span<ScheduledSequence> scheduled);

  LanguageModel* const model_;
  const KvView kv_;
  ModelCounters totals_;
  std::atomic<int64_t> num_layers_begun_ = 0;
  std::optional<AttentionSampler> sampler_;  // nullopt: attention is not sampled

  // State of the step; members to reuse their memory.
  ForwardBatch batch_;
  std::vector<AttentionStats> attention_;  // one for each scheduled sequence
  std::vector<SampleRequest> requests_;    // one for each of batch_.logits_indices
  struct HiddenRun {
    int32_t sequence_idx = 0;
    HiddenCapture rows;
  };
  std::vector<HiddenRun> hidden_runs_;
  std::vector<float> final_states_;     // [batch_.hidden_indices.size(), hidden_size]
  std::vector<float> residual_states_;  // of the captures of hidden_runs_
  std::vector<float> token_states_;     // [layers, hidden_size], of one token
  std::vector<float> logits_;           // of batch_.logits_indices from first_logits_ on
  size_t first_logits_ = 0;
  std::vector<SampleResult> results_;  // never shrinks: elements reuse their lists
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_MODEL_RUNNER_H_

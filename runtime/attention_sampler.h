// Statistics of the attention of served requests, from a sample: one row of one head every few
// steps.
#ifndef LSSAR_RUNTIME_ATTENTION_SAMPLER_H_
#define LSSAR_RUNTIME_ATTENTION_SAMPLER_H_

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "models/language_model.h"
#include "runtime/attention_statistics.h"

namespace lssar {

struct ScheduledSequence;

// Heads take turns, layer by layer, and so do the sequences of a batch. A sampled row is the last
// one of its sequence in the step, draft tokens aside.
// Threads   the engine's thread, except Statistics
class AttentionSampler final : private WeightsSink {
 public:
  // `interval`: steps from sample to sample, >= 1.
  AttentionSampler(const ModelConfig& config, int interval);

  // Call for each batch, before Forward: adds a capture to it where a sample is due. Element i of
  // the batch's sequences belongs to scheduled[i].
  // Cost  0.2 us for each key of the row, on the engine's thread, in Forward
  void AddCapture(std::span<const ScheduledSequence> scheduled, ForwardBatch* batch);

  // One for each head that has a sample, ordered by layer, then head. Thread-safe.
  std::vector<HeadStatistics> Statistics() const;

 private:
  void OnWeights(int layer, int head, int position, const AttentionRow& row) override;

  const int num_layers_, num_heads_, interval_;
  int64_t num_steps_ = 0;
  int64_t num_samples_ = 0;
  int32_t layer_ = 0, head_ = 0;  // of the next sample

  mutable std::mutex mutex_;
  std::vector<HeadStatistics> heads_;  // [layer][head]; guarded by mutex_
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_ATTENTION_SAMPLER_H_

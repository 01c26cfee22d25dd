#include "runtime/attention_sampler.h"

#include <algorithm>
#include <iterator>

#include "runtime/scheduler.h"

namespace lssar {

AttentionSampler::AttentionSampler(const ModelConfig& config, int interval)
    : num_layers_(config.num_hidden_layers),
      num_heads_(config.num_attention_heads),
      interval_(interval) {
  for (int layer = 0; layer < num_layers_; ++layer) {
    for (int head = 0; head < num_heads_; ++head) heads_.push_back({.layer = layer, .head = head});
  }
}

void AttentionSampler::AddCapture(std::span<const ScheduledSequence> scheduled,
                                  ForwardBatch* batch) {
  if (scheduled.empty() || num_steps_++ % interval_ != 0) return;
  const int64_t sample = num_samples_++;
  head_ = int32_t(sample % num_heads_);
  layer_ = int32_t(sample / num_heads_ % num_layers_);
  const auto sequence_idx = size_t(sample % std::ssize(scheduled));
  const auto num_draft = int(scheduled[sequence_idx].sequence->draft.size());
  const SequenceSlice& sequence = batch->sequences[sequence_idx];
  batch->captures.push_back(
      {.row = sequence.first_row + sequence.num_rows - 1 - num_draft,
       .sequence_idx = int(sequence_idx),
       .heads = {.layers = {&layer_, 1}, .heads = {&head_, 1}, .sink = this}});
}

void AttentionSampler::OnWeights(int layer, int head, int /*position*/, const AttentionRow& row) {
  const std::lock_guard lock(mutex_);
  heads_[size_t(layer * num_heads_ + head)].Add(row.weights, row.num_zero);
}

std::vector<HeadStatistics> AttentionSampler::Statistics() const {
  std::vector<HeadStatistics> sampled;
  const std::lock_guard lock(mutex_);
  std::ranges::copy_if(heads_, std::back_inserter(sampled),
                       [](const HeadStatistics& head) { return head.num_rows > 0; });
  return sampled;
}

}  // namespace lssar

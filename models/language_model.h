// What the runtime needs of a model: ragged rows in, ids and log-probabilities of the rows asked
// for out.
#ifndef LSSAR_MODELS_LANGUAGE_MODEL_H_
#define LSSAR_MODELS_LANGUAGE_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "models/config.h"

namespace lssar {

// Hears the final attention weights of rows while a Forward computes them.
class WeightsSink {
 public:
  virtual ~WeightsSink() = default;
  // Of the row at `position` in one head: weights[j] is key j's, of position + 1 keys. NaN where
  // the row's logits are not finite.
  virtual void OnWeights(int layer, int head, int position, std::span<const double> weights) = 0;
};

// Heads whose weights are wanted. Views: they stay until the Forward is over.
struct HeadCapture {
  std::span<const int32_t> layers;
  std::span<const int32_t> heads;  // of each of the layers
  WeightsSink* sink = nullptr;
};

// A row whose weights are wanted.
struct RowCapture {
  int row = 0;           // of the batch
  int sequence_idx = 0;  // whose it is
  HeadCapture heads;
};

// One engine step's input. Rows are tokens; sequences are ragged runs of adjacent rows.
struct ForwardBatch {
  std::vector<int32_t> token_ids;  // [num_rows]
  std::vector<SequenceSlice>
      sequences;                   // in row order, covering all rows; page spans live elsewhere
  std::vector<double> rope_bases;  // [sequences.size()]
  std::vector<int32_t> logits_indices;    // rows whose logits are wanted, ascending
  std::vector<int32_t> logits_sequences;  // [logits_indices.size()]: index into sequences
  // For those who look at attention; few rows, each costs 0.2 us a key and head.
  std::vector<RowCapture> captures;

  void Clear() {
    token_ids.clear();
    sequences.clear();
    rope_bases.clear();
    logits_indices.clear();
    logits_sequences.clear();
    captures.clear();
  }
};

// A step is one Forward, one Sample where anything of it is wanted, and one Synchronize. Only
// Synchronize waits: a device computes on while the host goes through the calls.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual const ModelConfig& Config() const = 0;

  // Runs every row of the batch through the model, writing its K and V to `kv`.
  // `counters`: one element for each of batch.sequences, added to (over all layers and heads) by
  // the end of Synchronize; null when nobody counts.
  // Gives the sinks of batch.captures their weights (kernels/attention_weights.h) before it
  // returns.
  // Requires  0 <= token id < vocab_size; pages of distinct sequences disjoint or only read
  // Errors    the backend's (a device that failed); the step's rows are then lost
  virtual absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                               AttentionStats* counters) = 0;

  // Samples (ops.h) the logits of the Forward before it: element i of `rows` and `out` is of
  // batch.logits_indices[i]. `rows` may go afterwards; `out` is complete after Synchronize. Logits are
  // held for a bounded block of rows at a time: a 16K score never holds 16K x vocabulary at once.
  // Requires  an element for each of batch.logits_indices
  virtual void Sample(const ForwardBatch& batch, std::span<const SampleRequest> rows,
                      std::span<SampleResult> out) = 0;

  // Waits for the step.
  // Errors  the backend's, of anything since the last Synchronize; the step's rows are then lost
  virtual absl::Status Synchronize() = 0;

  // Copies the logits of batch.logits_indices[first, first + count) of the Forward before it to host
  // memory, [count, vocab]; waits. For checks: serving takes no logits off the device.
  virtual absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                                  std::span<float> out) = 0;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_LANGUAGE_MODEL_H_

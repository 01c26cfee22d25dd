// The interface between the runtime and a model: a batch of tokens in, sampled tokens and
// log-probabilities out.
#ifndef LSSAR_MODELS_LANGUAGE_MODEL_H_
#define LSSAR_MODELS_LANGUAGE_MODEL_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention_row.h"
#include "kernels/ops.h"
#include "models/config.h"

namespace lssar {

// Receives final attention weights while a Forward computes them.
class WeightsSink {
 public:
  virtual ~WeightsSink() = default;
  // The weights of the token at `position` in one head: weights[j] is key j's, of position + 1
  // keys. NaN where the token's logits are not finite.
  virtual void OnWeights(int layer, int head, int position, const AttentionRow& row) = 0;
};

// The heads to capture. The spans must stay valid until the Forward returns.
struct HeadCapture {
  std::span<const int32_t> layers;
  std::span<const int32_t> heads;  // in each of the layers
  WeightsSink* sink = nullptr;
};

// A token whose attention weights are captured.
struct RowCapture {
  int row = 0;           // index into ForwardBatch::token_ids
  int sequence_idx = 0;  // index of the token's sequence
  HeadCapture heads;
};

// Layers of hidden states. 0 is the embedding, k in [1, num_hidden_layers] the residual stream
// behind block k; this one is the last of these after the final norm.
inline constexpr int32_t kFinalNorm = -1;

// Adjacent tokens of one sequence whose residual stream is copied out.
struct HiddenCapture {
  int first_row = 0;  // index into ForwardBatch::token_ids
  int num_rows = 0;
  std::span<const int32_t> layers = {};  // without repeats; that of kFinalNorm is not written
  float* out = nullptr;                  // [layers.size(), num_rows, hidden_size], host memory
};

// Added to the residual stream behind a layer (0: to the embedding), for the tokens from a position
// on.
struct SteeringVector {
  int layer = 0;                   // [0, num_hidden_layers]
  int first_position = 0;          // in the sequence
  std::vector<float> values = {};  // [hidden_size], finite
};

struct SteeredSequence {
  int sequence_idx = 0;
  // Those of one layer are added in this order. Must stay valid until the Forward returns.
  std::span<const SteeringVector> vectors = {};
};

// The input of one step: the tokens of all sequences, each sequence's tokens side by side.
struct ForwardBatch {
  std::vector<int32_t> token_ids;        // [num_batched_tokens]
  std::vector<SequenceSlice> sequences;  // in batch order, covering all tokens; pages not owned
  std::vector<double> rope_bases;        // [sequences.size()]
  // [sequences.size()]: the attention of each layer for the sequence; null: the model's own.
  std::vector<const std::vector<AttentionSpec>*> attention;
  std::vector<int32_t> logits_indices;    // tokens whose logits are computed, ascending
  std::vector<int32_t> logits_sequences;  // [logits_indices.size()]: index into sequences
  std::vector<int32_t> hidden_indices;    // tokens for CopyHiddenStates, ascending
  std::vector<RowCapture> captures;       // few tokens: each costs 0.2 us a key and head
  std::vector<HiddenCapture> hidden_captures;
  std::vector<SteeredSequence> steered;
  // Once it is true, Forward ends as soon as it can. Null: never. Such a step is not replayed from
  // a graph.
  const std::atomic<bool>* interrupt = nullptr;
  // Counts layers as they begin, so that others see a long step go on; none of a replayed graph.
  // Null: not counted.
  std::atomic<int64_t>* num_layers_begun = nullptr;

  void Clear() {
    token_ids.clear();
    sequences.clear();
    rope_bases.clear();
    attention.clear();
    logits_indices.clear();
    logits_sequences.clear();
    hidden_indices.clear();
    captures.clear();
    hidden_captures.clear();
    steered.clear();
    interrupt = nullptr;
    num_layers_begun = nullptr;
  }
};

// A step is one Forward, one Sample where any logits are computed, and one Synchronize. Only
// Synchronize waits: a device computes while the host makes the calls.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual const ModelConfig& Config() const = 0;

  // Runs every token of the batch through the model and writes its K and V to `kv`. Passes the
  // weights to the sinks of batch.captures (kernels/attention_weights.h), and writes
  // batch.hidden_captures, before it returns.
  // `stats`: one element for each of batch.sequences, added to (over all layers and heads) by the
  // end of Synchronize; nullable.
  // Requires  0 <= token id < vocab_size; pages of distinct sequences disjoint or only read
  // Errors    the backend's (a device that failed); the step's results are then lost. CANCELLED:
  //           batch.interrupt was true before the end. The slots of the batch's tokens in `kv` then
  //           hold anything, and another Forward computes them
  virtual absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                               AttentionStats* stats) = 0;

  // Prepares the backend for decode steps of up to max_rows tokens, in sequences of at most
  // max_keys tokens. Before the first Forward: it writes to page 0 of `kv`.
  // Errors    the backend's
  virtual absl::Status PrepareSteps(const KvView& /*kv*/, int /*max_rows*/, int /*max_keys*/) {
    return absl::OkStatus();
  }

  // Samples (ops.h) from the logits of the last Forward: requests[i] and results[i] belong to
  // batch.logits_indices[i]. `requests` may be destroyed afterwards; `results` is complete after
  // Synchronize. Logits are computed for a bounded block of tokens at a time: scoring 16K tokens
  // never allocates 16K x vocabulary.
  // Requires  one request and one result for each of batch.logits_indices
  virtual void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
                      std::span<SampleResult> results) = 0;

  // Waits for the step.
  // Errors  the backend's, of anything since the last Synchronize; the step's results are then
  //         lost
  virtual absl::Status Synchronize() = 0;

  // Copies the logits of batch.logits_indices[first, first + count) of the last Forward to host
  // memory, [count, vocab], and waits. Computes them again: for checks, and for requests of whole
  // distributions.
  virtual absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                                  std::span<float> out) = 0;

  // Copies the hidden states of batch.hidden_indices of the last Forward, after the final norm, to
  // host memory; waits. The norm is computed in double on the host.
  // Shapes    out [batch.hidden_indices.size(), hidden_size]
  // Errors    the backend's
  virtual absl::Status CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) = 0;

  // Outputs of the regression head (`head.weight`, `head.bias`); 0: the checkpoint has none.
  virtual int NumHeadOutputs() const = 0;
  // The regression head: out = W hidden + b, in double on the host.
  // Shapes    hidden [hidden_size], out [NumHeadOutputs()]
  // Requires  NumHeadOutputs() > 0
  virtual void ApplyHead(std::span<const float> hidden, std::span<float> out) const = 0;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_LANGUAGE_MODEL_H_

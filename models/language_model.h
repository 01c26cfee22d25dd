// What the runtime needs of a model: ragged rows in, logits of the rows asked for out.
#ifndef LSSAR_MODELS_LANGUAGE_MODEL_H_
#define LSSAR_MODELS_LANGUAGE_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"
#include "models/config.h"

namespace lssar {

// One engine step's input. Rows are tokens; sequences are ragged runs of adjacent rows.
struct ForwardBatch {
  std::vector<int32_t> token_ids;  // [num_rows]
  std::vector<SequenceRows>
      sequences;                     // in row order, covering all rows; page spans live elsewhere
  std::vector<double> rope_bases;    // [sequences.size()]
  std::vector<int32_t> logits_rows;  // rows whose logits are wanted, ascending
  std::vector<int32_t> logits_sequence;  // [logits_rows.size()]: index into sequences

  void Clear() {
    token_ids.clear();
    sequences.clear();
    rope_bases.clear();
    logits_rows.clear();
    logits_sequence.clear();
  }
};

// Logits of some of a batch's logits_rows, [num_rows, vocab], in host memory.
struct LogitsBlock {
  int num_rows = 0;
  int vocab = 0;
  std::span<const float> values;

  std::span<const float> Row(int i) const {
    return values.subspan(size_t(i) * size_t(vocab), size_t(vocab));
  }
};

class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual const ModelConfig& Config() const = 0;

  // Runs every row of the batch through the model, writing its K and V to `kv`.
  // `counters`: one element for each of batch.sequences, added to (over all layers and heads); null
  // when nobody counts.
  // Requires  0 <= token id < vocab_size; pages of distinct sequences disjoint or only read
  // Errors    the backend's (a device that failed); the step's rows are then lost
  virtual absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                               AttentionCounters* counters) = 0;

  // How many rows one Logits call takes at most: a 16K score never holds 16K x vocabulary at once.
  virtual int MaxLogitsRows() const = 0;

  // Logits of batch.logits_rows[first, first + count) of the Forward just run. The block is valid
  // until the next call of either.
  virtual absl::StatusOr<LogitsBlock> Logits(const ForwardBatch& batch, int first, int count) = 0;

  // Log-probabilities for rows of the block that Logits gave last (ops.h TopLogprobs).
  virtual void TopLogprobs(std::span<const int32_t> targets, std::span<const int32_t> num_top,
                           std::span<RowLogprobs> out) = 0;
};

}  // namespace lssar

#endif  // LSSAR_MODELS_LANGUAGE_MODEL_H_

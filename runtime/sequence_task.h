// What a sequence is run for: it says which rows' logits it wants, and goes on from them.
#ifndef LSSAR_RUNTIME_SEQUENCE_TASK_H_
#define LSSAR_RUNTIME_SEQUENCE_TASK_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "runtime/prefix_cache.h"
#include "runtime/request.h"
#include "runtime/sampler.h"

namespace lssar {

struct Sequence;

// What TopLogprobs is asked of a row: the token after it, and how many of the best.
struct RowTarget {
  int32_t id = -1;  // -1: no log-probability is wanted
  int num_top = 0;
};

// In one step: Choose for each row whose logits it wants, in rising position; Take for those of
// them that named an id, in the same order (calls of the two interleave, a block of rows at a
// time); then Advance, then Publish.
// Threads   the engine's
class SequenceTask {
 public:
  virtual ~SequenceTask() = default;

  // Whether the logits of the row at `position` (which tell of the token at position + 1) are
  // wanted, and have not been taken yet: a row that is computed again is not asked twice.
  virtual bool WantsLogits(const Sequence& sequence, int position) const = 0;
  // The first such position. K and V of those before it may come from the prefix cache. At most the
  // last token's.
  virtual int FirstWantedRow(const Sequence& sequence) const = 0;

  // What is known of tokens [first, first + scores.size()) without their rows: the task may take
  // what it wants of them, which raises FirstWantedRow.
  virtual void TakeCached(int first, std::span<const TokenScore> scores);
  // Writes what the task knows of tokens [first, first + scores.size()) for others to take.
  virtual void ReadScores(int first, std::span<TokenScore> scores) const;

  // Whether a reader waits for each next token.
  virtual bool Streams() const = 0;

  // Decides the token after `position`; a sampled one is drawn here.
  // Errors  DATA_LOSS: a logit is NaN or infinite
  virtual absl::StatusOr<RowTarget> Choose(const Sequence& sequence, int position,
                                           std::span<const float> logits, Sampler* sampler) = 0;

  // The log-probabilities of the `target` that Choose named for the row at `position`.
  virtual void Take(int position, const RowTarget& target, RowLogprobs* logprobs) = 0;

  // The step's rows are computed: adds the next tokens, or rewinds, or ends.
  virtual void Advance(Sequence* sequence) = 0;

  // Gives the sink what became known in this step.
  virtual void Publish(TokenSink* sink) = 0;

  virtual bool IsDone() const = 0;
  virtual int NumGenerated() const = 0;
};

// The id and log-probability of a token, and the best beside it, as the request asked for them.
// Takes `top` out of `logprobs`.
TokenResult MakeTokenResult(const RowTarget& target, RowLogprobs* logprobs);

// The DATA_LOSS of a row whose logits are not finite.
absl::Status LogitsNotFinite(int position);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_TASK_H_

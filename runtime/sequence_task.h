// What a sequence is run for: it says which rows' logits it wants, and goes on from them.
#ifndef LSSAR_RUNTIME_SEQUENCE_TASK_H_
#define LSSAR_RUNTIME_SEQUENCE_TASK_H_

#include <cstdint>
#include <span>

#include "kernels/sampling.h"
#include "models/language_model.h"
#include "runtime/prefix_cache.h"
#include "runtime/request.h"

namespace lssar {

struct Sequence;

// In one step: Ask for each row whose logits it wants, in rising position; once the model is
// through, Take for each of them in the same order; then Advance, then Publish.
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

  // Heads whose attention weights are wanted of the rows whose logits are; null: none.
  virtual const HeadCapture* Capture() const { return nullptr; }
  // Of the pending rows, how many the next step may run: at least one.
  virtual int MaxRows(const Sequence& sequence) const;

  // What is wanted of the row at `position`: the token after it, given or drawn, and its
  // log-probabilities.
  virtual SampleRequest Ask(const Sequence& sequence, int position) const = 0;

  // What came of it; its logits were finite. May move out of `row`.
  virtual void Take(int position, SampleResult* row) = 0;

  // The step's rows are computed: adds the next tokens, or rewinds, or ends.
  virtual void Advance(Sequence* sequence) = 0;

  // Gives the sink what became known since the last time.
  virtual void Publish(OutputSink* sink) = 0;

  virtual bool IsDone() const = 0;
  virtual int NumGenerated() const = 0;
};

// The id and log-probability of a token, and the best beside it, as the request asked for them.
// Moves `top` out of `row`.
TokenResult MakeTokenResult(SampleResult* row);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_TASK_H_

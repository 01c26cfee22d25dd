// What a sequence is computed for: generate, score, capture or embed. A task chooses the tokens
// whose logits it needs and continues from the sampled results.
#ifndef LSSAR_RUNTIME_SEQUENCE_TASK_H_
#define LSSAR_RUNTIME_SEQUENCE_TASK_H_

#include <cstdint>
#include <span>

#include "kernels/sampling.h"
#include "models/checkpoint.h"
#include "models/language_model.h"
#include "runtime/prefix_cache.h"
#include "runtime/request.h"

namespace lssar {

struct Sequence;
struct SequenceGroup;

// Calls in one step: MakeSampleRequest for each token whose logits are needed, in ascending
// position; after the model has run, OnSampleResult for each of them in the same order; then
// SetOthersWait, Advance and Publish.
// Threads   the engine's thread only
class SequenceTask {
 public:
  virtual ~SequenceTask() = default;

  // Whether the task needs the logits of the token at `position`, which predict position + 1, and
  // has not received them yet: a recomputed token is not sampled twice.
  virtual bool NeedsLogits(const Sequence& sequence, int position) const = 0;
  // The same for the hidden states of the token at `position`.
  virtual bool NeedsHiddenState(const Sequence& sequence, int position) const;
  // The layers of these (EmbedParams::layers). The span stays valid as long as the task.
  virtual std::span<const int32_t> HiddenLayers() const { return {}; }
  // Floats in the results of the tokens that MaxTokensInStep allows, where results are large: those
  // of all sequences in a step are bounded by limits::kMaxStepFloats.
  virtual int64_t MaxFloatsInStep(const Sequence& /*sequence*/) const { return 0; }
  // The first position that is needed for either, at most the last token's. K and V of the tokens
  // before it may come from the prefix cache.
  virtual int FirstLogitsPosition(const Sequence& sequence) const = 0;

  // The prefix cache knows these log-probabilities of tokens [first, first + scores.size()). A task
  // that uses them needs fewer logits, which raises FirstLogitsPosition.
  virtual void OnCachedScores(int first, std::span<const TokenScore> scores);
  // Writes the log-probabilities that the task knows of tokens [first, first + scores.size()), for
  // the prefix cache.
  virtual void GetScores(int first, std::span<TokenScore> scores) const;

  // Whether a reader waits for each next token.
  virtual bool IsStreaming() const = 0;
  // Whether the sequence goes on after a fork with tokens of its own that may be cached.
  virtual bool MayMatchAfterFork() const { return false; }

  // Heads whose attention weights are needed, of the tokens whose logits are; null: none.
  virtual const HeadCapture* Capture() const { return nullptr; }
  // Attention weights that are captured in a step that computes the next `num_tokens`.
  virtual int64_t NumCapturedWeights(const Sequence&, int /*num_tokens*/) const { return 0; }
  // How many of the pending tokens the next step may compute: at least one.
  virtual int MaxTokensInStep(const Sequence& sequence) const;
  // How many draft tokens (Sequence::draft) the next step may compute after the pending ones.
  virtual int MaxDraftTokens() const { return 0; }

  // What to sample from the logits at `position`: the next token, given or drawn, and its
  // log-probabilities. What the request points at stays valid until Advance.
  virtual SampleRequest MakeSampleRequest(const Sequence& sequence, int position) = 0;
  // The result; its logits were finite. May move out of `result`. After a draft token only if that
  // token, and every draft token before it, is what was sampled.
  virtual void OnSampleResult(int position, SampleResult* result) = 0;

  // Whether OnLogits is wanted.
  virtual bool WantsLogits() const { return false; }
  // The logits at `position`, [vocab_size]; finite. Comes before OnSampleResult of the position.
  virtual void OnLogits(int position, std::span<const float> logits);

  // The hidden states of a token, [HiddenLayers().size(), hidden_size]; finite. Come in ascending
  // position, after the sample results of the step.
  virtual void OnHiddenState(int position, std::span<const float> hidden);

  // Whether requests wait to be admitted. A task whose work other sequences of its request can go
  // on with takes no more of it then, so that the pages of its sequence become free.
  virtual void SetOthersWait(bool /*others_wait*/) {}

  // The step's tokens are computed: appends the next tokens, or lowers num_computed_tokens and
  // continues elsewhere, or finishes.
  virtual void Advance(Sequence* sequence) = 0;

  // Sends the sink everything that became known since the last call.
  virtual void Publish(OutputSink* sink) = 0;

  virtual bool IsDone() const = 0;
  virtual int NumGenerated() const = 0;
};

// The id and log-probability of a token, and the best besides it. Moves `top` out of `result`.
TokenResult MakeTokenResult(SampleResult* result);

// One function for each kind of request: gives every sequence of `group` its task and the tokens
// that follow the prompt. `group` and what `checkpoint` owns must outlive the tasks.
void AddGenerateTasks(const Checkpoint& checkpoint, SequenceGroup* group);
void AddScoreTasks(const Checkpoint& checkpoint, SequenceGroup* group);
void AddCaptureTasks(SequenceGroup* group);
void AddEmbedTasks(const Checkpoint& checkpoint, SequenceGroup* group);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_TASK_H_

// Speculative decoding: which tokens a sequence drafts in a step, and how many.
#ifndef LSSAR_RUNTIME_SPECULATOR_H_
#define LSSAR_RUNTIME_SPECULATOR_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "runtime/engine_options.h"
#include "runtime/ngram_index.h"
#include "runtime/proposer.h"

namespace lssar {

struct DraftSequence;
struct ScheduledSequence;
struct Sequence;
struct SequenceGroup;

// The relative cost of a draft token: the time that it adds to a step, divided by the time of a
// token without drafts. A draft token is worth its cost if it is accepted with a larger
// probability. Decodes that wait for memory have a small cost, because a token more reads no
// weights; where the products are the bound it is near 1, and nothing is drafted.
//
// Measured from two consecutive steps that decode the same number of sequences, one with drafts and
// one without: (with / without - 1) * sequences / draft tokens. The median of the latest samples is
// used, because a step that the operating system interrupts may take ten times as long. Batches of
// similar size share their samples: 1, 2 to 3, 4 to 7, 8 to 15, ...
// Threads   the engine's thread only
class DraftCost {
 public:
  // Without a sample.
  static constexpr double kPrior = 0.25;
  static constexpr int kNumSamples = 15;

  // A step in which `num_decodes` sequences computed one pending token each and `num_draft` draft
  // tokens together. 0 decodes: the step is no measure, because it computed something else.
  void AddStep(int num_decodes, int num_draft, Clock::duration duration);

  double Of(int num_decodes) const;
  // Whether Of() is a guess, because there are only a few samples.
  bool IsUncertain(int num_decodes) const;
  // Whether the next step should run without drafts, so that it is a measure: every 32nd one; every
  // third one while the cost is uncertain; the one after a draft that NeedsDraft asked for.
  bool NeedsPlainStep(int num_decodes) const;
  // Whether the last sample is so old that a step should run with a draft to measure it.
  bool NeedsDraft(int num_decodes) const;

 private:
  struct Samples {
    std::array<double, kNumSamples> values = {};  // the first min(num, kNumSamples)
    int64_t num = 0;
    double median = kPrior;
  };
  static size_t ClassOf(int num_decodes);
  void AddSample(int num_decodes, double sample);

  std::array<Samples, 16> classes_;  // by the number of bits of num_decodes
  int num_decodes_ = 0;              // of the last step
  int num_draft_ = 0;
  Clock::duration duration_{};
  int num_steps_with_draft_ = 0;  // in a row
  int64_t num_steps_since_sample_ = 0;
};

// What a sequence knows of its drafts.
struct DraftState {
  DraftState();
  ~DraftState();

  std::optional<NgramIndex> index;                // of prompt lookup
  std::unique_ptr<DraftSequence> draft_sequence;  // of the draft model; null: not drafted for
  // The probability that a draft token is accepted if all before it are, by the length of the match
  // that it was drafted from, prompt_lookup_min first: a moving average. A proposer has one.
  std::vector<float> acceptance;
  size_t match_idx = 0;  // of the current draft, into `acceptance`
};

// Drafts come from the sequence's own tokens (NgramIndex), or from a proposer. The length of a
// draft adapts to both sides: token k is drafted if acceptance^k is above its cost.
//
// A step is BeginStep, Plan for each sequence that may have a draft, Draft, then EndStep when the
// model has run, and OnVerified for each sequence that has a draft.
// Threads   the engine's thread only
class Speculator {
 public:
  // `proposer`: null: there is none. Must outlive this.
  Speculator(const EngineOptions& options, Proposer* proposer);

  bool IsOn() const {
    return proposer_ != nullptr || options_.speculative_method == SpeculativeMethod::kNgram;
  }
  // `num_decodes` of the `num_scheduled` sequences have one pending token.
  void BeginStep(int num_decodes, int num_scheduled);
  // How many tokens Draft may draft for the sequence, at most `max_tokens`, perhaps none. Prompt
  // lookup writes its draft at once.
  int Plan(int max_tokens, const SequenceGroup& group, Sequence* sequence);
  // Writes the drafts, perhaps shorter ones, to Sequence::draft.
  void Draft();
  // The drafts and the model took `duration`; drafts are still there.
  void EndStep(std::span<const ScheduledSequence> scheduled, Clock::duration duration);
  // The first `num_accepted` tokens of sequence->draft were sampled; the draft is still there.
  void OnVerified(int num_accepted, Sequence* sequence);
  // The sequence ended or was preempted: frees the pages that its drafts use.
  void Free(Sequence* sequence) {
    if (proposer_ != nullptr) proposer_->Free(sequence);
  }

 private:
  // The expected number of tokens to draft, at most `max_tokens`.
  int DraftLength(float acceptance, int max_tokens) const;
  void Start(Sequence* sequence) const;

  const EngineOptions options_;
  Proposer* const proposer_;
  DraftCost cost_;
  std::vector<float> acceptance_;       // over all sequences: what a new one begins with
  double min_acceptance_ = 0;           // in this step, of a draft token
  bool is_plain_step_ = false;          // nothing is drafted
  bool needs_draft_ = false;            // a draft is made to measure its cost
  bool is_comparable_ = true;           // the step's time shows what drafts cost
  int num_tokens_left_ = 0;             // draft tokens of all sequences in this step
  std::vector<DraftRequest> requests_;  // of the step, to the proposer
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SPECULATOR_H_

#include "runtime/speculator.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>

#include "base/check.h"
#include "runtime/draft_model.h"
#include "runtime/limits.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"

namespace lssar {
namespace {

// Steps with drafts in a row, before one runs without.
constexpr int kStepsToPlain = 31;
constexpr int kFirstStepsToPlain = 2;
constexpr int kFewSamples = 5;
// Steps without a sample, before a draft is made to get one, and the tokens of that draft: the
// time of a single one is lost in the noise.
constexpr int64_t kStepsToSample = 256;
constexpr int64_t kFirstStepsToSample = 16;
constexpr int kSampleTokens = 4;

// A draft token must be accepted with this multiple of the probability at which it saves time. The
// first token of a proposer costs more than the average: the served model computes several tokens
// in place of one, and a draft model the end of the last draft.
constexpr double kMargin = 1.15;
constexpr double kProposerMargin = 1.3;
// Weights of one draft token in the moving averages of a sequence and of all sequences.
constexpr float kOwnWeight = 1.0f / 8;
constexpr float kSharedWeight = 1.0f / 64;
constexpr float kFirstAcceptance = 0.6f;
// A match that is not drafted raises the acceptance by this share of what lacks to 1, so that
// drafts are tried again. Rejected drafts lower it by kOwnWeight, so the tries cost
// kRecovery / kOwnWeight of the time at most: 0.4%.
constexpr float kRecovery = 1.0f / 2048;

}  // namespace

size_t DraftCost::ClassOf(int num_decodes) {
  return std::min(size_t(std::bit_width(unsigned(num_decodes))), size_t{15});
}

void DraftCost::AddSample(int num_decodes, double sample) {
  Samples& samples = classes_[ClassOf(num_decodes)];
  samples.values[size_t(samples.num++ % kNumSamples)] = sample;
  std::array<double, kNumSamples> sorted = samples.values;
  const auto count = std::min(samples.num, int64_t{kNumSamples});
  const auto middle = sorted.begin() + count / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + count);
  samples.median = std::max(0.0, *middle);
  num_steps_since_sample_ = 0;
}

void DraftCost::AddStep(int num_decodes, int num_draft, Clock::duration duration) {
  ++num_steps_since_sample_;
  const bool is_comparable = num_decodes > 0 && num_decodes == num_decodes_ &&
                             (num_draft == 0) != (num_draft_ == 0) &&
                             std::min(duration, duration_).count() > 0;
  if (is_comparable) {
    using Seconds = std::chrono::duration<double>;
    const double now = Seconds(duration).count(), before = Seconds(duration_).count();
    const double ratio = num_draft > 0 ? now / before : before / now;
    AddSample(num_decodes, (ratio - 1) * num_decodes / std::max(num_draft, num_draft_));
  }
  num_decodes_ = num_decodes;
  num_draft_ = num_draft;
  duration_ = duration;
  num_steps_with_draft_ = num_draft > 0 ? num_steps_with_draft_ + 1 : 0;
}

double DraftCost::Of(int num_decodes) const { return classes_[ClassOf(num_decodes)].median; }

bool DraftCost::IsUncertain(int num_decodes) const {
  return classes_[ClassOf(num_decodes)].num < kFewSamples;
}

bool DraftCost::NeedsPlainStep(int num_decodes) const {
  if (num_steps_with_draft_ > 0 && NeedsDraft(num_decodes)) return true;
  return num_steps_with_draft_ >= (IsUncertain(num_decodes) ? kFirstStepsToPlain : kStepsToPlain);
}

bool DraftCost::NeedsDraft(int num_decodes) const {
  return num_steps_since_sample_ >=
         (IsUncertain(num_decodes) ? kFirstStepsToSample : kStepsToSample);
}

DraftState::DraftState() = default;
DraftState::~DraftState() = default;

Speculator::Speculator(const EngineOptions& options, Proposer* proposer)
    : options_(options),
      proposer_(proposer),
      acceptance_(size_t(options.prompt_lookup_max - options.prompt_lookup_min) + 1,
                  kFirstAcceptance) {}

void Speculator::BeginStep(int num_decodes, int num_scheduled) {
  is_plain_step_ = needs_draft_ = false;
  is_comparable_ = true;
  min_acceptance_ = 0;
  requests_.clear();
  if (proposer_ != nullptr) proposer_->BeginStep(num_decodes);
  num_tokens_left_ = limits::kMaxNumBatchedTokens.max;
  if (!options_.adapts_speculation || num_decodes == 0) return;
  if (num_decodes == num_scheduled) {  // a step with a prefill is no measure
    is_plain_step_ = cost_.NeedsPlainStep(num_decodes);
    needs_draft_ = cost_.NeedsDraft(num_decodes);
  }
  min_acceptance_ = (proposer_ != nullptr ? kProposerMargin : kMargin) * cost_.Of(num_decodes);
  if (cost_.IsUncertain(num_decodes)) num_tokens_left_ = std::max(kSampleTokens, num_decodes);
}

int Speculator::DraftLength(float acceptance, int max_tokens) const {
  double probability = acceptance;
  int num_draft = 0;
  for (; num_draft < max_tokens && probability > min_acceptance_; ++num_draft) {
    probability *= acceptance;
  }
  return num_draft;
}

void Speculator::Start(Sequence* sequence) const {
  sequence->draft.reserve(size_t(options_.num_speculative_tokens));
  sequence->draft_state = std::make_unique<DraftState>();
  sequence->draft_state->acceptance = acceptance_;
  if (proposer_ != nullptr) return;
  // Reserved for the longest text.
  sequence->draft_state->index.emplace(options_.prompt_lookup_min, options_.prompt_lookup_max,
                                       int(sequence->tokens.capacity()));
}

int Speculator::Plan(int max_tokens, const SequenceGroup& group, Sequence* sequence) {
  if (is_plain_step_) return 0;
  if (sequence->draft_state == nullptr) Start(sequence);
  DraftState& state = *sequence->draft_state;
  max_tokens = std::min({max_tokens, options_.num_speculative_tokens, num_tokens_left_});
  if (max_tokens == 0) return 0;
  if (state.index) {
    const int length = state.index->Match(sequence->tokens);
    if (length == 0) return 0;
    state.match_idx = size_t(length - options_.prompt_lookup_min);
  }
  float& acceptance = state.acceptance[state.match_idx];
  int num_draft = DraftLength(acceptance, max_tokens);
  if (num_draft == 0) {
    acceptance += (1 - acceptance) * kRecovery;
    if (!needs_draft_) return 0;
    num_draft = std::min(max_tokens, kSampleTokens);
  }
  needs_draft_ = false;
  if (state.index) {
    state.index->AppendDraft(sequence->tokens, num_draft, &sequence->draft);
    num_draft = int(sequence->draft.size());
  } else {
    requests_.push_back({.group = &group, .sequence = sequence, .num_tokens = num_draft});
  }
  num_tokens_left_ -= num_draft;
  return num_draft;
}

void Speculator::Draft() {
  if (requests_.empty()) return;
  is_comparable_ = proposer_->Propose(requests_);
  for (const DraftRequest& request : requests_) {
    LSSAR_CHECK(int(request.sequence->draft.size()) <= request.num_tokens);
  }
}

void Speculator::EndStep(std::span<const ScheduledSequence> scheduled, Clock::duration duration) {
  if (!IsOn()) return;
  int num_draft = 0;
  bool is_decode = is_comparable_;
  for (const ScheduledSequence& scheduled_sequence : scheduled) {
    const Sequence& sequence = *scheduled_sequence.sequence;
    num_draft += int(sequence.draft.size());
    is_decode &= sequence.NumPendingTokens() == 1;
  }
  cost_.AddStep(is_decode ? int(scheduled.size()) : 0, num_draft, duration);
}

// Draft tokens after the first rejected one say nothing: their predecessor was wrong.
void Speculator::OnVerified(int num_accepted, Sequence* sequence) {
  DraftState& state = *sequence->draft_state;
  const auto add = [&](float value) {
    float& own = state.acceptance[state.match_idx];
    float& shared = acceptance_[state.match_idx];
    own += (value - own) * kOwnWeight;
    shared += (value - shared) * kSharedWeight;
  };
  for (int i = 0; i < num_accepted; ++i) add(1);
  if (num_accepted < int(sequence->draft.size())) add(0);
  if (proposer_ != nullptr) proposer_->OnVerified(num_accepted, sequence);
}

}  // namespace lssar

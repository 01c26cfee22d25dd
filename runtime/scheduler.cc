#include "runtime/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"

namespace lssar {

absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const KvLayout& layout) {
  LSSAR_CHECK(!request.prompt.empty());
  if (int64_t(request.prompt.size()) + MaxFurtherTokens(request) > options.max_model_len) {
    return absl::InvalidArgumentError(
        StrCat(DescribeLength(request), ", over max_model_len = ", options.max_model_len));
  }
  const Demand demand = DemandOf(request, layout);
  if (demand.num_sequences > MaxRunning(options)) {
    return absl::InvalidArgumentError(
        StrCat("n = ", demand.num_sequences, " choices run together, and at most ",
               MaxRunning(options), " sequences do (max_num_seqs = ", options.max_num_seqs,
               ", max_num_batched_tokens = ", options.max_num_batched_tokens, ")"));
  }
  if (demand.TotalPages() > layout.num_pages) {
    return absl::InvalidArgumentError(
        StrCat(DescribeLength(request), " need ", demand.num_pages, " pages of ", layout.page_size,
               " tokens, of which choices share ", demand.num_shared_pages, "; ",
               demand.num_shared_pages, " + ", demand.num_sequences, " x ", demand.NumOwnPages(),
               " = ", demand.TotalPages(), " pages, and the pool has ", layout.num_pages));
  }
  return absl::OkStatus();
}

namespace {

// The cost of the token at `position`, in units of 1 / kKeysPerTokenCost.
int64_t CostAt(int position) { return int64_t{kKeysPerTokenCost} + position; }

// How many tokens from `first_position` on cost no more than `*budget`, at most `max_tokens` and at
// least `min_tokens`. Subtracts their cost from `*budget`.
int TakeTokens(int first_position, int min_tokens, int max_tokens, int64_t* budget) {
  int num_tokens = 0;
  while (num_tokens < max_tokens &&
         (num_tokens < min_tokens || CostAt(first_position + num_tokens) <= *budget)) {
    *budget -= CostAt(first_position + num_tokens++);
  }
  return num_tokens;
}

}  // namespace

void TokenBudget::Divide(std::span<const TokenDemand> sequences,
                         std::vector<int>* num_tokens) const {
  LSSAR_CHECK(sequences.size() <= size_t(limits_.max_num_batched_tokens));
  num_tokens->assign(sequences.size(), 0);
  int num_left = limits_.max_num_batched_tokens;
  bool has_reader = false;  // one waits for a token of this step
  for (const TokenDemand& sequence : sequences) {
    num_left -= sequence.num_pending == 1;
    has_reader |= sequence.num_pending == 1 && sequence.is_streaming;
  }
  int num_prefills_left =
      has_reader ? limits_.max_num_partial_prefills : limits_.max_num_batched_tokens;
  int64_t budget = has_reader ? int64_t{limits_.chunked_prefill_size} * kKeysPerTokenCost
                              : std::numeric_limits<int64_t>::max();
  bool is_first_prompt = true;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const TokenDemand& sequence = sequences[i];
    LSSAR_CHECK(sequence.num_pending >= 1);
    if (sequence.num_pending == 1) {
      (*num_tokens)[i] = 1;
      continue;
    }
    if (num_prefills_left == 0) continue;
    const int chunk = TakeTokens(sequence.first_position, is_first_prompt ? 1 : 0,
                                 std::min(sequence.num_pending, num_left), &budget);
    is_first_prompt = false;
    num_prefills_left -= chunk > 0;
    num_left -= chunk;
    (*num_tokens)[i] = chunk;
  }
}

Scheduler::Scheduler(const Checkpoint* checkpoint, const EngineOptions& options,
                     BlockManager* blocks, RequestQueue* waiting, Speculator* speculator)
    : checkpoint_(checkpoint),
      options_(options),
      budget_({.max_num_batched_tokens = options.max_num_batched_tokens,
               .max_num_partial_prefills = options.max_num_partial_prefills,
               .chunked_prefill_size = options.chunked_prefill_size}),
      blocks_(blocks),
      waiting_(waiting),
      speculator_(speculator) {}

void Scheduler::AbortDue(Clock::time_point now) {
  for (const auto& group : running_) {
    group->status = group->AbortStatus(now);
    group->is_paused = !group->sink->IsWritable();
  }
  waiting_->TakeAborted(now, &aborted_);
}

// Requests are admitted in order: one that has to wait for pages keeps all after it waiting, so
// that it is not overtaken for ever. If no other request runs, all pages are available.
std::span<SequenceGroup* const> Scheduler::Admit() {
  admitted_.clear();
  others_wait_ = false;
  if (waiting_->CurrentLoad().num_requests == 0 && !IsAnyPreempted()) return admitted_;
  int64_t num_spare_pages = NumSparePages();
  const Clock::time_point first_preempted = Resume(&num_spare_pages);
  int num_running = 0;
  bool is_alone = true;
  for (const auto& group : running_) {
    is_alone &= group->is_paused;
    num_running +=
        int(std::ranges::count_if(group->sequences, [](const Sequence& s) { return !s.IsDone(); }));
  }
  int num_sequences = 0;  // of the request to admit
  const auto is_admissible = [&](const SequenceGroup& group) {
    const Demand& demand = group.demand;
    num_sequences = demand.num_sequences;
    if (group.EffectiveArrivalTime() >= first_preempted) return false;
    if (num_running + num_sequences > MaxRunning(options_)) return false;
    int64_t num_pages = NumAdmissionPages(group);
    if (!is_alone && num_pages > num_spare_pages) return false;
    // More sequences than it needs only where pages are spare and half of the places stay free.
    const int max_sequences =
        std::min(demand.max_num_sequences, MaxRunning(options_) / 2 - num_running);
    for (; num_sequences < max_sequences && num_pages + demand.NumOwnPages() <= num_spare_pages;
         ++num_sequences) {
      num_pages += demand.NumOwnPages();
    }
    num_running += num_sequences;
    num_spare_pages -= num_pages;
    is_alone = false;
    return true;
  };
  while (std::unique_ptr<SequenceGroup> group = waiting_->PopIf(is_admissible)) {
    Start(std::move(group), num_sequences);
  }
  others_wait_ = waiting_->CurrentLoad().num_requests > 0;
  return admitted_;
}

bool Scheduler::IsAnyPreempted() const {
  return std::ranges::any_of(running_, [](const auto& group) {
    return std::ranges::count(group->sequences, SequenceState::kPreempted, &Sequence::state) > 0;
  });
}

// Pages of paused sequences count as available: they are preempted first.
int64_t Scheduler::NumSparePages() const {
  int64_t num_spare = blocks_->NumAvailable();
  for (const auto& group : running_) {
    for (const Sequence& sequence : group->sequences) {
      if (sequence.IsDone() || sequence.state == SequenceState::kPreempted) continue;
      const auto num_allocated = int64_t(sequence.pages.size());
      if (group->is_paused) {
        num_spare += num_allocated;
        continue;
      }
      // One page more than its next token needs: otherwise the next request to be admitted would be
      // preempted at once.
      int64_t num_needed = blocks_->Layout().PagesFor(int(sequence.tokens.size()) + 1) + 1;
      if (sequence.state == SequenceState::kWaitingForPrompt) {
        num_needed -= group->demand.num_shared_pages;
      }
      num_spare -= std::max(int64_t{0}, num_needed - num_allocated);
    }
  }
  return num_spare;
}

int64_t Scheduler::NumAdmissionPages(const SequenceGroup& group) const {
  const Demand& demand = group.demand;
  int64_t num_pages =
      demand.num_initial_pages +
      (demand.num_sequences - 1) * int64_t{demand.num_initial_pages - demand.num_shared_pages};
  if (UsesPrefixCache(group.request)) {
    const double rope_base = RopeBase(checkpoint_->config, demand.num_tokens);
    num_pages -= blocks_->NumSharedPrefixPages({.rope_base = rope_base,
                                                .salt = group.request.cache_salt,
                                                .attention = AttentionName(group.request)},
                                               group.request.prompt);
  }
  return num_pages;
}

bool Scheduler::UsesPrefixCache(const Request& request) const {
  return options_.enable_prefix_caching && request.use_prefix_cache;
}

// The first sequence that is not paused always resumes: it preempts the sequences after it for the
// pages that it needs.
Clock::time_point Scheduler::Resume(int64_t* num_spare_pages) {
  bool is_first = true;
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    for (Sequence& sequence : group->sequences) {
      if (sequence.IsDone()) continue;
      if (sequence.state == SequenceState::kPreempted) {
        const int num_needed = blocks_->Layout().PagesFor(int(sequence.tokens.size()) + 1) + 1;
        if (!is_first && num_needed > *num_spare_pages) return group->EffectiveArrivalTime();
        *num_spare_pages -= num_needed;
        sequence.state = SequenceState::kRunning;
      }
      is_first = false;
    }
  }
  return Clock::time_point::max();
}

void Scheduler::Start(std::unique_ptr<SequenceGroup> started, int num_sequences) {
  const bool use_prefix_cache = UsesPrefixCache(started->request);
  started->Start(num_sequences, *checkpoint_, use_prefix_cache);
  started->is_paused = !started->sink->IsWritable();
  const auto order = [](const auto& group) { return group->EffectiveArrivalTime(); };
  const auto at = std::ranges::upper_bound(running_, order(started), {}, order);
  SequenceGroup* const group = running_.insert(at, std::move(started))->get();
  if (use_prefix_cache) {
    totals_.num_prefix_cache_queries += std::ssize(group->sequences[0].tokens);
    MatchPrefix(group, &group->sequences[0]);
  }
  ForkFromPrompt(group);
  admitted_.push_back(group);
}

// Cached tokens that a preempted sequence finds again do not count as saved.
void Scheduler::MatchPrefix(SequenceGroup* group, Sequence* sequence) {
  const int num_computed = sequence->num_computed_tokens;
  if (!blocks_->MatchPrefix(sequence) || group->num_preemptions > 0) return;
  const int num_hits = std::max(0, sequence->num_computed_tokens - num_computed);
  group->num_cached_tokens += num_hits;
  totals_.num_prefix_cache_hits += num_hits;
}

void Scheduler::Truncate(SequenceGroup* group, Sequence* sequence) {
  const int num_computed = sequence->num_computed_tokens;
  blocks_->Truncate(sequence);
  if (!sequence->prefix_root || group->num_preemptions > 0) return;
  const int num_hits = std::max(0, sequence->num_computed_tokens - num_computed);
  group->num_cached_tokens += num_hits;
  totals_.num_prefix_cache_queries += std::ssize(sequence->tokens) - num_computed;
  totals_.num_prefix_cache_hits += num_hits;
}

// Every sequence computes the prompt's last token itself: its logits give the first new token.
void Scheduler::ForkFromPrompt(SequenceGroup* group) {
  std::vector<Sequence>& sequences = group->sequences;
  const int num_shared_tokens = int(group->request.prompt.size()) - 1;
  if (sequences.size() == 1 || sequences[1].state != SequenceState::kWaitingForPrompt) return;
  if (sequences[0].num_computed_tokens < num_shared_tokens) return;
  for (size_t i = 1; i < sequences.size(); ++i) {
    blocks_->Fork(sequences[0], &sequences[i], num_shared_tokens);
    sequences[i].state = SequenceState::kRunning;
    if (sequences[i].task->MayMatchAfterFork()) Truncate(group, &sequences[i]);
  }
}

void Scheduler::Schedule() {
  CollectCandidates();
  budget_.Divide(demands_, &num_tokens_);
  for (size_t i = 0; i < scheduled_.size(); ++i) scheduled_[i].num_tokens = num_tokens_[i];
  std::erase_if(scheduled_, [](const auto& scheduled) { return scheduled.num_tokens == 0; });
  AllocatePages();
}

// Only the first of the sequences that capture attention runs: one token may cost it a second.
void Scheduler::CollectCandidates() {
  bool has_capture = false;
  scheduled_.clear();
  demands_.clear();
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    for (Sequence& sequence : group->sequences) {
      if (sequence.IsDone() || sequence.state != SequenceState::kRunning) continue;
      if (sequence.task->Capture() != nullptr && std::exchange(has_capture, true)) continue;
      // Another sequence may have computed the next tokens since the last step.
      if (sequence.NumPendingTokens() > 1 &&
          sequence.num_computed_tokens % options_.page_size == 0) {
        MatchPrefix(group.get(), &sequence);
        sequence.task->Publish(group->sink.get());
        ForkFromPrompt(group.get());
      }
      scheduled_.push_back({.group = group.get(), .sequence = &sequence});
      demands_.push_back({.num_pending = sequence.task->MaxTokensInStep(sequence),
                          .first_position = sequence.num_computed_tokens,
                          .is_streaming = sequence.task->IsStreaming()});
    }
  }
}

void Scheduler::AllocatePages() {
  for (ScheduledSequence& scheduled : scheduled_) {
    Sequence& sequence = *scheduled.sequence;
    if (sequence.state == SequenceState::kPreempted) {  // by an earlier one in this loop
      scheduled.num_tokens = 0;
      continue;
    }
    while (!blocks_->AllocateFor(&sequence, sequence.num_computed_tokens + scheduled.num_tokens)) {
      if (PreemptFor(sequence)) continue;
      scheduled.num_tokens = blocks_->MaxTokens(sequence) - sequence.num_computed_tokens;
    }
  }
  std::erase_if(scheduled_, [](const auto& scheduled) { return scheduled.num_tokens == 0; });
}

std::span<ScheduledSequence> Scheduler::AddDrafts() {
  if (!speculator_->IsOn()) return scheduled_;
  int num_left = options_.max_num_batched_tokens;
  int num_decodes = 0;
  for (const ScheduledSequence& scheduled : scheduled_) {
    num_left -= scheduled.num_tokens;
    num_decodes += scheduled.sequence->NumPendingTokens() == 1;
  }
  speculator_->BeginStep(num_decodes, int(scheduled_.size()));
  int num_free_pages = blocks_->Pages().NumFree();
  for (ScheduledSequence& scheduled : scheduled_) {
    Sequence* const sequence = scheduled.sequence;
    if (sequence->NumPendingTokens() != 1) continue;
    const auto num_tokens = int(sequence->tokens.size()), num_pages = int(sequence->pages.size());
    const int max_draft =
        std::min({sequence->task->MaxDraftTokens(), num_left,
                  (num_pages + num_free_pages) * options_.page_size - num_tokens});
    if (max_draft <= 0) continue;
    const int num_planned = speculator_->Plan(max_draft, *scheduled.group, sequence);
    num_left -= num_planned;
    num_free_pages -= blocks_->Layout().PagesFor(num_tokens + num_planned) - num_pages;
  }
  speculator_->Draft();
  for (ScheduledSequence& scheduled : scheduled_) {
    const auto num_draft = int(scheduled.sequence->draft.size());
    if (num_draft == 0) continue;
    scheduled.num_tokens += num_draft;
    LSSAR_CHECK(blocks_->AllocateFreeFor(scheduled.sequence,
                                         int(scheduled.sequence->tokens.size()) + num_draft));
  }
  return scheduled_;
}

void Scheduler::FreePages(Sequence* sequence) {
  blocks_->Free(sequence);
  speculator_->Free(sequence);
}

bool Scheduler::PreemptFor(const Sequence& sequence) {
  for (const bool is_paused : {true, false}) {
    for (size_t i = running_.size(); i-- > 0;) {
      SequenceGroup& group = *running_[i];
      if (group.is_paused != is_paused) continue;
      for (size_t choice = group.sequences.size(); choice-- > 0;) {
        Sequence& victim = group.sequences[choice];
        if (&victim == &sequence) return false;
        if (victim.pages.empty()) continue;
        Preempt(&group, &victim);
        return true;
      }
    }
  }
  return false;
}

void Scheduler::Preempt(SequenceGroup* group, Sequence* sequence) {
  FreePages(sequence);
  sequence->state = SequenceState::kPreempted;
  ++group->num_preemptions;
  ++totals_.num_preemptions;
}

void Scheduler::Complete(const ScheduledSequence& scheduled, Clock::time_point now) {
  SequenceGroup* const group = scheduled.group;
  Sequence* const sequence = scheduled.sequence;
  const int num_generated = sequence->task->NumGenerated();
  const auto num_draft = int(sequence->draft.size());
  sequence->num_computed_tokens += scheduled.num_tokens - num_draft;
  group->num_turn_tokens += scheduled.num_tokens;
  if (!group->prefilled_at && sequence->num_computed_tokens >= int(group->request.prompt.size())) {
    group->prefilled_at = now;
  }
  blocks_->InsertFullPages(sequence);
  ForkFromPrompt(group);
  const int num_computed = sequence->num_computed_tokens;
  sequence->task->SetOthersWait(others_wait_);
  sequence->task->Advance(sequence);
  if (sequence->num_computed_tokens < num_computed) {
    Truncate(group, sequence);
    TakeNewTurn(group, now);
  }
  const int num_sampled = sequence->task->NumGenerated() - num_generated;
  totals_.num_generated_tokens += num_sampled;
  if (num_draft > 0) CompleteDraft(group, sequence, num_sampled - 1);
  if (sequence->IsDone()) FreePages(sequence);
}

void Scheduler::TakeNewTurn(SequenceGroup* group, Clock::time_point now) {
  if (group->num_turn_tokens < options_.max_num_batched_tokens) return;
  group->num_turn_tokens = 0;
  group->new_turn_at = now;
  const auto at = std::ranges::find(running_, group, &std::unique_ptr<SequenceGroup>::get);
  const auto to =
      std::ranges::upper_bound(at + 1, running_.end(), group->EffectiveArrivalTime(), {},
                               [](const auto& other) { return other->EffectiveArrivalTime(); });
  std::rotate(at, at + 1, to);
}

void Scheduler::CompleteDraft(SequenceGroup* group, Sequence* sequence, int num_accepted) {
  const auto num_draft = int(sequence->draft.size());
  speculator_->OnVerified(num_accepted, sequence);
  sequence->draft.clear();
  sequence->num_computed_tokens += num_accepted;
  blocks_->InsertFullPages(sequence);
  blocks_->FreeUncomputed(sequence);
  group->num_draft_tokens += num_draft;
  group->num_accepted_tokens += num_accepted;
  totals_.num_draft_tokens += num_draft;
  totals_.num_accepted_tokens += num_accepted;
}

void Scheduler::AbortAll(const absl::Status& status) {
  for (const auto& group : running_) group->status = status;
  waiting_->TakeAll(status, &aborted_);
}

void Scheduler::TakeFinished(std::vector<std::unique_ptr<SequenceGroup>>* finished) {
  for (auto& group : running_) {
    if (!group->IsFinished()) continue;
    for (Sequence& sequence : group->sequences) FreePages(&sequence);
    finished->push_back(std::move(group));
  }
  std::erase(running_, nullptr);
  for (auto& group : aborted_) finished->push_back(std::move(group));
  aborted_.clear();
}

Clock::time_point Scheduler::NextDeadline() const {
  Clock::time_point earliest = waiting_->NextDeadline();
  for (const auto& group : running_) {
    if (group->request.deadline) earliest = std::min(earliest, *group->request.deadline);
  }
  return earliest;
}

}  // namespace lssar

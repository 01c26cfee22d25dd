#include "runtime/scheduler.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/field_error.h"
#include "base/str_cat.h"

namespace lssar {

absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const KvLayout& layout) {
  LSSAR_CHECK(!request.prompt.empty());
  if (int64_t(request.prompt.size()) + MaxFurtherTokens(request) > options.max_model_len) {
    return absl::InvalidArgumentError(
        StrCat(DescribeLength(request), ", over max_model_len = ", options.max_model_len));
  }
  const RequiredResources required = RequiredResourcesOf(request, layout);
  if (required.num_sequences > MaxRunning(options)) {
    return FieldError(
        "n", StrCat("is ", required.num_sequences, "; it must be at most ", MaxRunning(options),
                    ": choices run together (max_num_seqs = ", options.max_num_seqs,
                    ", max_num_batched_tokens = ", options.max_num_batched_tokens, ")"));
  }
  if (required.TotalPages() > layout.num_pages) {
    return absl::InvalidArgumentError(StrCat(
        DescribeLength(request), " need ", required.num_pages, " pages of ", layout.page_size,
        " tokens, of which choices share ", required.num_shared_pages, "; ",
        required.num_shared_pages, " + ", required.num_sequences, " x ", required.NumOwnPages(),
        " = ", required.TotalPages(), " pages, and the pool has ", layout.num_pages));
  }
  return absl::OkStatus();
}

namespace {

bool HasPlace(const Sequence& sequence) {
  return !sequence.IsDone() && sequence.state != SequenceState::kPreempted;
}

}  // namespace

Scheduler::Scheduler(const Checkpoint* checkpoint, const EngineOptions& options,
                     BlockManager* blocks, RequestQueue* waiting, Speculator* speculator)
    : checkpoint_(checkpoint),
      options_(options),
      budget_({.max_num_batched_tokens = options.max_num_batched_tokens,
               .max_num_partial_prefills = options.max_num_partial_prefills,
               .chunked_prefill_size = options.chunked_prefill_size}),
      blocks_(blocks),
      waiting_(waiting),
      speculator_(speculator),
      tenants_(budget_.SharedStep()) {}

void Scheduler::AbortDue(Clock::time_point now) {
  now_ = now;
  for (const auto& group : running_) {
    group->status = group->AbortStatus(now);
    group->is_paused = !group->sink->IsWritable();
  }
  waiting_->TakeAborted(now, &aborted_);
}

// A tenant's requests are admitted in order: one that has to wait for pages keeps all after it
// waiting, so that it does not starve. The tenant that uses least of places and pages
// comes first.
std::span<SequenceGroup* const> Scheduler::Admit() {
  admitted_.clear();
  others_wait_ = false;
  waiting_->GetFirst(&first_waiting_);
  tenants_.BeginStep(running_, first_waiting_, now_);
  if (first_waiting_.empty() && !IsAnyPreempted()) return admitted_;
  num_spare_pages_ = NumSparePages();
  tenants_.CountUsage(running_);
  Resume();
  num_sequences_ = 0;
  is_alone_ = true;
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    is_alone_ = false;
    num_sequences_ +=
        int(std::ranges::count_if(group->sequences, [](const Sequence& s) { return !s.IsDone(); }));
  }
  const auto order = [this](const SequenceGroup* group) {
    const Tenant& tenant = tenants_.Of(group->tenant);
    const int64_t use = std::max(tenant.num_sequences * int64_t{blocks_->Layout().num_pages},
                                 tenant.num_pages * MaxRunning(options_));
    return std::tuple(use, tenant.service, group->EffectiveArrivalTime());
  };
  while (!first_waiting_.empty()) {
    const auto at = std::ranges::min_element(first_waiting_, {}, order);
    int num_sequences = 0;
    if (!CanStart(**at, &num_sequences)) {
      others_wait_ = true;
      const bool runs_nothing = tenants_.Of((*at)->tenant).num_sequences == 0;
      if (runs_nothing && now_ - (*at)->arrival_time >= kMaxOvertaking) break;
      first_waiting_.erase(at);
      continue;
    }
    Start(waiting_->Pop(**at), num_sequences);
    tenants_.CountUsage(running_);
    *at = waiting_->GetFirst(admitted_.back()->tenant);
    if (*at == nullptr) first_waiting_.erase(at);
  }
  return admitted_;
}

bool Scheduler::CanStart(const SequenceGroup& group, int* num_sequences) {
  const RequiredResources& required = group.required;
  const Tenant& tenant = tenants_.Of(group.tenant);
  *num_sequences = required.num_sequences;
  if (group.EffectiveArrivalTime() >= tenant.first_preempted) return false;
  int64_t num_pages = NumAdmissionPages(group);
  if (num_sequences_ + *num_sequences > MaxRunning(options_) ||
      (!is_alone_ && num_pages > num_spare_pages_)) {
    if (!IsWithinShare(tenant.num_sequences + *num_sequences, tenant.num_pages + num_pages) ||
        !PreemptOthers(tenant, *num_sequences, num_pages)) {
      return false;
    }
  }
  TakePausedPlaces(*num_sequences);
  // More sequences than it needs only where pages are spare and half of the places stay free.
  const int num_taken = std::max(num_sequences_, tenants_.NumRunningSequences());
  const int max_sequences =
      std::min(required.max_num_sequences, MaxRunning(options_) / 2 - num_taken);
  for (; *num_sequences < max_sequences && num_pages + required.NumOwnPages() <= num_spare_pages_;
       ++*num_sequences) {
    num_pages += required.NumOwnPages();
  }
  num_sequences_ += *num_sequences;
  num_spare_pages_ -= num_pages;
  is_alone_ = false;
  return true;
}

bool Scheduler::IsWithinShare(int num_sequences, int64_t num_pages) const {
  return tenants_.AreShared() && num_sequences <= tenants_.ShareOf(MaxRunning(options_)) &&
         num_pages <= tenants_.ShareOf(blocks_->Layout().num_pages);
}

bool Scheduler::MayLose(const Tenant& owner, const Tenant& to, const Sequence& sequence) const {
  return &owner != &to && owner.num_running_sequences > 1 && HasPlace(sequence) &&
         &sequence != FirstSequence();
}

bool Scheduler::PreemptOthers(const Tenant& tenant, int num_sequences, int64_t num_pages) {
  const int64_t place_share = tenants_.ShareOf(MaxRunning(options_));
  const int64_t page_share = tenants_.ShareOf(blocks_->Layout().num_pages);
  int num_places =
      tenants_.NumRunningSequences() - NumPausedPlaces() + num_sequences - MaxRunning(options_);
  num_pages -= num_spare_pages_;
  victims_.clear();
  for (size_t i = running_.size(); i-- > 0 && (num_places > 0 || num_pages > 0);) {
    SequenceGroup* const group = running_[i].get();
    Tenant* const owner = group->owner;
    for (size_t choice = group->sequences.size(); choice-- > 0;) {
      Sequence* const victim = &group->sequences[choice];
      if (!MayLose(*owner, tenant, *victim)) continue;
      if (group->is_paused) continue;  // its places and pages are spare
      const bool gives_place = num_places > 0 && owner->num_running_sequences > place_share;
      const bool gives_pages =
          num_pages > 0 && owner->num_pages > page_share && !victim->pages.empty();
      if (!gives_place && !gives_pages) continue;
      victims_.emplace_back(group, victim);
      --num_places;
      --owner->num_running_sequences;
      owner->num_pages -= std::ssize(victim->pages);
      num_pages -= std::ranges::count_if(
          victim->pages, [&](int32_t page) { return blocks_->Pages().RefCount(page) == 1; });
    }
  }
  const bool is_enough = num_places <= 0 && num_pages <= 0;
  if (is_enough) {
    for (const auto& [group, victim] : victims_) Preempt(group, victim);
    num_spare_pages_ = NumSparePages();
  }
  tenants_.CountUsage(running_);
  return is_enough;
}

bool Scheduler::IsAnyPreempted() const {
  return std::ranges::any_of(running_, [](const auto& group) {
    return std::ranges::count(group->sequences, SequenceState::kPreempted, &Sequence::state) > 0;
  });
}

int Scheduler::NumPausedPlaces() const {
  int num_places = 0;
  for (const auto& group : running_) {
    if (!group->is_paused) continue;
    num_places += int(std::ranges::count_if(group->sequences, HasPlace));
  }
  return num_places;
}

void Scheduler::TakePausedPlaces(int num_sequences) {
  int num_places = tenants_.NumRunningSequences() + num_sequences - MaxRunning(options_);
  if (num_places <= 0) return;
  for (; num_places > 0; --num_places) {
    LSSAR_CHECK(PreemptLast([](const SequenceGroup& group, const Sequence& sequence) {
      return group.is_paused && HasPlace(sequence);
    }));
  }
  num_spare_pages_ = NumSparePages();
  tenants_.CountUsage(running_);
}

// Pages of paused sequences count as available: they are preempted first.
int64_t Scheduler::NumSparePages() const {
  int64_t num_spare = blocks_->NumAvailable();
  for (const auto& group : running_) {
    for (const Sequence& sequence : group->sequences) {
      if (!HasPlace(sequence)) continue;
      const auto num_allocated = int64_t(sequence.pages.size());
      if (group->is_paused) {
        num_spare += num_allocated;
        continue;
      }
      int64_t num_needed = PagesToRun(sequence);
      if (sequence.state == SequenceState::kWaitingForPrompt) {
        num_needed -= group->required.num_shared_pages;
      }
      num_spare -= std::max(int64_t{0}, num_needed - num_allocated);
    }
  }
  return num_spare;
}

int Scheduler::PagesToRun(const Sequence& sequence) const {
  return blocks_->Layout().PagesFor(int(sequence.tokens.size()) + 1) + 1;
}

int64_t Scheduler::NumAdmissionPages(const SequenceGroup& group) const {
  const RequiredResources& required = group.required;
  int64_t num_pages = required.num_initial_pages +
                      (required.num_sequences - 1) *
                          int64_t{required.num_initial_pages - required.num_shared_pages};
  if (UsesPrefixCache(group.request)) {
    const double rope_base = RopeBase(checkpoint_->config, required.num_read_tokens);
    num_pages -=
        blocks_->NumSharedPrefixPages(PrefixRootOf(group.request, rope_base), group.request.prompt);
  }
  return num_pages;
}

bool Scheduler::UsesPrefixCache(const Request& request) const {
  return options_.enable_prefix_caching && request.use_prefix_cache;
}

// The first sequence that is not paused always resumes: it preempts others for the place and the
// pages that it needs. Others resume where there are places and pages, and beyond the share of
// their tenant only if there is no other tenant, which would preempt them again.
void Scheduler::Resume() {
  bool is_first = true;
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    Tenant& tenant = *group->owner;
    for (Sequence& sequence : group->sequences) {
      if (sequence.IsDone()) continue;
      if (sequence.state == SequenceState::kPreempted) {
        if (tenant.first_preempted != Clock::time_point::max()) break;
        const int num_needed = PagesToRun(sequence);
        const int num_places = MaxRunning(options_) - tenants_.NumRunningSequences();
        const bool has_place = num_places + NumPausedPlaces() > 0;
        const bool is_in_share =
            !tenants_.AreShared() || tenant.num_running_sequences == 0 ||
            IsWithinShare(tenant.num_running_sequences + 1, tenant.num_pages + num_needed);
        const bool fits = num_needed <= num_spare_pages_ && has_place && is_in_share;
        // A tenant that runs nothing has lost its places while it was paused: they are its own.
        if (!is_first && !fits &&
            (tenant.num_running_sequences > 0 || !IsWithinShare(1, num_needed) ||
             !PreemptOthers(tenant, 1, num_needed))) {
          tenant.first_preempted = group->EffectiveArrivalTime();
          break;
        }
        if (is_first && !has_place) {
          PreemptLast([](const SequenceGroup&, const Sequence& other) { return HasPlace(other); });
          tenants_.CountUsage(running_);
        }
        TakePausedPlaces(1);
        num_spare_pages_ -= num_needed;
        Resume(group.get(), &sequence);
        tenants_.CountUsage(running_);
      }
      is_first = false;
    }
  }
}

// A sequence that waited for the prompt waits again, as long as another one computes it.
void Scheduler::Resume(SequenceGroup* group, Sequence* sequence) {
  sequence->state = sequence->waited_for_prompt && !group->sequences[0].IsDone()
                        ? SequenceState::kWaitingForPrompt
                        : SequenceState::kRunning;
  ForkFromPrompt(group);
}

template <typename IsWanted>
bool Scheduler::PreemptLast(const IsWanted& is_wanted, const Sequence* spared) {
  for (size_t i = running_.size(); i-- > 0;) {
    SequenceGroup& group = *running_[i];
    for (size_t choice = group.sequences.size(); choice-- > 0;) {
      Sequence& sequence = group.sequences[choice];
      if (!is_wanted(group, sequence)) continue;
      if (&sequence == spared) return false;
      Preempt(&group, &sequence);
      return true;
    }
  }
  return false;
}

const Sequence* Scheduler::FirstSequence() const {
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    for (const Sequence& sequence : group->sequences) {
      if (!sequence.IsDone()) return &sequence;
    }
  }
  return nullptr;
}

void Scheduler::Start(std::unique_ptr<SequenceGroup> started, int num_sequences) {
  const bool use_prefix_cache = UsesPrefixCache(started->request);
  started->Start(num_sequences, *checkpoint_, use_prefix_cache);
  started->owner = &tenants_.Of(started->tenant);
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

void Scheduler::MatchPrefix(SequenceGroup* group, Sequence* sequence) {
  const int num_computed = sequence->num_computed_tokens;
  if (blocks_->MatchPrefix(sequence)) CountHits(group, *sequence, num_computed);
}

void Scheduler::Truncate(SequenceGroup* group, Sequence* sequence) {
  const int num_computed = sequence->num_computed_tokens;
  blocks_->Truncate(sequence);
  if (!sequence->prefix_root || group->num_preemptions > 0) return;
  totals_.num_prefix_cache_queries += std::ssize(sequence->tokens) - num_computed;
  CountHits(group, *sequence, num_computed);
}

// Cached tokens that a preempted sequence finds again do not count as saved.
void Scheduler::CountHits(SequenceGroup* group, const Sequence& sequence, int num_computed) {
  if (group->num_preemptions > 0) return;
  const int num_hits = std::max(0, sequence.num_computed_tokens - num_computed);
  group->num_cached_tokens += num_hits;
  totals_.num_prefix_cache_hits += num_hits;
}

// Every sequence computes the prompt's last token itself: its logits give the first new token.
void Scheduler::ForkFromPrompt(SequenceGroup* group) {
  std::vector<Sequence>& sequences = group->sequences;
  const int num_shared_tokens = int(group->request.prompt.size()) - 1;
  if (sequences[0].num_computed_tokens < num_shared_tokens) return;
  for (size_t i = 1; i < sequences.size(); ++i) {
    if (sequences[i].state != SequenceState::kWaitingForPrompt) continue;
    blocks_->Fork(sequences[0], &sequences[i], num_shared_tokens);
    sequences[i].state = SequenceState::kRunning;
    if (sequences[i].task->MayMatchAfterFork()) Truncate(group, &sequences[i]);
  }
}

void Scheduler::Schedule() {
  CollectCandidates();
  if (tenants_.AreShared()) {
    budget_.Share(required_tokens_, &num_tokens_);
  } else {
    budget_.Divide(required_tokens_, &num_tokens_);
  }
  for (size_t i = 0; i < scheduled_.size(); ++i) scheduled_[i].num_tokens = num_tokens_[i];
  std::erase_if(scheduled_, [](const auto& scheduled) { return scheduled.num_tokens == 0; });
  AllocatePages();
  if (tenants_.AreShared()) ChargeTenants();
}

void Scheduler::ChargeTenants() {
  ++num_steps_;
  int64_t total = 0;
  for (const ScheduledSequence& scheduled : scheduled_) {
    Sequence* const sequence = scheduled.sequence;
    const int64_t cost =
        CostOf(sequence->num_computed_tokens, scheduled.num_tokens) +
        kCapturedWeightCost * sequence->task->NumCapturedWeights(*sequence, scheduled.num_tokens);
    Tenants::ChargeTokens(cost, scheduled.group->owner);
    total += cost;
    sequence->last_step = num_steps_;
  }
  tenants_.CountUsage(running_);
  tenants_.EndStep(total, blocks_->Layout().num_pages);
}

const Sequence* Scheduler::NextCapture() const {
  const Sequence* next = nullptr;
  int rank = 0;
  for (const auto& group : running_) {
    if (group->is_paused || (next != nullptr && group->owner->rank >= rank)) continue;
    for (const Sequence& sequence : group->sequences) {
      if (sequence.IsDone() || sequence.state != SequenceState::kRunning ||
          sequence.task->Capture() == nullptr) {
        continue;
      }
      next = &sequence;
      rank = group->owner->rank;
      break;
    }
  }
  return next;
}

// One token of a sequence that captures attention may cost a second, so few of them run: the first
// of all, which advances in every step, and that of another tenant which comes first. Large results
// run as far as they fit limits::kMaxStepFloats together, the first in any case.
void Scheduler::CollectCandidates() {
  bool has_capture = false;
  int64_t num_floats = 0;
  scheduled_.clear();
  required_tokens_.clear();
  for (const auto& group : running_) {
    if (group->is_paused) continue;
    for (Sequence& sequence : group->sequences) {
      if (sequence.IsDone() || sequence.state != SequenceState::kRunning) continue;
      if (sequence.task->Capture() != nullptr) {
        const bool is_first = !std::exchange(has_capture, true);
        if (!is_first && &sequence != NextCapture()) continue;
      }
      const int64_t wanted_floats = sequence.task->MaxFloatsInStep(sequence);
      if (wanted_floats > 0 && num_floats > 0 &&
          num_floats + wanted_floats > limits::kMaxStepFloats) {
        continue;
      }
      num_floats += wanted_floats;
      // Another sequence may have computed the next tokens since the last step.
      if (sequence.NumPendingTokens() > 1 &&
          sequence.num_computed_tokens % options_.page_size == 0) {
        MatchPrefix(group.get(), &sequence);
        sequence.task->Publish(group->sink.get());
        ForkFromPrompt(group.get());
      }
      scheduled_.push_back({.group = group.get(), .sequence = &sequence});
      required_tokens_.push_back({.num_pending = sequence.task->MaxTokensInStep(sequence),
                                  .first_position = sequence.num_computed_tokens,
                                  .is_streaming = sequence.task->IsStreaming(),
                                  .rank = group->owner->rank,
                                  .credit = group->owner->credit,
                                  .last_step = sequence.last_step});
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
      if (PreemptFor(*scheduled.group, sequence)) continue;
      scheduled.num_tokens = blocks_->MaxTokens(sequence) - sequence.num_computed_tokens;
    }
  }
  std::erase_if(scheduled_, [](const auto& scheduled) {
    return scheduled.num_tokens == 0 || scheduled.sequence->state == SequenceState::kPreempted;
  });
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

const std::atomic<bool>* Scheduler::WatchForOthers() {
  if (tenants_.AreShared()) return nullptr;
  int64_t cost = 0;
  bool has_prompt = false;
  for (const auto& [group, sequence, num_tokens, status] : scheduled_) {
    if (!sequence->draft.empty()) return nullptr;
    has_prompt |= num_tokens > 1;
    cost += CostOf(sequence->num_computed_tokens, num_tokens);
  }
  if (!has_prompt || cost <= budget_.SharedStep()) return nullptr;
  return waiting_->WatchForOthers(scheduled_.front().group->tenant);
}

void Scheduler::FreePages(Sequence* sequence) {
  blocks_->Free(sequence);
  speculator_->Free(sequence);
}

bool Scheduler::PreemptFor(const SequenceGroup& group, const Sequence& sequence) {
  const auto preempt_last = [&](const auto& is_candidate) {
    const auto is_wanted = [&](const SequenceGroup& other, const Sequence& victim) {
      return is_candidate(other) && (&victim == &sequence || !victim.pages.empty());
    };
    return PreemptLast(is_wanted, &sequence);
  };
  const auto is_paused = [](const SequenceGroup& other) { return other.is_paused; };
  if (preempt_last(is_paused)) return true;
  if (!tenants_.AreShared() || &sequence == FirstSequence()) {
    return preempt_last(std::not_fn(is_paused));
  }
  tenants_.CountUsage(running_);
  const Tenant& tenant = *group.owner;
  const int64_t share = tenants_.ShareOf(blocks_->Layout().num_pages);
  if (tenant.num_pages < share && PreemptOverShare(tenant, share)) return true;
  return preempt_last(
      [&](const SequenceGroup& other) { return !other.is_paused && other.owner == &tenant; });
}

bool Scheduler::PreemptOverShare(const Tenant& tenant, int64_t share) {
  return PreemptLast([&](const SequenceGroup& group, const Sequence& victim) {
    return !group.is_paused && group.owner->num_pages > share && !victim.pages.empty() &&
           MayLose(*group.owner, tenant, victim);
  });
}

void Scheduler::Preempt(SequenceGroup* group, Sequence* sequence) {
  FreePages(sequence);
  sequence->waited_for_prompt = sequence->state == SequenceState::kWaitingForPrompt;
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
  group->num_quantum_tokens += scheduled.num_tokens;
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
    YieldAfterQuantum(group, now);
  }
  const int num_sampled = sequence->task->NumGenerated() - num_generated;
  totals_.num_generated_tokens += num_sampled;
  // Nothing is sampled where a constraint ends the text.
  if (num_draft > 0) CompleteDraft(group, sequence, std::max(0, num_sampled - 1));
  if (sequence->IsDone()) FreePages(sequence);
}

void Scheduler::YieldAfterQuantum(SequenceGroup* group, Clock::time_point now) {
  if (group->num_quantum_tokens < options_.max_num_batched_tokens) return;
  group->num_quantum_tokens = 0;
  group->yielded_at = now;
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

// Seeded simulations of an engine with a fake model and a fake clock: arrivals in bursts, cancels,
// deadlines, priorities, KV cache pressure, slow readers, shared prefixes, choices, failing steps,
// several tenants.
// Every rule is checked after every step.
//   --seed=N    runs only that simulation
//   --steps=N   the least number of steps of all simulations together; default 1000000
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/str_cat.h"
#include "runtime/block_manager.h"
#include "runtime/engine.h"
#include "runtime/request_queue.h"
#include "runtime/scheduler.h"
#include "runtime/tenants.h"
#include "tests/runtime/oracle_proposer.h"
#include "tests/runtime/sim_request.h"
#include "tests/runtime/stepped_engine.h"
#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

constexpr int kPageSize = 16;
constexpr int kVocab = 16;

int64_t num_steps_wanted = 1000000;
std::optional<uint64_t> only_seed;

// A fault that a simulation injects, for the checks to find.
enum class Fault { kNone, kLeakedPage, kExtraReference, kOverwrittenPage, kStuckReader };

// `draft`: the checkpoint of the draft model in the simulations that have one.
EngineOptions SimOptions(SimRandom* random, Proposer* proposer, Checkpoint* draft) {
  EngineOptions options;
  options.proposer = proposer;
  options.max_model_len = Between(random, 1, 6) * 32;
  options.max_num_seqs = Between(random, 1, 16);
  options.max_queued_requests = Between(random, 1, 40);
  options.max_queued_tokens = Between(random, 0, 1) * Between(random, 1, 2000);
  options.max_num_batched_tokens = Between(random, 1, OneIn(random, 4) ? 12 : 64);
  options.max_num_partial_prefills = Between(random, 1, 4);
  options.chunked_prefill_size = Between(random, 1, 32);
  options.enable_prefix_caching = !OneIn(random, 8);
  options.page_size = kPageSize;
  const int num_pages = options.max_model_len / kPageSize;
  options.speculative_method =
      OneIn(random, 4) ? SpeculativeMethod::kNgram : SpeculativeMethod::kOff;
  if (proposer == nullptr && OneIn(random, 2)) {
    options.speculative_method = SpeculativeMethod::kDraftModel;
    options.draft_checkpoint = draft;
  }
  options.num_speculative_tokens = Between(random, 1, OneIn(random, 4) ? 40 : 6);
  options.prompt_lookup_min = 1;
  options.prompt_lookup_max = Between(random, 1, 4);
  options.adapts_speculation = OneIn(random, 2);
  options.kv_cache_bytes =
      kPageBytes * Between(random, num_pages, OneIn(random, 2) ? num_pages + 4 : 6 * num_pages);
  return options;
}

class Simulation {
 public:
  explicit Simulation(uint64_t seed, Fault fault = Fault::kNone)
      : random_(seed),
        fault_(fault),
        proposer_(Between(&random_, 0, 4) * 25, /*wrong_id=*/-1, seed),
        has_proposer_(OneIn(&random_, 2)),
        draft_(kVocab),
        options_(SimOptions(&random_, has_proposer_ ? &proposer_ : nullptr, &draft_.checkpoint)),
        fake_(kVocab) {
    fake_.checkpoint.tokenizer = nullptr;
    draft_.checkpoint.tokenizer = nullptr;
    draft_.model->wrong_percent = Between(&random_, 0, 3) * 30;
    draft_.model->poison_id = OneIn(&random_, 8) ? kVocab - 1 : -1;
    draft_.model->on_forward = [this](const ForwardBatch& batch) { return OnDraft(batch); };
    fake_.model->on_forward = [this](const ForwardBatch& batch) { return OnForward(batch); };
    engine_ = *Engine::CreateStepped(&fake_.checkpoint, &fake_.backend, options_,
                                     [this] { return now_; });
    proposer_.engine = engine_.get();
    row_cost_percent_ = Between(&random_, 0, 120);
    if (OneIn(&random_, 2)) {  // texts with different length budgets share no pages
      for (ModelConfig* const config : {&fake_.checkpoint.config, &draft_.checkpoint.config}) {
        config->hidden_size = 64;
        config->max_position_embeddings = 64;
        config->dynamic_ntk_factor = 2;
      }
    }
    load_percent_ = Between(&random_, 5, 80);
    is_patient_ = OneIn(&random_, 4);
    num_tenants_ = OneIn(&random_, 2) ? 1 : Between(&random_, 2, 4);
  }

  // Runs `num_steps` steps with arrivals, then lets all requests end. The first broken rule; empty:
  // none.
  std::string Run(int num_steps) {
    for (int i = 0; i < num_steps && failure_.empty(); ++i) {
      while (Between(&random_, 1, 100) <= load_percent_) Arrive();
      Disturb();
      if (i == num_steps / 2) InjectFault();
      Step();
    }
    if (OneIn(&random_, 5)) {
      engine_->AbortAll(absl::UnavailableError("the simulation ends"));
    } else {
      RunToEnd();
    }
    if (failure_.empty()) CheckEnd();
    return failure_;
  }

  int64_t NumSteps() const { return num_steps_; }
  const EngineStats& Totals() const { return totals_; }
  const std::map<absl::StatusCode, int>& Ends() const { return ends_; }

 private:
  struct Open {
    std::shared_ptr<SimSink> sink;
    Engine::Handle handle;
    std::optional<Clock::time_point> deadline;
    bool is_cancelled = false;
  };

  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = StrCat("step ", num_steps_, ": ", what);
  }

  void Arrive() {
    Request request = MakeSimRequest(&random_, fake_.checkpoint.config, options_.max_model_len,
                                     std::min(4, MaxRunning(options_)));
    if (!CheckFits(request, options_, Blocks().Layout()).ok()) return;
    if (!is_patient_ && OneIn(&random_, 8)) {
      request.deadline = now_ + std::chrono::milliseconds(Between(&random_, 0, 3000));
    }
    Open open{.sink = std::make_shared<SimSink>(request, fake_.checkpoint.config),
              .handle = {},
              .deadline = request.deadline};
    const int num_waiting = engine_->Stats().num_waiting;
    const std::string tenant = num_tenants_ == 1 ? "" : StrCat(Between(&random_, 1, num_tenants_));
    auto handle = engine_->Submit(std::move(request), open.sink, tenant);
    if (handle.ok()) {
      open.handle = *std::move(handle);
      open_.push_back(std::move(open));
    } else if (handle.status().code() != absl::StatusCode::kResourceExhausted || num_waiting == 0) {
      Fail(StrCat("refused with ", handle.status().ToString()));
    }
  }

  // Time passes; sinks pause and resume; clients cancel; a step may fail.
  void Disturb() {
    now_ += std::chrono::microseconds(Between(&random_, 0, 20000));
    if (OneIn(&random_, 200)) now_ += std::chrono::seconds(Between(&random_, 1, 5));
    if (open_.empty()) return;
    Open& open = open_[random_() % open_.size()];
    if (OneIn(&random_, 6)) open.sink->is_writable = !open.sink->is_writable || OneIn(&random_, 2);
    if (!is_patient_ && OneIn(&random_, 40)) {
      open.is_cancelled = true;
      open.handle.Cancel();
    }
    must_fail_ = !is_patient_ && OneIn(&random_, 2000);
  }

  void InjectFault() {
    std::vector<int32_t> leaked;
    switch (fault_) {
      case Fault::kNone: break;
      case Fault::kLeakedPage: Blocks().Allocate(1, &leaked); break;
      case Fault::kExtraReference:
        if (const std::optional<int32_t> page_id = AnyUsedPage()) Blocks().Pages().AddRef(*page_id);
        break;
      case Fault::kOverwrittenPage:
        if (const std::optional<int32_t> page_id = AnyUsedPage()) {
          const KvLayout& layout = Blocks().Layout();
          std::fill_n(static_cast<char*>(engine_->GetKvView().v) +
                          layout.ValueBlockIndex(0, *page_id, 0) * BytesOf(layout.dtype),
                      layout.ValueBlockStride() * BytesOf(layout.dtype), char(0x55));
        }
        break;
      case Fault::kStuckReader: stuck_ = open_.empty() ? nullptr : open_.front().sink; break;
    }
  }

  // A page of a sequence that will read it again.
  std::optional<int32_t> AnyUsedPage() const {
    std::optional<int32_t> page_id;
    ForEachSequence([&](const SequenceGroup& group, const Sequence& sequence) {
      if (!group.is_paused && sequence.num_computed_tokens >= 1) page_id = sequence.pages.back();
    });
    return page_id;
  }

  template <typename Visit>
  void ForEachSequence(Visit visit) const {
    for (const auto& group : engine_->GetScheduler().Running()) {
      for (const Sequence& sequence : group->sequences) visit(*group, sequence);
    }
  }
  BlockManager& Blocks() const { return engine_->GetBlockManager(); }

  absl::Status OnForward(const ForwardBatch& batch) {
    if (std::ssize(batch.token_ids) > options_.max_num_batched_tokens)
      Fail("a step over its budget");
    // What a step takes, for the speculation that adapts to it.
    const auto num_sequences = int64_t(std::ssize(batch.sequences));
    const int64_t num_further = std::ssize(batch.token_ids) - num_sequences;
    now_ += std::chrono::nanoseconds(100 * num_sequences + num_further * row_cost_percent_);
    CheckShares();
    first_ = FindFirst();
    num_value_rows_ = NumValueRows(first_);
    has_failed_ = std::exchange(must_fail_, false);
    return has_failed_ ? absl::InternalError("the device is on fire") : absl::OkStatus();
  }

  // The draft model may fail whenever it runs.
  absl::Status OnDraft(const ForwardBatch& batch) {
    if (std::ssize(batch.token_ids) > options_.max_num_batched_tokens) {
      Fail("a forward of the draft model over its budget");
    }
    now_ += std::chrono::nanoseconds(20 * std::ssize(batch.token_ids));
    return OneIn(&random_, 500) ? absl::InternalError("the draft model is on fire")
                                : absl::OkStatus();
  }

  void Step() {
    ++num_steps_;
    step_began_at_ = now_;  // the models take time
    NoteTenants();
    first_ = nullptr;
    has_failed_ = false;
    if (engine_->Step().ok() == has_failed_) Fail("a failed step returned OK");
    CheckPages();
    if (!has_failed_) CheckFirstAdvanced();
    CheckEnds();
  }

  // No page is lost, reference counts are right, and a page that is written is not shared.
  void CheckPages() {
    const PageAllocator& pages = Blocks().Pages();
    ref_counts_.assign(size_t(pages.NumPages()), 0);
    is_written_.assign(size_t(pages.NumPages()), false);
    ForEachSequence([&](const SequenceGroup&, const Sequence& sequence) {
      if (sequence.state != SequenceState::kRunning && !sequence.pages.empty()) {
        Fail("a sequence that does not run has pages");
      }
      if (sequence.num_read_only_pages > int(sequence.pages.size()) ||
          Blocks().Layout().PagesFor(sequence.num_computed_tokens) > int(sequence.pages.size())) {
        Fail("tokens without a page");
      }
      if (!sequence.draft.empty()) Fail("a draft outlived its step");
      if (Blocks().Layout().PagesFor(sequence.num_computed_tokens) < int(sequence.pages.size())) {
        Fail("pages without tokens");
      }
      for (size_t i = 0; i < sequence.pages.size(); ++i) {
        const auto page_id = size_t(sequence.pages[i]);
        ++ref_counts_[page_id];
        if (int(i) >= sequence.num_read_only_pages && options_.enable_prefix_caching &&
            sequence.prefix_root) {
          is_written_[page_id] = true;
        }
      }
    });
    int num_used = 0;
    for (int32_t page_id = 0; page_id < pages.NumPages(); ++page_id) {
      const int ref_count = ref_counts_[size_t(page_id)];
      num_used += ref_count > 0;
      if (ref_count != pages.RefCount(page_id)) Fail("a page with a wrong ref_count");
      if (is_written_[size_t(page_id)] && (ref_count > 1 || pages.IsCached(page_id))) {
        Fail("a page that is written is shared");
      }
    }
    if (num_used + pages.NumFree() + pages.NumEvictable() != pages.NumPages()) Fail("lost pages");
    totals_ = engine_->Stats();
    if (totals_.num_free_pages != pages.NumFree() ||
        totals_.num_cached_pages != pages.NumEvictable()) {
      Fail("the statistics count other pages");
    }
  }

  // What a tenant uses, as the rules of shares count it.
  struct Use {
    int num_sequences = 0, num_running = 0, num_preempted = 0;
    int64_t num_pages = 0;
  };

  // Which tenants have requests. The first waiting request of each.
  std::vector<const SequenceGroup*> NoteTenants() {
    std::vector<const SequenceGroup*> first_waiting;
    engine_->GetRequestQueue().GetFirst(&first_waiting);
    for (const SequenceGroup* const group : first_waiting) {
      last_active_[group->tenant] = step_began_at_;
    }
    for (const auto& group : engine_->GetScheduler().Running()) {
      last_active_[group->tenant] = step_began_at_;
    }
    return first_waiting;
  }

  // The places are never exceeded, and no request waits for a place that is its tenant's share,
  // unless its tenant has preempted sequences, or pages may be short, or a request that was
  // overtaken for long enough comes before it. A step may free pages after its admissions, so a few
  // steps do not count.
  void CheckShares() {
    const std::vector<const SequenceGroup*> first_waiting = NoteTenants();
    const auto num_steps_before = std::exchange(num_steps_waited_, {});
    std::map<std::string, Use> uses;
    int num_running = 0;
    int64_t num_needed = 0;  // pages that running sequences need soon
    ForEachSequence([&](const SequenceGroup& group, const Sequence& sequence) {
      if (sequence.IsDone()) return;
      Use& use = uses[group.tenant];
      ++use.num_sequences;
      if (sequence.state == SequenceState::kPreempted) {
        ++use.num_preempted;
        return;
      }
      ++num_running;
      const auto num_pages = int64_t(std::ssize(sequence.pages));
      use.num_pages += num_pages;
      num_needed += std::max(
          int64_t{0}, Blocks().Layout().PagesFor(int(sequence.tokens.size()) + 1) + 1 - num_pages);
    });
    if (num_running > MaxRunning(options_)) Fail("more sequences than places");
    std::erase_if(last_active_, [&](const auto& tenant) {
      return step_began_at_ - tenant.second > Tenants::kMemory;
    });
    const auto num_tenants = int(last_active_.size());
    if (num_tenants < 2 || num_tenants > MaxRunning(options_)) return;
    for (const SequenceGroup* const group : first_waiting) {
      if (step_began_at_ - group->arrival_time >= kMaxOvertaking) return;
    }
    for (const SequenceGroup* const group : first_waiting) {
      const Use& use = uses[group->tenant];
      const RequiredResources& required = group->required;
      const int64_t num_pages = int64_t{required.num_sequences} * required.num_initial_pages;
      if (use.num_preempted == 0 &&
          use.num_sequences + required.num_sequences <= MaxRunning(options_) / num_tenants &&
          use.num_pages + num_pages <= Blocks().Layout().num_pages / num_tenants &&
          num_pages + num_needed <= Blocks().NumAvailable()) {
        const auto before = num_steps_before.find({group, group->arrival_time});
        const int num_steps = before == num_steps_before.end() ? 1 : before->second + 1;
        if (num_steps > kMaxStepsWaited) Fail("a request within its tenant's share waits");
        num_steps_waited_[{group, group->arrival_time}] = num_steps;
      }
    }
  }

  // The first request in scheduling order that is not paused advances in every step, or ends.
  void CheckFirstAdvanced() {
    if (first_ == nullptr && FindFirst() != nullptr) Fail("a step without tokens");
    const int64_t num_value_rows = NumValueRows(first_);
    if (num_value_rows >= 0 && num_value_rows <= num_value_rows_) {
      Fail("the first request did not advance");
    }
  }
  const OutputSink* FindFirst() const {
    const OutputSink* first = nullptr;
    ForEachSequence([&](const SequenceGroup& group, const Sequence&) {
      if (first == nullptr && !group.is_paused) first = group.sink.get();
    });
    return first;
  }
  // V rows that the request with that sink has attended; -1: it does not run.
  int64_t NumValueRows(const OutputSink* sink) const {
    int64_t num_value_rows = -1;
    ForEachSequence([&](const SequenceGroup& group, const Sequence& sequence) {
      if (group.sink.get() != sink) return;
      num_value_rows = std::max(num_value_rows, int64_t{0}) + sequence.attention.num_value_rows;
    });
    return num_value_rows;
  }

  // Requests end for a reason, and in the step in which they have one.
  void CheckEnds() {
    std::erase_if(open_, [&](const Open& open) {
      if (!open.sink->IsDone()) {
        if (open.is_cancelled || (open.deadline && *open.deadline <= step_began_at_)) {
          Fail("a cancelled or late request outlived a step");
        }
        return false;
      }
      CheckEndOf(open);
      return true;
    });
  }

  void CheckEndOf(const Open& open) {
    const absl::StatusCode code = open.sink->Status().code();
    ++ends_[code];
    if (!open.sink->Failure().empty()) Fail(open.sink->Failure());
    const bool is_late = open.deadline && *open.deadline <= now_;
    if (code == absl::StatusCode::kCancelled ? !open.is_cancelled
        : code == absl::StatusCode::kDeadlineExceeded
            ? !is_late
            : code != absl::StatusCode::kOk && code != absl::StatusCode::kUnavailable &&
                  !has_failed_) {
      Fail(StrCat("ended with ", open.sink->Status().ToString(), " for no reason"));
    }
  }

  // No more arrivals, and all readers keep up: every request ends soon.
  void RunToEnd() {
    is_patient_ = true;
    must_fail_ = false;
    for (const Open& open : open_) open.sink->is_writable = open.sink != stuck_;
    // Each step computes a token of the first request; preempted requests recompute theirs.
    int64_t num_steps_left = 100 + 4 * std::ssize(open_) * options_.max_model_len * 4;
    while (!open_.empty() && failure_.empty()) {
      now_ += std::chrono::milliseconds(1);
      if (num_steps_left-- == 0) return Fail("requests do not end");
      Step();
    }
  }

  void CheckEnd() {
    for (const Open& open : open_) {
      if (!open.sink->IsDone()) return Fail("a request without an end");
      CheckEndOf(open);
    }
    CheckPages();
    const PageAllocator& pages = Blocks().Pages();
    if (pages.NumFree() + pages.NumEvictable() != pages.NumPages()) Fail("leaked pages");
    if (totals_.num_free_draft_model_pages != totals_.num_draft_model_pages) {
      Fail("leaked pages of the draft model");
    }
    const RequestQueue& queue = engine_->GetRequestQueue();
    if (!queue.WaitUntilNoneOpen(absl::ZeroDuration())) Fail("the queue counts open requests");
    if (queue.CurrentLoad().num_tokens != 0) Fail("the queue counts waiting tokens");
  }

  SimRandom random_;
  const Fault fault_;
  OracleProposer proposer_;
  const bool has_proposer_;
  FakeCheckpoint draft_;
  int64_t row_cost_percent_ = 0;  // of a token in a step, in those of its sequence
  const EngineOptions options_;
  FakeCheckpoint fake_;
  Clock::time_point now_{std::chrono::hours(1)};
  Clock::time_point step_began_at_;
  std::unique_ptr<Engine> engine_;
  int load_percent_ = 0;     // the probability of an arrival, and of each further one in a step
  bool is_patient_ = false;  // no cancels, deadlines or failures
  int num_tenants_ = 1;
  static constexpr int kMaxStepsWaited = 3;
  std::map<std::pair<const SequenceGroup*, Clock::time_point>, int> num_steps_waited_;
  std::map<std::string, Clock::time_point> last_active_;  // of each tenant, within their memory
  bool must_fail_ = false, has_failed_ = false;
  std::vector<Open> open_;
  std::shared_ptr<SimSink> stuck_;
  const OutputSink* first_ = nullptr;  // in the step; null: it computed no tokens
  int64_t num_value_rows_ = 0;         // of the first request, before the step
  std::vector<int> ref_counts_;
  std::vector<bool> is_written_;
  std::map<absl::StatusCode, int> ends_;
  EngineStats totals_;
  int64_t num_steps_ = 0;
  std::string failure_;
};

constexpr int kStepsPerSimulation = 500;

// Shards, so that ctest can run them in parallel.
class Simulator : public testing::TestWithParam<int> {};

TEST_P(Simulator, EverySimulationKeepsTheRules) {
  constexpr int kNumShards = 4;
  int64_t num_steps = 0, num_preemptions = 0, num_hits = 0, num_requests = 0, num_failed = 0;
  int64_t num_drafted = 0, num_accepted = 0, num_accepted_of_model = 0;
  if (only_seed && *only_seed % kNumShards != uint64_t(GetParam())) return;
  uint64_t seed = only_seed.value_or(uint64_t(GetParam()));
  for (; num_steps < num_steps_wanted / kNumShards; seed += kNumShards) {
    Simulation simulation(seed);
    const std::string failure = simulation.Run(kStepsPerSimulation);
    ASSERT_EQ(failure, "") << "reproduce with: simulator_test --seed=" << seed;
    num_steps += simulation.NumSteps();
    num_preemptions += simulation.Totals().num_preemptions;
    num_hits += simulation.Totals().num_prefix_cache_hits;
    num_drafted += simulation.Totals().num_draft_tokens;
    num_accepted += simulation.Totals().num_accepted_tokens;
    if (simulation.Totals().num_draft_model_pages > 0) {
      num_accepted_of_model += simulation.Totals().num_accepted_tokens;
    }
    for (const auto& [code, count] : simulation.Ends()) {
      num_requests += count;
      num_failed += code != absl::StatusCode::kOk ? count : 0;
    }
    if (only_seed) break;
  }
  std::cout << StrCat(num_steps, " steps, ", num_requests, " requests, ", num_failed, " aborted, ",
                      num_preemptions, " preemptions, ", num_hits, " tokens from the cache, ",
                      num_accepted, " of ", num_drafted, " draft tokens accepted, ",
                      num_accepted_of_model, " of a draft model\n");
  if (only_seed) return;
  EXPECT_GT(num_preemptions, num_steps / 1000) << "without KV cache pressure nothing is tested";
  EXPECT_GT(num_hits, num_steps / 100);
  EXPECT_GT(num_accepted, num_steps / 100);
  EXPECT_GT(num_accepted_of_model, num_steps / 1000);
  EXPECT_GT(num_drafted - num_accepted, num_steps / 100);
  EXPECT_GT(num_requests - num_failed, num_steps / 100);
}

INSTANTIATE_TEST_SUITE_P(Shards, Simulator, testing::Range(0, 4));

// The checks find injected faults.
class FaultInjection : public testing::TestWithParam<Fault> {};

TEST_P(FaultInjection, IsDetected) {
  int num_found = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    num_found += !Simulation(seed, GetParam()).Run(100).empty();
  }
  EXPECT_GT(num_found, 5) << "of 40; some simulations have no page in use at that step";
}

INSTANTIATE_TEST_SUITE_P(Faults, FaultInjection,
                         testing::Values(Fault::kLeakedPage, Fault::kExtraReference,
                                         Fault::kOverwrittenPage, Fault::kStuckReader));

}  // namespace

// False: not a flag of this test.
bool ReadFlag(absl::string_view flag) {
  uint64_t seed = 0;
  if (absl::ConsumePrefix(&flag, "--steps=")) return absl::SimpleAtoi(flag, &num_steps_wanted);
  if (!absl::ConsumePrefix(&flag, "--seed=") || !absl::SimpleAtoi(flag, &seed)) return false;
  only_seed = seed;
  return true;
}

}  // namespace lssar

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (!lssar::ReadFlag(argv[i])) {
      std::cerr << argv[i] << " is neither --seed=N nor --steps=N\n";
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}

// Seeded worlds of requests on the step loop, with a fake model and a fake clock: arrivals in
// bursts, cancels, deadlines, priorities, famine, slow readers, shared beginnings, choices, steps
// that fail. Everything is checked after every step.
//   --seed=N    that world alone
//   --steps=N   how many steps, of all worlds together, at least; default 1000000
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
#include "kernels/str_cat.h"
#include "runtime/admission.h"
#include "runtime/step_loop.h"
#include "tests/runtime/sim_request.h"
#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

constexpr int kPageSize = 16;
constexpr int64_t kPageBytes = 2 * kPageSize * 4 * 2;  // FakeModel's, both pools
constexpr int kVocab = 16;

int64_t num_steps_wanted = 1000000;
std::optional<uint64_t> only_seed;

// What a world does to itself, for the checks to find.
enum class Sabotage { kNone, kLeakedPage, kForgottenHolder, kOverwrittenPage, kStuckReader };

EngineOptions SimOptions(SimRandom* random) {
  EngineOptions options;
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
  options.kv_cache_bytes =
      kPageBytes * Between(random, num_pages, OneIn(random, 2) ? num_pages + 4 : 6 * num_pages);
  return options;
}

class SimWorld {
 public:
  explicit SimWorld(uint64_t seed, Sabotage sabotage = Sabotage::kNone)
      : random_(seed),
        sabotage_(sabotage),
        options_(SimOptions(&random_)),
        fake_(kVocab),
        queue_(options_.max_queued_requests, MaxQueuedTokens(options_)) {
    fake_.checkpoint.tokenizer = nullptr;
    fake_.model->on_forward = [this](const ForwardBatch& batch) { return OnForward(batch); };
    auto kv_cache = *KvCache::Create(fake_.checkpoint.config, options_, &fake_.backend);
    kv_cache_ = kv_cache.get();
    loop_ = std::make_unique<StepLoop>(&fake_.checkpoint, std::move(kv_cache), options_, &queue_,
                                       [this] { return now_; });
    if (OneIn(&random_, 2)) {  // texts of different length budgets share no pages
      fake_.checkpoint.config.hidden_size = 64;
      fake_.checkpoint.config.max_position_embeddings = 64;
      fake_.checkpoint.config.dynamic_ntk_factor = 2;
    }
    load_percent_ = Between(&random_, 5, 80);
    is_patient_ = OneIn(&random_, 4);
  }

  // Lives for `num_steps`, then lets all that is there come to its end. The first thing that was
  // wrong; empty: nothing was.
  std::string Live(int num_steps) {
    for (int i = 0; i < num_steps && failure_.empty(); ++i) {
      while (Between(&random_, 1, 100) <= load_percent_) Arrive();
      Disturb();
      if (i == num_steps / 2) Spoil();
      Step();
    }
    if (OneIn(&random_, 5)) {
      loop_->EndAll(absl::UnavailableError("the world ends"));
    } else {
      ComeToEnd();
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
    std::shared_ptr<std::atomic<bool>> cancelled;
    std::optional<Clock::time_point> deadline;
  };

  void Fail(const std::string& what) {
    if (failure_.empty()) failure_ = StrCat("step ", num_steps_, ": ", what);
  }

  void Arrive() {
    Request request = MakeSimRequest(&random_, fake_.checkpoint.config, options_.max_model_len,
                                     std::min(4, MaxRunning(options_)));
    if (!CheckFits(request, options_, loop_->Layout()).ok()) return;
    if (!is_patient_ && OneIn(&random_, 8)) {
      request.deadline = now_ + std::chrono::milliseconds(Between(&random_, 0, 3000));
    }
    Open open{.sink = std::make_shared<SimSink>(request, fake_.checkpoint.config),
              .cancelled = std::make_shared<std::atomic<bool>>(false),
              .deadline = request.deadline};
    const int num_queued = queue_.NumQueued();
    const absl::Status pushed = queue_.Push({.request = std::move(request),
                                             .sink = open.sink,
                                             .cancelled = open.cancelled,
                                             .submitted_at = now_});
    if (pushed.ok()) {
      open_.push_back(std::move(open));
    } else if (pushed.code() != absl::StatusCode::kResourceExhausted || num_queued == 0) {
      Fail(StrCat("refused with ", pushed.ToString()));
    }
  }

  // Time passes; readers fall behind and catch up; clients give up.
  void Disturb() {
    now_ += std::chrono::microseconds(Between(&random_, 0, 20000));
    if (OneIn(&random_, 200)) now_ += std::chrono::seconds(Between(&random_, 1, 5));
    if (open_.empty()) return;
    Open& open = open_[random_() % open_.size()];
    if (OneIn(&random_, 6)) open.sink->has_room = !open.sink->has_room || OneIn(&random_, 2);
    if (!is_patient_ && OneIn(&random_, 40)) open.cancelled->store(true);
    must_fail_ = !is_patient_ && OneIn(&random_, 2000);
  }

  void Spoil() {
    std::vector<int32_t> held;
    switch (sabotage_) {
      case Sabotage::kNone: break;
      case Sabotage::kLeakedPage: kv_cache_->Acquire(1, &held); break;
      case Sabotage::kForgottenHolder:
        if (const std::optional<int32_t> page_id = AnyHeldPage()) {
          kv_cache_->Pages().Share(*page_id);
        }
        break;
      case Sabotage::kOverwrittenPage:
        if (const std::optional<int32_t> page_id = AnyHeldPage()) {
          const KvLayout& layout = loop_->Layout();
          std::fill_n(static_cast<char*>(kv_cache_->View().v) +
                          layout.BlockIndex(0, *page_id, 0) * BytesOf(layout.dtype),
                      layout.BlockStride() * BytesOf(layout.dtype), char(0x55));
        }
        break;
      case Sabotage::kStuckReader: stuck_ = open_.empty() ? nullptr : open_.front().sink; break;
    }
  }

  // Of a sequence that will read it again.
  std::optional<int32_t> AnyHeldPage() const {
    std::optional<int32_t> page_id;
    loop_->VisitSequences([&](const RunningRequest& running, const Sequence& sequence) {
      if (!running.is_paused && sequence.num_computed >= 1) page_id = sequence.pages.back();
    });
    return page_id;
  }

  absl::Status OnForward(const ForwardBatch& batch) {
    if (std::ssize(batch.token_ids) > options_.max_num_batched_tokens)
      Fail("a step over its budget");
    senior_ = FindSenior();
    num_value_rows_ = NumValueRows(senior_);
    has_failed_ = std::exchange(must_fail_, false);
    return has_failed_ ? absl::InternalError("the device is on fire") : absl::OkStatus();
  }

  void Step() {
    ++num_steps_;
    senior_ = nullptr;
    has_failed_ = false;
    if (loop_->Step().ok() == has_failed_) Fail("a failed step said nothing");
    CheckPages();
    if (!has_failed_) CheckSeniorWentOn();
    CheckEnds();
  }

  // Pages are conserved, have the holders that they say, and one who writes is alone.
  void CheckPages() {
    const PageAllocator& pages = kv_cache_->Pages();
    num_holders_.assign(size_t(pages.NumPages()), 0);
    is_written_.assign(size_t(pages.NumPages()), false);
    loop_->VisitSequences([&](const RunningRequest&, const Sequence& sequence) {
      if (sequence.state != SequenceState::kRuns && !sequence.pages.empty()) {
        Fail("pages of a sequence that does not run");
      }
      if (sequence.num_sealed_pages > int(sequence.pages.size()) ||
          loop_->Layout().PagesFor(sequence.num_computed) > int(sequence.pages.size())) {
        Fail("tokens without a page");
      }
      for (size_t i = 0; i < sequence.pages.size(); ++i) {
        const auto page_id = size_t(sequence.pages[i]);
        ++num_holders_[page_id];
        if (int(i) >= sequence.num_sealed_pages && options_.enable_prefix_caching && sequence.root) {
          is_written_[page_id] = true;
        }
      }
    });
    int num_held = 0;
    for (int32_t page_id = 0; page_id < pages.NumPages(); ++page_id) {
      const int num_holders = num_holders_[size_t(page_id)];
      num_held += num_holders > 0;
      if (num_holders != pages.NumHolders(page_id)) Fail("a page with another number of holders");
      if (is_written_[size_t(page_id)] && (num_holders > 1 || pages.IsKept(page_id))) {
        Fail("a page that is written is shared");
      }
    }
    if (num_held + pages.NumFree() + pages.NumIdle() != pages.NumPages()) Fail("pages got lost");
    totals_ = loop_->Stats();
    if (totals_.num_free_pages != pages.NumFree() || totals_.num_cached_pages != pages.NumIdle()) {
      Fail("the statistics say other pages");
    }
  }

  // The most senior request that is not paused has a row in every step, or ended in it.
  void CheckSeniorWentOn() {
    if (senior_ == nullptr && FindSenior() != nullptr) Fail("a step without rows");
    const int64_t num_value_rows = NumValueRows(senior_);
    if (num_value_rows >= 0 && num_value_rows <= num_value_rows_) {
      Fail("the most senior request stood still");
    }
  }
  const OutputSink* FindSenior() const {
    const OutputSink* senior = nullptr;
    loop_->VisitSequences([&](const RunningRequest& running, const Sequence&) {
      if (senior == nullptr && !running.is_paused) senior = running.submission.sink.get();
    });
    return senior;
  }
  // Of the request with that sink; -1: it does not run.
  int64_t NumValueRows(const OutputSink* sink) const {
    int64_t num_value_rows = -1;
    loop_->VisitSequences([&](const RunningRequest& running, const Sequence& sequence) {
      if (running.submission.sink.get() != sink) return;
      num_value_rows = std::max(num_value_rows, int64_t{0}) + sequence.attention.num_value_rows;
    });
    return num_value_rows;
  }

  // Requests that ended had a reason to; none is told of its end later than in the step.
  void CheckEnds() {
    std::erase_if(open_, [&](const Open& open) {
      if (!open.sink->IsDone()) {
        if (*open.cancelled || (open.deadline && *open.deadline <= now_)) {
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
    if (code == absl::StatusCode::kCancelled ? !*open.cancelled
        : code == absl::StatusCode::kDeadlineExceeded
            ? !is_late
            : code != absl::StatusCode::kOk && code != absl::StatusCode::kUnavailable &&
                  !has_failed_) {
      Fail(StrCat("ended with ", open.sink->Status().ToString(), " for no reason"));
    }
  }

  // Nobody comes any more, and all readers keep up: everything ends soon.
  void ComeToEnd() {
    is_patient_ = true;
    must_fail_ = false;
    for (const Open& open : open_) open.sink->has_room = open.sink != stuck_;
    // Each step gives the most senior request a row; preempted ones compute theirs again.
    int64_t num_steps_left = 100 + 4 * std::ssize(open_) * options_.max_model_len * 4;
    while (!open_.empty() && failure_.empty()) {
      now_ += std::chrono::milliseconds(1);
      if (num_steps_left-- == 0) return Fail("the world does not come to its end");
      Step();
    }
  }

  void CheckEnd() {
    for (const Open& open : open_) {
      if (!open.sink->IsDone()) return Fail("a request without an end");
      CheckEndOf(open);
    }
    CheckPages();
    const PageAllocator& pages = kv_cache_->Pages();
    if (pages.NumFree() + pages.NumIdle() != pages.NumPages()) Fail("pages held by nobody");
    if (!queue_.WaitUntilNoneOpen(absl::ZeroDuration())) Fail("the queue counts on more requests");
    if (queue_.CurrentLoad().num_tokens != 0) Fail("the queue counts tokens of nobody");
  }

  SimRandom random_;
  const Sabotage sabotage_;
  const EngineOptions options_;
  FakeCheckpoint fake_;
  RequestQueue queue_;
  KvCache* kv_cache_ = nullptr;
  std::unique_ptr<StepLoop> loop_;
  Clock::time_point now_{std::chrono::hours(1)};
  int load_percent_ = 0;     // the chance of an arrival, and of one more, and of one more
  bool is_patient_ = false;  // no cancels, deadlines or failures
  bool must_fail_ = false, has_failed_ = false;
  std::vector<Open> open_;
  std::shared_ptr<SimSink> stuck_;
  const OutputSink* senior_ = nullptr;  // of the step; null: it ran no rows
  int64_t num_value_rows_ = 0;          // that it had read before
  std::vector<int> num_holders_;
  std::vector<bool> is_written_;
  std::map<absl::StatusCode, int> ends_;
  EngineStats totals_;
  int64_t num_steps_ = 0;
  std::string failure_;
};

constexpr int kStepsPerWorld = 500;

// Four at once where there are cores for it.
class Simulator : public testing::TestWithParam<int> {};

TEST_P(Simulator, EveryWorldKeepsItsRules) {
  constexpr int kNumShards = 4;
  int64_t num_steps = 0, num_preemptions = 0, num_hits = 0, num_requests = 0, num_failed = 0;
  if (only_seed && *only_seed % kNumShards != uint64_t(GetParam())) return;
  uint64_t seed = only_seed.value_or(uint64_t(GetParam()));
  for (; num_steps < num_steps_wanted / kNumShards; seed += kNumShards) {
    SimWorld world(seed);
    const std::string failure = world.Live(kStepsPerWorld);
    ASSERT_EQ(failure, "") << "again with: simulator_test --seed=" << seed;
    num_steps += world.NumSteps();
    num_preemptions += world.Totals().num_preemptions;
    num_hits += world.Totals().num_prefix_cache_hits;
    for (const auto& [code, count] : world.Ends()) {
      num_requests += count;
      num_failed += code != absl::StatusCode::kOk ? count : 0;
    }
    if (only_seed) break;
  }
  std::cout << StrCat(num_steps, " steps, ", num_requests, " requests, ", num_failed,
                      " cut short, ", num_preemptions, " preemptions, ", num_hits,
                      " tokens from the cache\n");
  if (only_seed) return;
  EXPECT_GT(num_preemptions, num_steps / 1000) << "worlds without famine show nothing";
  EXPECT_GT(num_hits, num_steps / 100);
  EXPECT_GT(num_requests - num_failed, num_steps / 100);
}

INSTANTIATE_TEST_SUITE_P(Shards, Simulator, testing::Range(0, 4));

// Checks that find nothing in a broken world would find nothing at all.
class Canary : public testing::TestWithParam<Sabotage> {};

TEST_P(Canary, IsFound) {
  int num_found = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    num_found += !SimWorld(seed, GetParam()).Live(100).empty();
  }
  EXPECT_GT(num_found, 5) << "of 40; some worlds have nothing to spoil at that moment";
}

INSTANTIATE_TEST_SUITE_P(Sabotages, Canary,
                         testing::Values(Sabotage::kLeakedPage, Sabotage::kForgottenHolder,
                                         Sabotage::kOverwrittenPage, Sabotage::kStuckReader));

}  // namespace

// False: not a flag of ours.
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

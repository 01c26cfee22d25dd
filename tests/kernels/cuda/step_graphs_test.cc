// Decode steps recorded and replayed as graphs have the bits of their ops run one by one.
#include "kernels/cuda/step_graphs.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/faulty_driver.h"
#include "tests/kernels/cuda/stepper.h"

namespace lssar {
namespace {

constexpr int kMaxGraphs = 12;

// Pages first, first + 1, ... for `num_tokens` tokens.
std::vector<int32_t> PagesFrom(int32_t first, int num_tokens) {
  std::vector<int32_t> pages;
  for (int t = 0; t < num_tokens; t += Stepper::kPageSize) pages.push_back(first++);
  return pages;
}

// A model whose steps are replayed and a twin whose ops are called.
class StepGraphsTest : public testing::TestWithParam<int> {
 protected:
  StepGraphsTest()
      : script_(std::make_shared<DriverScript>(DriverScript{.failing = DriverCall::kLaunchGraph,
                                                            .compute_capability = GetParam(),
                                                            .max_step_graphs = kMaxGraphs,
                                                            .alive = {}})),
        backend_(*MakeFaulty(script_)),
        twin_backend_(MakeEmulatedBackend(GetParam())),
        stepper_(*Stepper::Make(*backend_)),
        twin_(*Stepper::Make(*twin_backend_)) {}

  // Runs the step on both; expects equal bits.
  void StepBoth(const std::vector<SteppedSequence>& sequences) {
    ASSERT_TRUE(stepper_->Step(sequences).ok());
    ASSERT_TRUE(twin_->Step(sequences, /*by_run_step=*/false).ok());
    ASSERT_TRUE(SameBits(stepper_->x, twin_->x));
    ASSERT_EQ(stepper_->Pools(), twin_->Pools());
    ASSERT_EQ(stepper_->sampled[0].logprob, twin_->sampled[0].logprob);
    ASSERT_EQ(stepper_->sampled[1].id, twin_->sampled[1].id);
    for (size_t s = 0; s < sequences.size(); ++s) {
      ASSERT_GT(twin_->counters[s].num_value_rows_read, 0);
      ASSERT_EQ(stepper_->counters[s].num_value_rows_read, twin_->counters[s].num_value_rows_read);
      ASSERT_EQ(stepper_->counters[s].num_value_rows, twin_->counters[s].num_value_rows);
      ASSERT_EQ(stepper_->counters[s].num_flat_rows, twin_->counters[s].num_flat_rows);
    }
  }
  // Runs a prompt of `num_tokens`, which fills the pages of a sequence.
  void Prefill(const std::vector<int32_t>& pages, int num_tokens) {
    for (int first = 0; first < num_tokens; first += Stepper::kMaxRows) {
      const int num_rows = std::min(num_tokens - first, int{Stepper::kMaxRows});
      StepBoth({{.num_rows = num_rows, .first_position = first, .pages = pages}});
    }
  }
  int NumReplays() const { return script_->num_calls; }

  std::shared_ptr<DriverScript> script_;
  std::unique_ptr<Backend> backend_, twin_backend_;
  std::unique_ptr<Stepper> stepper_, twin_;
};

TEST_P(StepGraphsTest, OpsAreCalledTwiceAndThenReplayed) {
  const std::vector<int32_t> pages = PagesFrom(5, 64);
  Prefill(pages, 20);
  const int num_prefills = stepper_->num_op_runs;
  int num_runs_before_replay = 0;
  for (int position = 20; position < 40; ++position) {
    StepBoth({{.first_position = position, .pages = pages}});
    if (NumReplays() == 0) ++num_runs_before_replay;
  }
  // The first step runs its ops, as do steps in which a workspace grows; then a step is recorded.
  EXPECT_LE(num_runs_before_replay, 2);
  EXPECT_EQ(NumReplays(), 20 - num_runs_before_replay);
  EXPECT_EQ(stepper_->num_op_runs - num_prefills, num_runs_before_replay + 1);
}

// No step runs its ops or waits for a recording, with any traffic.
TEST_P(StepGraphsTest, PreparedStepsAreReplayedFromTheFirst) {
  ASSERT_TRUE(stepper_->Prepare(5, 300).ok());
  ASSERT_TRUE(twin_->Step({{.pages = {0}}}, false).ok());  // the row that Prepare writes
  EXPECT_EQ(NumReplays(), 0);
  std::vector<std::vector<SteppedSequence>> steps;
  for (int position = 250; position < 260; position += 3) {  // in one split and two
    steps.push_back({{.first_position = position, .pages = PagesFrom(5, 300)}});
    steps.push_back({{.first_position = 20, .pages = PagesFrom(50, 32)},
                     {.num_rows = 2, .first_position = 40, .pages = PagesFrom(60, 48)},
                     {.num_rows = 2, .first_position = position, .pages = PagesFrom(5, 300)}});
  }
  // A prompt makes workspaces grow, which graphs survive.
  StepBoth({{.num_rows = 40, .pages = PagesFrom(100, 64)}});
  const int num_runs = stepper_->num_op_runs;
  for (const std::vector<SteppedSequence>& step : steps) StepBoth(step);
  EXPECT_EQ(NumReplays(), int(steps.size()));
  EXPECT_EQ(stepper_->num_op_runs, num_runs);
  StepBoth({{.first_position = 600, .pages = PagesFrom(5, 640)}});  // beyond what was prepared
  EXPECT_EQ(stepper_->num_op_runs, num_runs + 1);
}

// Graphs hold the address of the statistics, which steps of more sequences do not move.
TEST_P(StepGraphsTest, AStepOfManySequencesDoesNotMoveTheStatisticsOfGraphs) {
  const std::vector<SteppedSequence> one{{.first_position = 30, .pages = PagesFrom(0, 32)}};
  for (int i = 0; i < 3; ++i) StepBoth(one);
  std::vector<SteppedSequence> many;
  for (int s = 0; s < 70; ++s) many.push_back({.first_position = 20, .pages = {2 * s, 2 * s + 1}});
  StepBoth(many);
  const int num_replays = NumReplays();
  StepBoth(one);
  EXPECT_EQ(NumReplays(), num_replays + 1);
}

TEST_P(StepGraphsTest, PreparingThatFailsIsReported) {
  script_->failing = DriverCall::kAllocate;
  script_->is_lasting = true;
  script_->Fail(DriverCall::kAllocate, kCudaOutOfMemory);
  EXPECT_EQ(stepper_->Prepare(5, 300).code(), absl::StatusCode::kResourceExhausted);
  script_->Mend();
  EXPECT_TRUE(stepper_->Prepare(5, 300).ok());
}

// Graphs hold the library's GEMMs, whose workspaces are reserved before.
TEST(LibraryStepGraphsTest, ManyRowsAreReplayed) {
  const auto script = std::make_shared<DriverScript>();
  script->failing = DriverCall::kLaunchGraph;
  script->has_gemm_library = true;
  const std::unique_ptr<Backend> backend = *MakeFaulty(script);
  const std::unique_ptr<Backend> twin_backend = MakeEmulatedBackend(90, /*has_library=*/true);
  const auto stepper = *Stepper::Make(*backend), twin = *Stepper::Make(*twin_backend);
  ASSERT_TRUE(stepper->Prepare(12, 40).ok());
  std::vector<SteppedSequence> batch;
  for (int s = 0; s < 12; ++s) {
    batch.push_back({.first_position = 20 + s, .pages = PagesFrom(10 + s * 4, 48)});
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(stepper->Step(batch).ok());
    ASSERT_TRUE(twin->Step(batch, /*by_run_step=*/false).ok());
    EXPECT_TRUE(SameBits(stepper->x, twin->x));
    for (SteppedSequence& sequence : batch) ++sequence.first_position;
  }
  EXPECT_EQ(script->num_calls, 2);
}

TEST_P(StepGraphsTest, ContextsGrowAcrossBuckets) {
  const std::vector<int32_t> pages = PagesFrom(5, 600);
  Prefill(pages, 248);
  for (int position = 248; position < 262; ++position) {  // from one split to two
    StepBoth({{.first_position = position, .pages = pages}});
  }
  EXPECT_GE(NumReplays(), 9);
}

TEST_P(StepGraphsTest, SequencesJoinAndLeaveAndPagesMove) {
  std::vector<SteppedSequence> sequences;
  for (int s = 0; s < 6; ++s) {
    const int num_tokens = 17 + 9 * s;
    sequences.push_back({.first_position = num_tokens, .pages = PagesFrom(16 * s, 128)});
    Prefill(sequences.back().pages, num_tokens);
  }
  const auto step = [&](const std::vector<size_t>& running) {
    std::vector<SteppedSequence> batch;
    for (const size_t s : running) {
      batch.push_back(sequences[s]);
      sequences[s].first_position += sequences[s].num_rows;
    }
    StepBoth(batch);
  };
  for (int round = 0; round < 3; ++round) {
    step({0});
    step({1, 2, 3});
    step({0, 1, 2, 3});
    step({5, 0, 4, 2, 1});
  }
  // A page gets another id, and a sequence has two rows.
  const int32_t moved = 150, old = std::exchange(sequences[2].pages[1], moved);
  ASSERT_TRUE(stepper_->CopyPage(old, moved).ok());
  ASSERT_TRUE(twin_->CopyPage(old, moved).ok());
  sequences[4].num_rows = 2;
  const int num_replays = NumReplays();
  for (int round = 0; round < 3; ++round) {
    step({2, 4});
    step({4, 2, 0});
  }
  EXPECT_EQ(NumReplays() - num_replays, 6);
}

TEST_P(StepGraphsTest, PromptsRunTheirOps) {
  const std::vector<int32_t> pages = PagesFrom(0, 64);
  for (int i = 0; i < 4; ++i) StepBoth({{.num_rows = 20, .pages = pages}});
  // A decode row beside a prompt's.
  for (int i = 0; i < 4; ++i) {
    StepBoth({{.first_position = 20, .pages = pages}, {.num_rows = 9, .pages = PagesFrom(9, 16)}});
  }
  EXPECT_EQ(NumReplays(), 0);
  EXPECT_EQ(stepper_->num_op_runs, 8);
}

TEST_P(StepGraphsTest, NoAllocationAfterWarmUp) {
  const auto round = [&] {
    for (size_t num_rows = 1; num_rows <= 5; ++num_rows) {
      std::vector<SteppedSequence> batch;
      for (size_t s = 0; s < num_rows; ++s) {
        batch.push_back({.first_position = 30, .pages = PagesFrom(int32_t(s) * 4, 32)});
      }
      StepBoth(batch);
    }
  };
  for (int i = 0; i < 3; ++i) round();
  for (const DriverCall call :
       {DriverCall::kAllocate, DriverCall::kAllocateHost, DriverCall::kBeginCapture}) {
    script_->failing = call;
    script_->num_calls = 0;
    round();
    EXPECT_EQ(script_->num_calls, 0);
  }
}

TEST_P(StepGraphsTest, FreedMemoryDropsAllGraphs) {
  const std::vector<SteppedSequence> batch{{.first_position = 30, .pages = PagesFrom(0, 32)}};
  std::unique_ptr<Buffer> other = *backend_->Allocate(100);
  for (int i = 0; i < 4; ++i) StepBoth(batch);
  const int num_runs = stepper_->num_op_runs;
  StepBoth(batch);
  EXPECT_EQ(stepper_->num_op_runs, num_runs);
  other.reset();
  StepBoth(batch);
  EXPECT_EQ(stepper_->num_op_runs, num_runs + 1);
}

TEST_P(StepGraphsTest, NumberOfGraphsIsBounded) {
  const std::vector<SteppedSequence> batch{{.first_position = 30, .pages = PagesFrom(0, 32)}};
  std::vector<std::unique_ptr<Stepper>> steppers;
  for (int i = 0; i < kMaxGraphs + 3; ++i) steppers.push_back(*Stepper::Make(*backend_));
  script_->failing = DriverCall::kEndCapture;
  const size_t num_alive = script_->alive.size();
  for (const std::unique_ptr<Stepper>& stepper : steppers) {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(stepper->Step(batch).ok());
    ASSERT_TRUE(SameBits(stepper->x, steppers[0]->x));
  }
  EXPECT_GE(script_->num_calls, kMaxGraphs + 3);
  // Besides graphs, the dozen workspaces of the first step are alive.
  EXPECT_LE(script_->alive.size(), num_alive + kMaxGraphs + 12);
  EXPECT_GE(script_->alive.size(), num_alive + kMaxGraphs);
}

TEST_P(StepGraphsTest, StepsThatCannotBeRecordedRunTheirOps) {
  for (const DriverCall call : {DriverCall::kBeginCapture, DriverCall::kEndCapture}) {
    script_->is_lasting = true;
    script_->Fail(call, kCudaOutOfMemory);
    const int num_rows = call == DriverCall::kBeginCapture ? 1 : 2;
    for (int i = 0; i < 4; ++i) {
      StepBoth({{.num_rows = num_rows, .first_position = 30, .pages = PagesFrom(0, 32)}});
    }
    EXPECT_LE(script_->num_calls, 2);  // recording is not tried again at every step
    EXPECT_GE(script_->num_calls, 1);
  }
  EXPECT_GE(stepper_->num_op_runs, 8);
}

INSTANTIATE_TEST_SUITE_P(Devices, StepGraphsTest, testing::Values(80, 90),
                         [](const auto& test) { return "Sm" + std::to_string(test.param); });

}  // namespace
}  // namespace lssar

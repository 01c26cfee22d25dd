// A warm decode step allocates only the results that it gives to the sink.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine.h"
#include "tests/runtime/stepped_engine.h"
#include "tests/support/count_allocations.h"

namespace lssar {
namespace {

// Discards all results.
class DiscardingSink : public OutputSink {
 public:
  void OnAdmitted(const RequestStats&) override {}
  void OnResult(EngineResult result) override {
    ++num_deltas;
    num_tokens += int(std::get<GenerateDelta>(result).tokens.size());
  }
  void OnDone(const absl::Status&, const RequestStats&) override {}

  int num_deltas = 0;
  int num_tokens = 0;
};

// Three requests, greedy and sampled, with more tokens than the steps below compute.
void SubmitThree(Engine& engine, const std::shared_ptr<OutputSink>& sink) {
  for (int i = 0; i < 3; ++i) {
    Request request = Generate(Ids(20, i), 200, uint64_t(i));
    if (i == 0) request.Generate()->sampling.temperature = 0;
    if (i == 1) request.Generate()->sampling.top_p = 0.9f;
    ASSERT_TRUE(engine.Submit(std::move(request), sink).ok());
  }
}

// The sink owns a delta and the memory of its tokens: one allocation each, also in steps that
// allocate a page.
void ExpectOneAllocationPerDelta(Engine& engine, const DiscardingSink& sink) {
  constexpr int kWarmSteps = 60, kSteps = 100;
  for (int step = 0; step < kWarmSteps; ++step) ASSERT_EQ(engine.Step(), absl::OkStatus());
  const int first_delta = sink.num_deltas;
  const int64_t before = NumAllocations();
  for (int step = 0; step < kSteps; ++step) ASSERT_EQ(engine.Step(), absl::OkStatus());
  const int64_t num_counted = NumAllocations() - before;
  EXPECT_EQ(sink.num_deltas - first_delta, 3 * kSteps);
  EXPECT_EQ(num_counted, sink.num_deltas - first_delta);
}

TEST(StepAllocationTest, ShippedModel) {
  const std::unique_ptr<Backend> backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  Checkpoint checkpoint = *LoadCheckpoint("models/zoo/lssar-6m", backend.get(), {});
  const EngineOptions options{.max_model_len = 256,
                              .max_num_seqs = 4,
                              .max_queued_requests = 4,
                              .kv_cache_bytes = int64_t{16} << 20};
  const std::unique_ptr<Engine> engine =
      *Engine::CreateStepped(&checkpoint, backend.get(), options);
  const auto sink = std::make_shared<DiscardingSink>();
  SubmitThree(*engine, sink);
  ExpectOneAllocationPerDelta(*engine, *sink);
}

// With a draft model and one draft token a step: a delta of two tokens grows its memory once.
TEST(StepAllocationTest, DraftModel) {
  const std::unique_ptr<Backend> backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  Checkpoint checkpoint = *LoadCheckpoint("models/zoo/lssar-6m", backend.get(), {});
  Checkpoint draft = *LoadCheckpoint("models/zoo/lssar-6m", backend.get(), {.dtype = DType::kI8});
  const EngineOptions options{.max_model_len = 512,
                              .max_num_seqs = 4,
                              .max_queued_requests = 4,
                              .kv_cache_bytes = int64_t{16} << 20,
                              .speculative_method = SpeculativeMethod::kDraftModel,
                              .num_speculative_tokens = 1,
                              .draft_checkpoint = &draft,
                              .adapts_speculation = false};
  const std::unique_ptr<Engine> engine =
      *Engine::CreateStepped(&checkpoint, backend.get(), options);
  const auto sink = std::make_shared<DiscardingSink>();
  SubmitThree(*engine, sink);
  for (int step = 0; step < 40; ++step) ASSERT_EQ(engine->Step(), absl::OkStatus());
  const int first_delta = sink->num_deltas, first_token = sink->num_tokens;
  const int64_t before = NumAllocations();
  for (int step = 0; step < 40; ++step) ASSERT_EQ(engine->Step(), absl::OkStatus());
  const int64_t num_counted = NumAllocations() - before;
  EXPECT_GT(sink->num_tokens - first_token, sink->num_deltas - first_delta);
  EXPECT_EQ(num_counted, sink->num_tokens - first_token);
}

}  // namespace
}  // namespace lssar

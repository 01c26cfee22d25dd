// What a warm decode step allocates: nothing but what it hands to the reader.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "tests/runtime/step_world.h"
#include "tests/support/count_allocations.h"

namespace lssar {
namespace {

// Lets go of everything at once.
class ForgetfulSink : public OutputSink {
 public:
  void OnAdmitted(const RequestStats&) override {}
  void OnTokens(GenerateDelta) override { ++num_deltas; }
  void OnDone(const absl::Status&, const RequestStats&) override {}

  int num_deltas = 0;
};

// Three readers, greedy and sampled, for more tokens than the steps below take.
void SubmitThree(RequestQueue& queue, const std::shared_ptr<OutputSink>& sink) {
  for (int i = 0; i < 3; ++i) {
    Request request = Generate(Ids(20, i), 200, uint64_t(i));
    if (i == 0) request.generate->sampling.temperature = 0;
    if (i == 1) request.generate->sampling.top_p = 0.9f;
    ASSERT_EQ(queue.Push({.request = std::move(request),
                          .sink = sink,
                          .cancelled = std::make_shared<std::atomic<bool>>(false),
                          .submitted_at = Clock::now()}),
              absl::OkStatus());
  }
}

// A delta is the reader's from then on, and so is the memory of its tokens: one allocation each,
// in steps that take a new page as in others.
void ExpectOneAllocationADelta(StepLoop& loop, const ForgetfulSink& sink) {
  constexpr int kWarmSteps = 60, kSteps = 100;
  for (int step = 0; step < kWarmSteps; ++step) ASSERT_EQ(loop.Step(), absl::OkStatus());
  const int first_delta = sink.num_deltas;
  const int64_t before = NumAllocations();
  for (int step = 0; step < kSteps; ++step) ASSERT_EQ(loop.Step(), absl::OkStatus());
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
  RequestQueue queue(options.max_queued_requests, MaxQueuedTokens(options));
  StepLoop loop(&checkpoint, *KvCache::Create(checkpoint.config, options, backend.get()), options,
                &queue);
  const auto sink = std::make_shared<ForgetfulSink>();
  SubmitThree(queue, sink);
  ExpectOneAllocationADelta(loop, *sink);
  loop.EndAll(absl::UnavailableError("the test is over"));
}

}  // namespace
}  // namespace lssar

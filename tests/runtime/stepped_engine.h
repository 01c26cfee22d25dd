// An engine without a thread over the fake model, and requests for it.
#ifndef LSSAR_TESTS_RUNTIME_STEPPED_ENGINE_H_
#define LSSAR_TESTS_RUNTIME_STEPPED_ENGINE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "runtime/scheduler.h"
#include "tests/support/fake_checkpoint.h"
#include "tests/support/recording_sink.h"

namespace lssar {

inline constexpr int64_t kPageBytes = 2 * 16 * 4 * 2;  // FakeModel's, of 16 tokens, both pools

inline EngineOptions SmallOptions() {
  return {.max_model_len = 256,
          .max_num_seqs = 16,
          .max_queued_requests = 1000,
          .max_num_batched_tokens = 24,
          .page_size = 16,
          .kv_cache_bytes = 64 * kPageBytes};
}

struct Submitted {
  std::shared_ptr<RecordingSink> sink;
  Engine::Handle handle;
};

// Time stands still: what the engine remembers for seconds, it remembers on a machine of any speed.
inline Clock::time_point Noon() { return Clock::time_point{std::chrono::hours(12)}; }

class SteppedEngine {
 public:
  explicit SteppedEngine(const EngineOptions& engine_options = SmallOptions(),
                         Engine::Now now = Noon)
      : options(engine_options),
        engine_(*Engine::CreateStepped(&fake.checkpoint, &fake.backend, options, std::move(now))) {}

  Submitted Submit(Request request, const std::string& tenant = {}) {
    Submitted submitted{.sink = std::make_shared<RecordingSink>(), .handle = {}};
    auto handle = engine_->Submit(std::move(request), submitted.sink, tenant);
    EXPECT_TRUE(handle.ok()) << handle.status();
    if (handle.ok()) submitted.handle = *std::move(handle);
    return submitted;
  }
  absl::Status Check(const Request& request) const {
    return CheckFits(request, options, engine_->GetKvView().layout);
  }

  absl::Status Step() { return engine_->Step(); }
  void RunSteps(int num_steps) {
    for (int i = 0; i < num_steps; ++i) ASSERT_EQ(Step(), absl::OkStatus());
  }
  // Steps until no request is open.
  void RunAll() {
    const auto is_open = [this] { return Stats().num_running > 0 || Stats().num_waiting > 0; };
    for (int i = 0; i < 100000 && is_open(); ++i) ASSERT_EQ(Step(), absl::OkStatus());
  }

  EngineStats Stats() const { return engine_->Stats(); }
  // Pages that are not in use.
  int NumAvailable() const { return Stats().num_free_pages + Stats().num_cached_pages; }
  Engine& Get() { return *engine_; }

  // Calls visit(group, sequence) for the sequences of all running requests.
  template <typename Visit>
  void ForEachSequence(Visit visit) const {
    for (const auto& group : engine_->GetScheduler().Running()) {
      for (const Sequence& sequence : group->sequences) visit(*group, sequence);
    }
  }

  EngineOptions options;
  FakeCheckpoint fake;

 private:
  std::unique_ptr<Engine> engine_;
};

inline std::vector<int32_t> Ids(int count, int32_t salt) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(int32_t(FakeHash(uint64_t(salt), uint64_t(i)) % 60) + 2);
  return ids;
}

// EOS would end most texts early in a vocabulary of 64 tokens, so requests ignore it.
inline Request Generate(std::vector<int32_t> prompt, int max_tokens, uint64_t seed = 1) {
  Request request{.prompt = std::move(prompt)};
  request.params =
      GenerateParams{.sampling = {.seed = seed}, .max_tokens = max_tokens, .ignore_eos = true};
  return request;
}

inline Request Score(std::vector<int32_t> context,
                     std::vector<std::vector<int32_t>> continuations) {
  Request request{.prompt = std::move(context)};
  request.params = ScoreParams{.continuations = std::move(continuations), .num_logprobs = 3};
  return request;
}

inline std::vector<int32_t> IdsOf(const std::vector<TokenResult>& tokens) {
  std::vector<int32_t> ids;
  for (const TokenResult& token : tokens) ids.push_back(token.id);
  return ids;
}

// The results of a request that has an engine to itself.
inline std::shared_ptr<RecordingSink> RunAlone(Request request, const EngineOptions& options,
                                               int32_t poison_id = -1) {
  SteppedEngine engine(options);
  engine.fake.model->poison_id = poison_id;
  const Submitted submitted = engine.Submit(std::move(request));
  engine.RunAll();
  EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
  return submitted.sink;
}

// The results of requests that ran together are those of each alone.
inline void ExpectBitsOfEachAlone(const std::vector<Submitted>& submitted,
                                  const std::vector<Request>& requests) {
  ASSERT_EQ(submitted.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(submitted[i].sink->Status(), absl::OkStatus());
    ExpectEqualBits(*submitted[i].sink, *RunAlone(requests[i], SmallOptions()), requests[i]);
  }
}

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_STEPPED_ENGINE_H_

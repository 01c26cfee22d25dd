// A step loop over the fake model, and requests for it.
#ifndef LSSAR_TESTS_RUNTIME_STEP_WORLD_H_
#define LSSAR_TESTS_RUNTIME_STEP_WORLD_H_

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/admission.h"
#include "runtime/step_loop.h"
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

struct Ticket {
  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();
  std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
};

class World {
 public:
  explicit World(const EngineOptions& engine_options = SmallOptions())
      : options(engine_options),
        queue(options.max_queued_requests, MaxQueuedTokens(options)),
        loop(&fake.checkpoint, *KvCache::Create(fake.checkpoint.config, options, &fake.backend),
             options, &queue) {}
  ~World() { loop.EndAll(absl::UnavailableError("the test is over")); }

  Ticket Submit(Request request) {
    EXPECT_EQ(CheckFits(request, options, loop.Layout()), absl::OkStatus());
    Ticket ticket;
    EXPECT_EQ(queue.Push({.request = std::move(request),
                          .sink = ticket.sink,
                          .cancelled = ticket.cancelled,
                          .submitted_at = Clock::now()}),
              absl::OkStatus());
    return ticket;
  }

  // Steps until nothing is left to do.
  void RunAll() {
    for (int i = 0; i < 100000 && (loop.IsRunning() || queue.NumQueued() > 0); ++i) {
      ASSERT_EQ(loop.Step(), absl::OkStatus());
    }
  }

  // Held by no one.
  int NumFree() const {
    const EngineStats stats = loop.Stats();
    return stats.num_free_pages + stats.num_cached_pages;
  }

  EngineOptions options;
  FakeCheckpoint fake;
  RequestQueue queue;
  StepLoop loop;
};

inline std::vector<int32_t> Ids(int count, int32_t salt) {
  std::vector<int32_t> ids;
  for (int i = 0; i < count; ++i)
    ids.push_back(int32_t(FakeHash(uint64_t(salt), uint64_t(i)) % 60) + 2);
  return ids;
}

// 64-token vocabulary: EOS would end most texts early, so tests that count tokens ignore it.
inline Request Generate(std::vector<int32_t> prompt, int max_tokens, uint64_t seed = 1) {
  Request request{.prompt = std::move(prompt)};
  request.generate =
      GenerateParams{.sampling = {.seed = seed}, .max_tokens = max_tokens, .ignore_eos = true};
  return request;
}

inline Request Score(std::vector<int32_t> context,
                     std::vector<std::vector<int32_t>> continuations) {
  Request request{.prompt = std::move(context)};
  request.score = ScoreParams{.continuations = std::move(continuations), .num_logprobs = 3};
  return request;
}

inline std::vector<int32_t> IdsOf(const std::vector<TokenResult>& tokens) {
  std::vector<int32_t> ids;
  for (const TokenResult& token : tokens) ids.push_back(token.id);
  return ids;
}

// What the engine gives for one request that has it for itself.
inline std::shared_ptr<RecordingSink> RunAlone(Request request, const EngineOptions& options,
                                               int32_t poison_id = -1) {
  World world(options);
  world.fake.model->poison_id = poison_id;
  const Ticket ticket = world.Submit(std::move(request));
  world.RunAll();
  EXPECT_EQ(ticket.sink->Status(), absl::OkStatus());
  return ticket.sink;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_STEP_WORLD_H_

// The rules of simulator_test with the engine's own thread and clock, client threads, and a stop at
// a random moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/engine.h"
#include "tests/runtime/sim_request.h"
#include "tests/runtime/stepped_engine.h"
#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

constexpr int kVocab = 16;

class EngineStorm : public testing::TestWithParam<int> {
 protected:
  struct Client {
    SimRandom random;
    std::vector<std::shared_ptr<SimSink>> accepted;
    std::vector<Engine::Handle> handles;
    int num_refused = 0;
  };

  // Submits, cancels, pauses and resumes.
  void RunClient(Engine* engine, Client* client, int num_requests) {
    SimRandom& random = client->random;
    const EngineOptions& options = engine->Options();
    for (int i = 0; i < num_requests; ++i) {
      Request request = MakeSimRequest(&random, fake_.checkpoint.config, options.max_model_len,
                                       std::min(4, options.max_num_seqs));
      if (OneIn(&random, 10)) {
        request.deadline = Clock::now() + std::chrono::microseconds(Between(&random, 0, 5000));
      }
      auto sink = std::make_shared<SimSink>(request, fake_.checkpoint.config);
      sink->is_writable = !OneIn(&random, 6);
      auto handle = engine->Submit(std::move(request), sink);
      if (handle.ok()) {
        client->accepted.push_back(std::move(sink));
        client->handles.push_back(*std::move(handle));
      } else {
        ++client->num_refused;
      }
      if (client->accepted.empty()) continue;
      const size_t other = random() % client->accepted.size();
      if (OneIn(&random, 10)) client->handles[other].Cancel();
      client->accepted[other]->is_writable = true;
      client->handles[other].Resume();
      if (OneIn(&random, 4)) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    for (size_t i = 0; i < client->accepted.size(); ++i) {
      client->accepted[i]->is_writable = true;
      client->handles[i].Resume();
    }
  }

  FakeCheckpoint fake_{kVocab};
};

TEST_P(EngineStorm, EveryRequestEndsOnceWithTheRightBits) {
  SimRandom random(uint64_t(GetParam()) + 1000);
  EngineOptions options;
  options.max_model_len = 128;
  options.max_num_seqs = 8;
  options.max_queued_requests = 32;
  options.max_num_batched_tokens = 24;
  options.chunked_prefill_size = 8;
  options.page_size = 16;
  options.enable_prefix_caching = !OneIn(&random, 4);
  options.kv_cache_bytes = kPageBytes * Between(&random, 8, 20);  // 8 x 8 would hold all
  auto engine = Engine::Create(&fake_.checkpoint, &fake_.backend, options);
  ASSERT_TRUE(engine.ok()) << engine.status();

  std::vector<Client> clients(4);
  std::vector<std::thread> threads;
  for (Client& client : clients) {
    client.random.seed(random());
    threads.emplace_back([&] { RunClient(engine->get(), &client, 150); });
  }
  const bool is_drained_early = GetParam() % 2 == 0;
  if (is_drained_early) {
    std::this_thread::sleep_for(std::chrono::microseconds(Between(&random, 0, 30000)));
    (*engine)->Drain(absl::Microseconds(Between(&random, 0, 3000)));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE((*engine)->Drain(absl::Minutes(5)) || is_drained_early);

  for (const Client& client : clients) {
    EXPECT_EQ(client.accepted.size() + size_t(client.num_refused), 150u);
    for (const auto& sink : client.accepted) {
      ASSERT_TRUE(sink->IsDone());
      EXPECT_EQ(sink->Failure(), "");
      const absl::StatusCode code = sink->Status().code();
      EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled ||
                  code == absl::StatusCode::kDeadlineExceeded ||
                  (is_drained_early && code == absl::StatusCode::kUnavailable))
          << sink->Status();
    }
  }
  const EngineStats stats = (*engine)->Stats();
  EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  EXPECT_EQ(stats.num_waiting, 0);
  EXPECT_EQ(stats.num_waiting_tokens, 0);
  EXPECT_EQ(stats.num_running, 0);
  EXPECT_EQ(stats.step_started_at, std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EngineStorm, testing::Range(0, 8));

}  // namespace
}  // namespace lssar

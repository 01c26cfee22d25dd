// The engine on each device: equal bits in any batch, and no growth of memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/device_engine.h"

namespace lssar {
namespace {

// FNV-1a of what requests got, to compare runs of a program with each other.
class Digest {
 public:
  void AddResults(const RecordingSink& sink, const Request& request) {
    for (int choice = 0; request.Generate() && choice < request.Generate()->num_choices; ++choice) {
      for (const TokenResult& token : sink.At(choice).tokens) Add(token);
    }
    for (const ContinuationScore& score : sink.Scores()) {
      for (const TokenResult& token : score.tokens) Add(token);
    }
    for (const auto& [at, row] : sink.Weights()) {
      for (const KeyWeight& key : row.keys) Add(key.key, key.weight);
    }
  }
  uint64_t Value() const { return value_; }
  int NumValues() const { return num_values_; }

 private:
  void Add(int id, float value) {
    for (const uint32_t word : {uint32_t(id), std::bit_cast<uint32_t>(value)}) {
      for (int shift = 0; shift < 32; shift += 8) {
        value_ = (value_ ^ (word >> shift & 0xFF)) * 0x100000001B3;
      }
    }
    ++num_values_;
  }
  void Add(const TokenResult& token) {
    Add(token.id, token.logprob);
    for (const TokenLogprob& other : token.top) Add(other.id, other.logprob);
  }

  uint64_t value_ = 0xCBF29CE484222325;
  int num_values_ = 0;
};

// A GPU runs longer requests than its emulation.
class DeviceEngineTest : public testing::TestWithParam<DeviceCase> {
 protected:
  static EngineOptions Options(int max_num_batched_tokens, int page_size,
                               bool enable_prefix_caching) {
    return {.max_model_len = GetParam().IsGpu() ? 2048 : 256,
            .max_num_seqs = 16,
            .max_num_batched_tokens = max_num_batched_tokens,
            .enable_prefix_caching = enable_prefix_caching,
            .page_size = page_size};
  }
  static std::vector<Request> Requests(const ModelConfig& config) {
    const std::vector<int> lengths = GetParam().IsGpu()
                                         ? std::vector<int>{1, 2, 3, 15, 64, 65, 300, 1300, 1301}
                                         : std::vector<int>{1, 17, 33, 70, 71, 72};
    const int num_output = GetParam().IsGpu() ? 24 : 5;
    std::vector<Request> requests;
    for (size_t i = 0; i < lengths.size(); ++i) {
      requests.push_back(MixedRequest(int(i), lengths[i], num_output, config.vocab_size));
    }
    return requests;
  }
  static std::vector<std::shared_ptr<RecordingSink>> RunEachAlone(
      DeviceEngine& engine, const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    Digest digest;
    for (const Request& request : requests) {
      sinks.push_back(engine.RunAlone(request));
      const int num_before = digest.NumValues();
      digest.AddResults(*sinks.back(), request);
      EXPECT_GT(digest.NumValues(), num_before);
    }
    // tests/gpu/run.sh compares it with that of a run without programmatic dependent launch.
    std::printf("digest of %d values: %016llx\n", digest.NumValues(),
                static_cast<unsigned long long>(digest.Value()));
    return sinks;
  }
  static void ExpectTheSameTogether(DeviceEngine& engine, const std::vector<Request>& requests,
                                    const std::vector<std::shared_ptr<RecordingSink>>& expected) {
    std::vector<std::shared_ptr<RecordingSink>> sinks;
    for (const Request& request : requests) sinks.push_back(engine.Submit(request));
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "prompt of " << requests[i].prompt.size());
      ASSERT_EQ(sinks[i]->Wait(), absl::OkStatus());
      ExpectEqualBits(*sinks[i], *expected[i], requests[i]);
    }
    const EngineStats stats = engine.GetEngine().Stats();
    EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  }
};

TEST_P(DeviceEngineTest, EqualBitsAloneAndInAnyBatchChunkAndPage) {
  DeviceEngine alone(GetParam(), Options(128, 64, false));
  const std::vector<Request> requests = Requests(alone.Config());
  const auto expected = RunEachAlone(alone, requests);
  DeviceEngine together(GetParam(), Options(23, 16, false));
  ASSERT_TRUE(together.GetBackend().IsBatchInvariant());
  ExpectTheSameTogether(together, requests, expected);
}

TEST_P(DeviceEngineTest, EqualBitsWithPrefixCacheAndPreemption) {
  DeviceEngine alone(GetParam(), Options(128, 64, false));
  std::vector<Request> requests = Requests(alone.Config());
  const auto expected = RunEachAlone(alone, requests);
  EngineOptions options = Options(100, 16, true);
  const KvLayout layout{.num_layers = alone.Config().num_hidden_layers,
                        .num_kv_heads = alone.Config().num_attention_heads,
                        .head_dim = alone.Config().HeadDim(),
                        .page_size = 16};
  options.kv_cache_bytes = layout.PagesFor(options.max_model_len) * int64_t(layout.PageBytes());
  DeviceEngine small(GetParam(), options);
  for (int round = 0; round < 2; ++round) ExpectTheSameTogether(small, requests, expected);
  EXPECT_GT(small.GetEngine().Stats().num_prefix_cache_hits, 50);
}

// Workspaces may grow by this much when a step is larger than any before. A leak of 1 KiB a request
// exceeds it.
constexpr int64_t kLateBytes = int64_t{4} << 20;

// After warm-up the free memory of a device stays the same.
TEST_P(DeviceEngineTest, ManyMixedRequestsLeaveMemoryAsItWas) {
  DeviceEngine engine(GetParam(), Options(128, 16, true));
  const int num_requests = GetParam().IsGpu() ? 10000 : 24;
  const int max_prompt = GetParam().IsGpu() ? 700 : 40, num_output = GetParam().IsGpu() ? 16 : 3;
  std::vector<std::shared_ptr<RecordingSink>> running;
  std::optional<int64_t> free_at_first;
  for (int i = 0; i < num_requests; ++i) {
    const int num_prompt = 1 + i * 37 % max_prompt;
    running.push_back(
        engine.Submit(MixedRequest(i, num_prompt, num_output, engine.Config().vocab_size)));
    if (running.size() < (GetParam().IsGpu() ? 48u : 6u) && i + 1 < num_requests) continue;
    for (const auto& sink : running) ASSERT_EQ(sink->Wait(), absl::OkStatus());
    running.clear();
    const auto free_bytes = engine.GetBackend().FreeBytes();
    ASSERT_TRUE(free_bytes.ok()) << free_bytes.status();
    if (!*free_bytes) continue;  // the host's memory
    if (i < num_requests / 4) {  // warms up
      free_at_first = **free_bytes;
    } else {
      EXPECT_GE(**free_bytes, *free_at_first - kLateBytes) << "after " << i + 1 << " requests";
    }
  }
  const EngineStats stats = engine.GetEngine().Stats();
  EXPECT_EQ(stats.num_free_pages + stats.num_cached_pages, stats.num_pages);
  std::printf("%d requests, %lld tokens; free at the end: %lld MiB\n", num_requests,
              static_cast<long long>(stats.num_batched_tokens),
              static_cast<long long>(free_at_first.value_or(0) >> 20));
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceEngineTest, testing::ValuesIn(DeviceCases()),
                         [](const auto& tested) { return NameOfCase(tested.param); });

}  // namespace
}  // namespace lssar

// An engine on a given device, and requests of all kinds for it.
#ifndef LSSAR_TESTS_SUPPORT_DEVICE_ENGINE_H_
#define LSSAR_TESTS_SUPPORT_DEVICE_ENGINE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "models/checkpoint.h"
#include "runtime/engine.h"
#include "tests/support/recording_sink.h"
#include "tests/support/test_device.h"

namespace lssar {

class DeviceEngine {
 public:
  DeviceEngine(const DeviceCase& device_case, const EngineOptions& options) {
    auto backend = OpenTestDevice({.name = device_case.device, .batch_invariant = true});
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
    auto checkpoint = LoadCheckpoint(
        device_case.checkpoint, backend_.get(),
        {.dtype = DType::kF16, .max_num_batched_tokens = options.max_num_batched_tokens});
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = std::make_unique<Checkpoint>(*std::move(checkpoint));
    auto engine = Engine::Create(checkpoint_.get(), backend_.get(), options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::shared_ptr<RecordingSink> Submit(const Request& request) {
    auto sink = std::make_shared<RecordingSink>();
    const auto handle = engine_->Submit(request, sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return sink;
  }
  std::shared_ptr<RecordingSink> RunAlone(const Request& request) {
    auto sink = Submit(request);
    EXPECT_EQ(sink->Wait(), absl::OkStatus());
    return sink;
  }

  Engine& GetEngine() { return *engine_; }
  Backend& GetBackend() { return *backend_; }
  const ModelConfig& Config() const { return checkpoint_->config; }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
};

// Prompts over `vocab_size` ids with a common prefix, so that the prefix cache is used.
inline std::vector<int32_t> SharedPrompt(int num_tokens, int vocab_size) {
  std::mt19937 random(5);
  std::vector<int32_t> ids;
  for (int i = 0; i < num_tokens; ++i) ids.push_back(int32_t(random() % uint32_t(vocab_size)));
  return ids;
}

// Request `idx` of a mix: greedy, sampled, several choices, scores, attention capture.
inline Request MixedRequest(int idx, int num_prompt, int num_output, int vocab_size) {
  Request request{.prompt = SharedPrompt(num_prompt, vocab_size)};
  if (idx % 4 == 3) {
    const std::vector<int32_t> all = SharedPrompt(num_prompt + num_output, vocab_size);
    request.params =
        ScoreParams{.continuations = {{all.begin() + num_prompt, all.end()}, {5}, {7, 8, 9}}};
    return request;
  }
  if (idx % 8 == 5) {
    request.params = CaptureParams{.layers = {0, 1}, .heads = {0, 2}, .rows = {num_prompt - 1}};
    return request;
  }
  request.params = GenerateParams{.sampling = {.temperature = idx % 4 == 0 ? 0.0f : 0.9f,
                                               .top_p = 0.95f,
                                               .seed = uint64_t(idx)},
                                  .num_choices = idx % 4 == 2 ? 2 : 1,
                                  .max_tokens = num_output,
                                  .ignore_eos = true,
                                  .num_logprobs = 2};
  return request;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_DEVICE_ENGINE_H_

// The shipped model on each device, compared with the CPU in fp32: divergence of the next token's
// distribution, and greedy text.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "models/checkpoint.h"
#include "tests/models/fixture.h"
#include "tests/models/model_runner.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

constexpr int kPageSize = 64;
// Two logits closer than this may swap places: a tenth of what moves a probability by a tenth.
constexpr float kTie = 0.01f;

struct DeviceModel {
  testing::TestModel loaded;
  DType kv_cache_dtype;

  static DeviceModel Open(const std::string& device, DType dtype) {
    auto backend = OpenTestDevice({.name = device});
    LSSAR_CHECK(backend.ok());
    return {testing::LoadModel(testing::kShippedModel, *std::move(backend), {.dtype = dtype}),
            dtype};
  }
  testing::ModelRunner NewRunner(size_t num_tokens) const {
    return {loaded.Get(), loaded.backend.get(), kv_cache_dtype, kPageSize, int(num_tokens)};
  }
  std::string Describe() const { return loaded.backend->Describe(); }
  size_t Vocab() const { return loaded.Vocab(); }
};

size_t Best(std::span<const float> logits) {
  return size_t(std::ranges::max_element(logits) - logits.begin());
}

// The best logit minus the second best.
float Lead(std::span<const float> logits) {
  std::vector<float> sorted(logits.begin(), logits.end());
  std::ranges::nth_element(sorted, sorted.begin() + 1, std::greater());
  return sorted[0] - sorted[1];
}

class DeviceModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  static bool IsGpu() { return GetParam() == "cuda" || GetParam() == "cuda-fast"; }

  const DeviceModel exact_ = DeviceModel::Open("cpu", DType::kF32);
  const DeviceModel model_ = DeviceModel::Open(GetParam(), DType::kF16);
};

TEST_P(DeviceModelTest, NextTokenDistributionMatchesTheCpuInFp32) {
  const std::vector<int32_t> text = testing::HeldOutTokens(IsGpu() ? 8192 : 64);
  testing::ModelRunner exact = exact_.NewRunner(text.size());
  testing::ModelRunner device = model_.NewRunner(text.size());
  for (testing::ModelRunner* runner : {&exact, &device}) {
    runner->Add(text);
    runner->RunAll(512, nullptr);
  }
  double sum = 0, worst = 0;
  const size_t vocab = exact_.Vocab();
  for (size_t at = 0; at < exact.Logits(0).size(); at += vocab) {
    const double kl = testing::Divergence(std::span(exact.Logits(0)).subspan(at, vocab),
                                          std::span(device.Logits(0)).subspan(at, vocab));
    sum += kl;
    if (!(kl <= worst)) worst = kl;
  }
  const double mean = sum / double(text.size());
  std::printf("%s, %zu tokens in fp16: mean KL %.2e nats, worst %.2e\n", model_.Describe().c_str(),
              text.size(), mean, worst);
  EXPECT_LE(mean, 1e-4);
  EXPECT_LE(worst, 1e-2);
}

// Runs the CPU's greedy text on the device, token by token: the device chooses the same tokens
// except at near ties.
TEST_P(DeviceModelTest, GreedyTextMatchesTheCpuInFp32) {
  const size_t num_prompt = 16, num_output = IsGpu() ? 256 : 24;
  std::vector<int32_t> text = testing::HeldOutTokens(num_prompt);
  text.resize(num_prompt + num_output);
  const size_t vocab = exact_.Vocab();
  testing::ModelRunner exact = exact_.NewRunner(text.size());
  exact.Add(text);
  exact.Step({int(num_prompt)});
  for (size_t at = num_prompt; at < text.size(); ++at) {
    const std::vector<float>& logits = exact.Logits(0);
    text[at] = int32_t(Best(std::span(logits).subspan(logits.size() - vocab)));
    exact.Replace(0, int(at), text[at]);
    exact.Step({1});
  }
  testing::ModelRunner device = model_.NewRunner(text.size());
  device.Add(text);
  device.Step({int(num_prompt)});
  device.RunAll(1, nullptr);
  size_t num_ties = 0;
  for (size_t at = num_prompt - 1; at + 1 < text.size(); ++at) {
    if (Lead(std::span(exact.Logits(0)).subspan(at * vocab, vocab)) <= kTie) {
      ++num_ties;
      continue;
    }
    EXPECT_EQ(Best(std::span(device.Logits(0)).subspan(at * vocab, vocab)), size_t(text[at + 1]))
        << "position " << at + 1;
  }
  std::printf("%s: %zu tokens, %zu of them near ties\n", model_.Describe().c_str(), num_output,
              num_ties);
  EXPECT_LE(num_ties, num_output / 8);
}

std::vector<std::string> DevicesWithFastGemm() {
  std::vector<std::string> devices = TestDevices();
  if (OpenTestDevice({.name = "cuda-fast"}).ok()) devices.emplace_back("cuda-fast");
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceModelTest, ::testing::ValuesIn(DevicesWithFastGemm()),
                         [](const auto& tested) { return NameOfDevice(tested.param); });

}  // namespace
}  // namespace lssar

// The shipped model on each device against the CPU in fp32: divergence of the next token's
// distribution, and the text that greedy decoding gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/check.h"
#include "models/checkpoint.h"
#include "tests/models/model_runner.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

const std::string kCheckpoint = "models/zoo/lssar-6m";
constexpr int kPageSize = 64;
// Two logits nearer than this may change places: a tenth of what moves a probability by a tenth.
constexpr float kTie = 0.01f;

struct DeviceModel {
  std::unique_ptr<Backend> backend;
  Checkpoint checkpoint;
  DType kv_cache_dtype;

  static DeviceModel Open(const std::string& device, const std::string& directory, DType type) {
    auto backend = OpenTestDevice({.name = device});
    LSSAR_CHECK(backend.ok());
    auto checkpoint = LoadCheckpoint(directory, backend->get(), {.weights = type});
    LSSAR_CHECK(checkpoint.ok());
    return {*std::move(backend), *std::move(checkpoint), type};
  }
  testing::ModelRunner NewRunner(size_t num_tokens) const {
    return {checkpoint.model.get(), backend.get(), kv_cache_dtype, kPageSize, int(num_tokens)};
  }
  size_t Vocab() const { return size_t(checkpoint.config.vocab_size); }
};

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  std::vector<double> logprobs(logits.begin(), logits.end());
  for (double& logprob : logprobs) logprob -= max + std::log(sum);
  return logprobs;
}

double Divergence(std::span<const float> exact, std::span<const float> other) {
  const std::vector<double> p = LogSoftmax(exact), q = LogSoftmax(other);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

size_t Best(std::span<const float> logits) {
  return size_t(std::ranges::max_element(logits) - logits.begin());
}

// Of the best logit over the second.
float Lead(std::span<const float> logits) {
  std::vector<float> sorted(logits.begin(), logits.end());
  std::ranges::nth_element(sorted, sorted.begin() + 1, std::greater());
  return sorted[0] - sorted[1];
}

class DeviceModelTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Held out from its training.
  static std::vector<int32_t> Text(size_t num_tokens) {
    std::ifstream ids(kCheckpoint + "/held_out.bin", std::ios::binary);
    std::vector<uint16_t> tokens(num_tokens);
    ids.read(reinterpret_cast<char*>(tokens.data()),
             std::streamsize(num_tokens * sizeof(tokens[0])));
    EXPECT_TRUE(ids);
    return {tokens.begin(), tokens.end()};
  }
  static bool IsGpu() { return GetParam() == "cuda" || GetParam() == "cuda-fast"; }

  const DeviceModel exact_ = DeviceModel::Open("cpu", kCheckpoint, DType::kF32);
  const DeviceModel model_ = DeviceModel::Open(GetParam(), kCheckpoint, DType::kF16);
};

TEST_P(DeviceModelTest, NextTokensAreAsLikelyAsOnTheCpuInFp32) {
  const std::vector<int32_t> text = Text(IsGpu() ? 8192 : 64);
  testing::ModelRunner exact = exact_.NewRunner(text.size());
  testing::ModelRunner device = model_.NewRunner(text.size());
  for (testing::ModelRunner* runner : {&exact, &device}) {
    runner->Add(text);
    runner->RunAll(512, nullptr);
  }
  double sum = 0, worst = 0;
  const size_t vocab = exact_.Vocab();
  for (size_t at = 0; at < exact.Logits(0).size(); at += vocab) {
    const double kl = Divergence(std::span(exact.Logits(0)).subspan(at, vocab),
                                 std::span(device.Logits(0)).subspan(at, vocab));
    sum += kl;
    if (!(kl <= worst)) worst = kl;
  }
  const double mean = sum / double(text.size());
  std::printf("%s, %zu tokens in fp16: mean KL %.2e nats, worst %.2e\n",
              model_.backend->Describe().c_str(), text.size(), mean, worst);
  EXPECT_LE(mean, 1e-4);
  EXPECT_LE(worst, 1e-2);
}

// The CPU's text, token by token, on both: the device chooses the same wherever that is no near
// tie.
TEST_P(DeviceModelTest, GreedyTextIsThatOfTheCpuInFp32) {
  const size_t num_prompt = 16, num_output = IsGpu() ? 256 : 24;
  std::vector<int32_t> text = Text(num_prompt);
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
  std::printf("%s: %zu tokens, %zu of them near ties\n", model_.backend->Describe().c_str(),
              num_output, num_ties);
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

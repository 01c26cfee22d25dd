// The error of int8 and int4 weights and of int8 K/V on the shipped checkpoint: Kullback-Leibler
// divergence of the next token's distribution from that of the same checkpoint with fp32 weights
// and fp32 K/V.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "models/checkpoint.h"
#include "models/safetensors.h"
#include "tests/models/fixture.h"
#include "tests/models/model_runner.h"

namespace lssar {
namespace {

using testing::TestModel;

constexpr int kPageSize = 64;

TestModel LoadShipped(DType dtype) {
  return testing::LoadModel(testing::kShippedModel, testing::NewBackend("cpu"), {.dtype = dtype});
}

std::vector<float> AllLogits(const TestModel& model, DType kv_cache_dtype,
                             const std::vector<int32_t>& tokens) {
  testing::ModelRunner runner(model.checkpoint.model.get(), model.backend.get(), kv_cache_dtype,
                              kPageSize, int(tokens.size()));
  runner.Add(tokens);
  runner.RunAll(model.checkpoint.max_num_batched_tokens, nullptr);
  return runner.Logits(0);
}

struct QuantizationError {
  double mean_kl = 0;  // nats
  double worst_kl = 0;
  int worst_position = 0;
  double loss_change = 0;  // mean -log p(next token), quantized minus exact, nats
};

QuantizationError Compare(const std::vector<int32_t>& tokens, const TestModel& exact_model,
                          const TestModel& model, DType kv_cache_dtype) {
  const std::vector<float> exact = AllLogits(exact_model, DType::kF32, tokens);
  const std::vector<float> quantized = AllLogits(model, kv_cache_dtype, tokens);
  const size_t vocab = model.Vocab();
  QuantizationError divergence;
  const int num_positions = int(tokens.size());
  for (int position = 0; position < num_positions; ++position) {
    const auto p = std::span(exact).subspan(size_t(position) * vocab, vocab);
    const auto q = std::span(quantized).subspan(size_t(position) * vocab, vocab);
    const double kl = testing::Divergence(p, q);
    divergence.mean_kl += kl / num_positions;
    if (!(kl <= divergence.worst_kl)) {
      divergence.worst_kl = kl;
      divergence.worst_position = position;
    }
    if (position + 1 < num_positions) {
      const size_t next = size_t(tokens[size_t(position) + 1]);
      divergence.loss_change +=
          (testing::LogSoftmax(p)[next] - testing::LogSoftmax(q)[next]) / (num_positions - 1);
    }
  }
  return divergence;
}

struct Limits {
  double mean_kl;
  double worst_kl;
  double loss_change;
};
// Measured: models/BENCHMARKS.md.
constexpr Limits kInt8Limits = {1e-3, 2e-2, 1e-2};
constexpr Limits kInt4Limits = {5e-2, 3.0, 1e-1};

void ExpectClose(const QuantizationError& divergence, const Limits& limits) {
  ::testing::Test::RecordProperty("mean_kl", std::to_string(divergence.mean_kl));
  ::testing::Test::RecordProperty("worst_kl", std::to_string(divergence.worst_kl));
  std::printf("mean KL %.2e nats, worst %.2e at position %d, loss %+.2e\n", divergence.mean_kl,
              divergence.worst_kl, divergence.worst_position, divergence.loss_change);
  EXPECT_LE(divergence.mean_kl, limits.mean_kl);
  EXPECT_LE(divergence.worst_kl, limits.worst_kl);
  EXPECT_LE(std::abs(divergence.loss_change), limits.loss_change);
}

// The golden rows of the checkpoint.
void CheckGoldenTokens(DType kv_cache_dtype) {
  const TestModel exact = LoadShipped(DType::kF32), int8 = LoadShipped(DType::kI8);
  EXPECT_EQ(int8.checkpoint.dtype, DType::kI8);
  const absl::StatusOr<TensorFile> file =
      TensorFile::Open(std::string(testing::kShippedModel) + "/golden.safetensors");
  ASSERT_TRUE(file.ok());
  for (int row = 0; file->Find(StrCat("tokens_", row)) != nullptr; ++row) {
    std::printf("row %d: ", row);
    ExpectClose(Compare(file->Find(StrCat("tokens_", row))->ToInts(), exact, int8, kv_cache_dtype),
                kInt8Limits);
  }
}

void CheckText(DType kv_cache_dtype) {
  const TestModel exact = LoadShipped(DType::kF32), int8 = LoadShipped(DType::kI8);
  ExpectClose(Compare(testing::HeldOutTokens(1000), exact, int8, kv_cache_dtype), kInt8Limits);
}

TEST(QuantizedTest, Int8WeightsOnGoldenTokens) { CheckGoldenTokens(DType::kF32); }
TEST(QuantizedTest, Int8WeightsOnText) { CheckText(DType::kF32); }
TEST(QuantizedTest, Int8WeightsAndKvOnGoldenTokens) { CheckGoldenTokens(DType::kI8); }
TEST(QuantizedTest, Int8WeightsAndKvOnText) { CheckText(DType::kI8); }

// Rounded to nearest, and 4.5 bits a weight in memory.
TEST(QuantizedTest, Int4WeightsOnText) {
  const TestModel exact = LoadShipped(DType::kF32), int4 = LoadShipped(DType::kI4);
  EXPECT_EQ(int4.checkpoint.dtype, DType::kI4);
  ExpectClose(Compare(testing::HeldOutTokens(1000), exact, int4, DType::kF32), kInt4Limits);
}

TEST(QuantizedTest, SelfCheckPassesInEveryFormat) {
  for (const DTypeInfo& info : kDTypes) {
    const DType dtype = info.dtype;
    if (!HoldsWeights(dtype)) continue;
    for (const DType kv_cache_dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
      const TestModel model = LoadShipped(dtype);
      const absl::StatusOr<SelfCheckReport> report =
          SelfCheck(std::string(testing::kShippedModel), model.checkpoint, model.backend.get(),
                    kv_cache_dtype, kPageSize);
      ASSERT_TRUE(report.ok()) << NameOf(dtype) << ": " << report.status().message();
      EXPECT_GT(report->num_rows, 0);
      std::printf("%s weights, %s K/V: worst error %.2e of %.2e\n",
                  std::string(NameOf(dtype)).c_str(), std::string(NameOf(kv_cache_dtype)).c_str(),
                  report->worst_error, report->tolerance);
    }
  }
}

}  // namespace
}  // namespace lssar

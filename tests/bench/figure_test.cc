#include "tests/bench/figure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kernels/backend.h"

namespace lssar::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;

OpCosts CostsOf(double linear_seconds, double attention_seconds) {
  OpCosts ops = {};
  ops[size_t(Op::kLinear)].seconds = linear_seconds;
  ops[size_t(Op::kAttention)].seconds = attention_seconds;
  return ops;
}

// Three samples of 10 steps of 2 tokens: 1000, 2000 and 500 tokens per second.
Figure FigureOfThree() {
  return {.work = "decode at 0",
          .format = "int8 weights, fp16 K/V",
          .num_tokens = 20,
          .num_steps = 10,
          .samples = {{.seconds = 0.02, .ceiling = 5e9, .ops = CostsOf(0.012, 0.005)},
                      {.seconds = 0.01, .ceiling = 8e9, .ops = CostsOf(0.007, 0.002)},
                      {.seconds = 0.04, .ceiling = 2e9, .ops = CostsOf(0.020, 0.010)}},
          .weights_work = 48e6,
          .attention_work = 12e6};
}

TEST(FigureTest, EachSampleIsSharedByTheCeilingOfItsOwnMoment) {
  const Figure figure = FigureOfThree();
  EXPECT_THAT(TokensPerSecond(figure), DoubleEq(1000));
  EXPECT_THAT(CeilingPerSecond(figure), DoubleEq(5e9));
  // 3, 6 and 1.5e9 bytes per second; ceilings 5, 8 and 2e9.
  EXPECT_THAT(ShareOfCeiling(figure), DoubleEq(0.75));
}

TEST(FigureTest, TheMedianSamplesPartsAddUpToItsStep) {
  const nlohmann::json step = ToJson(FigureOfThree())["step"];
  EXPECT_THAT(step["us"].get<double>(), DoubleNear(2000, 1e-6));
  EXPECT_THAT(step["op_us"]["linear"].get<double>(), DoubleNear(1200, 1e-6));
  EXPECT_THAT(step["op_us"]["attention"].get<double>(), DoubleNear(500, 1e-6));
  EXPECT_THAT(step["op_us"]["other"].get<double>(), DoubleNear(300, 1e-6));
  EXPECT_THAT(step["weights_per_second"].get<double>(), DoubleNear(4e9, 1));
  EXPECT_THAT(step["attention_per_second"].get<double>(), DoubleNear(2.4e9, 1));
  EXPECT_THAT(step["ceiling_per_second"].get<double>(), DoubleEq(5e9));
}

// 9 query heads on 3 K/V heads, one layer and 100 keys: softmax reads every row of V, which the
// three heads of a group share. 300 rows of K and of V are read, of 128 and of 64 bytes.
TEST(DecodeAttentionBytesTest, AGroupReadsItsRowsOfVOnce) {
  const HeadBytes grouped{.num_heads = 9, .num_kv_heads = 3, .key_row = 128, .value_row = 64};
  EXPECT_THAT(DecodeAttentionBytes(grouped, {.num_value_rows = 900, .num_value_rows_read = 900}),
              DoubleEq(300 * 128 + 300 * 64));
  // 10% of the rows: at most 90 different ones.
  EXPECT_THAT(DecodeAttentionBytes(grouped, {.num_value_rows = 900, .num_value_rows_read = 90}),
              DoubleEq(300 * 128 + 90 * 64));
}

TEST(DecodeAttentionBytesTest, AHeadOfItsOwnReadsWhatItCounts) {
  const HeadBytes own{.num_heads = 3, .num_kv_heads = 3, .key_row = 128, .value_row = 64};
  EXPECT_THAT(DecodeAttentionBytes(own, {.num_value_rows = 300, .num_value_rows_read = 300}),
              DoubleEq(300 * 128 + 300 * 64));
  EXPECT_THAT(DecodeAttentionBytes(own, {.num_value_rows = 300, .num_value_rows_read = 60}),
              DoubleEq(300 * 128 + 60 * 64));
}

TEST(TimedBackendTest, CountsThePackedBytesOfEveryProduct) {
  constexpr int kRows = 64, kCols = 768;
  TimedBackend backend(*MakeBackend({.name = "cpu", .num_threads = 1}));
  const std::vector<float> w(size_t{kRows} * kCols, 0.5f), x(kCols, 1.0f);
  std::vector<float> out(kRows);
  const int32_t first_row = 0;
  for (const DTypeInfo& info : kDTypes) {
    const DType stored = info.dtype;
    if (!HoldsWeights(stored)) continue;
    const auto matrix =
        *backend.Pack({.elements = w.data(), .num_rows = kRows, .num_cols = kCols}, stored);
    for (int call = 0; call < 2; ++call)
      backend.Linear(
          {.num_rows = 1, .x = x.data(), .norm = {}, .weight = matrix.get(), .out = out.data()});
    backend.Logits({.x = x.data(),
                    .row_ids = {&first_row, 1},
                    .norm = {},
                    .weight = matrix.get(),
                    .logits = out.data()});
    const OpCosts costs = backend.TakeCosts();
    // int8 and int4: one bf16 scale per row and 64 or 32 columns.
    const int group_cols = stored == DType::kI8 ? 64 : 32;
    const int64_t weight_bytes = int64_t{kRows} * kCols * int64_t(info.num_bits) / 8 +
                                 (info.is_float ? 0 : kRows * (kCols / group_cols) * 2);
    EXPECT_EQ(costs[size_t(Op::kLinear)].weight_bytes, 2 * weight_bytes) << NameOf(stored);
    EXPECT_EQ(costs[size_t(Op::kLogits)].weight_bytes, weight_bytes) << NameOf(stored);
    EXPECT_GT(costs[size_t(Op::kLinear)].seconds, 0);
    EXPECT_EQ(costs[size_t(Op::kAttention)].seconds, 0);
    EXPECT_EQ(backend.TakeCosts()[size_t(Op::kLinear)].weight_bytes, 0);
  }
}

}  // namespace
}  // namespace lssar::bench

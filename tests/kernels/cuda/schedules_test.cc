// The kernels under random schedules: threads in random order, copies that arrive early or late. A
// race shows as different bits.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/emulation/machine.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

constexpr uint64_t kSeeds = 4;

// Compute capability: a device without clusters and one with.
class SchedulesTest : public testing::TestWithParam<int> {
 protected:
  SchedulesTest() : backend_(MakeEmulatedBackend(GetParam())) {}
  ~SchedulesTest() override { emulation::SetSchedule(0); }

  template <class F>
  void ExpectSameBits(const F& run, const std::vector<int64_t>& shape) {
    emulation::SetSchedule(0);
    const std::vector<float> in_turn = run();
    for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
      emulation::SetSchedule(seed);
      EXPECT_TRUE(lssar::SameBits(run(), in_turn, shape)) << "seed " << seed;
    }
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(SchedulesTest, Attention) {
  constexpr int kTokens = 1100, kHeads = 2, kDim = 64;
  const SequenceVectors sequence(kTokens, kHeads, kDim, 1, Content::kTopical);
  for (const DType dtype : {DType::kF16, DType::kI8}) {
    const PagedKv kv(*backend_, {&sequence}, 16, dtype);
    const std::vector<RowRange> ranges{{.first = 900, .count = 70}, {.first = 1099, .count = 1}};
    ExpectSameBits([&] { return Attend(*backend_, {}, {&sequence}, kv, ranges); },
                   {71, kHeads, kDim});
  }
}

TEST_P(SchedulesTest, FlatRows) {
  const SequenceVectors sequence(300, 1, 32, 2, Content::kNearlyEqualK);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF16);
  const std::vector<RowRange> ranges{{.first = 0, .count = 80}, {.first = 299, .count = 1}};
  ExpectSameBits([&] { return Attend(*backend_, {}, {&sequence}, kv, ranges); }, {81, 1, 32});
}

TEST_P(SchedulesTest, Linear) {
  const std::vector<float> x = RandomFloats(20 * 96, 1), w = RandomFloats(40 * 96, 2);
  for (const DType dtype : kStoredTypes) {
    if (!Stores("CUDA", dtype)) continue;
    const auto weight = Pack(*backend_, w, 40, 96, dtype);
    Floats x_floats(*backend_, x), out(*backend_, std::vector<float>(20 * 40));
    Floats norm_weight(*backend_, RandomFloats(96, 3)), norm_bias(*backend_, RandomFloats(96, 4));
    ExpectSameBits(
        [&] {
          backend_->Linear({.num_rows = 20,
                            .x = x_floats.Address(),
                            .norm = {.kind = NormKind::kLayerNorm,
                                     .weight = norm_weight.Address(),
                                     .bias = norm_bias.Address()},
                            .weight = weight.get(),
                            .out = out.Address()});
          EXPECT_TRUE(backend_->Synchronize().ok());
          return out.Values();
        },
        {20, 40});
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SchedulesTest, testing::Values(80, 90),
                         [](const auto& param) { return "sm_" + std::to_string(param.param); });

}  // namespace
}  // namespace lssar

// A device opened as sm_80 runs decode without clusters. Its bits and read counts must equal those
// of decode with clusters. Runs on the emulated device and, in the GPU test program, on the GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/two_planes.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"
#if LSSAR_WITH_CUDA
#include "kernels/cuda/device/cublas_gemm.h"
#include "kernels/cuda/device/device_backend.h"
#include "kernels/cuda/device/device_kernels.h"
#endif

namespace lssar {
namespace {

// Null where there is no such device.
std::unique_ptr<Backend> OpenAs(const std::string& device, int compute_capability,
                                bool has_library) {
  if (device == "Emulated") return MakeEmulatedBackend(compute_capability, has_library);
#if LSSAR_WITH_CUDA
  auto backend = MakeCudaBackend({.driver = MakeDeviceDriver(compute_capability),
                                  .kernels = DeviceKernels(),
                                  .make_gemm_library = has_library ? &MakeCublasGemm : nullptr},
                                 0);
  if (backend.ok()) return *std::move(backend);
#endif
  return nullptr;
}

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"Emulated"};
  if (OpenAs("Gpu", 90, false) != nullptr) devices.emplace_back("Gpu");
  return devices;
}

// Device; whether it compacts values, as it does with a library for GEMMs.
class SplitPathTest : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  const bool is_gpu_ = std::get<0>(GetParam()) == "Gpu";
  std::unique_ptr<Backend> Open(int compute_capability) const {
    return OpenAs(std::get<0>(GetParam()), compute_capability, std::get<1>(GetParam()));
  }
};

TEST_P(SplitPathTest, BitsAndCountsOfTheClusterPath) {
  constexpr int kHeads = 2;
  const std::unique_ptr<Backend> clusters = Open(90), splits = Open(80);
  const int num_tokens = is_gpu_ ? 20000 : 1100;
  for (const int dim : {32, 64, 80, 128}) {
    const SequenceVectors sequence(num_tokens, kHeads, dim, 1, Content::kTopical);
    const std::vector<RowRange> ranges = {{.first = 0, .count = 1},
                                          {.first = 255, .count = 2},
                                          {.first = num_tokens / 2, .count = 3},
                                          {.first = num_tokens - 1, .count = 1}};
    const std::vector<const SequenceVectors*> sequences = {&sequence};
    for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
      for (const AttentionSpec& spec :
           {AttentionSpec{.p = 15}, {.kind = AttentionKind::kSoftmax}}) {
        if (!CheckKvType(spec, dtype).ok()) continue;
        std::vector<float> out[2];
        std::vector<AttentionStats> counters[2];
        int i = 0;
        for (Backend* backend : {clusters.get(), splits.get()}) {
          const PagedKv kv(*backend, sequences, 64, dtype);
          out[i] = Attend(*backend, spec, sequences, kv, ranges, &counters[i]);
          ++i;
        }
        EXPECT_TRUE(SameBits(out[1], out[0])) << dim << " " << NameOf(dtype);
        for (size_t s = 0; s < counters[0].size(); ++s) {
          EXPECT_EQ(counters[1][s].num_value_rows_read, counters[0][s].num_value_rows_read);
        }
      }
    }
  }
}

TEST_P(SplitPathTest, RowsDoNotDependOnTheirNeighbours) {
  constexpr int kTokens = 1100, kDim = 64;
  const std::unique_ptr<Backend> backend = Open(90);
  const SequenceVectors sequence(kTokens, 1, kDim, 1, Content::kTopical);
  const SequenceVectors other(kTokens / 3, 1, kDim, 2, Content::kTopical);
  const std::vector<RowRange> ranges = {{.first = 700, .count = 1},
                                        {.first = kTokens - 3, .count = 3}};
  for (const DType dtype : {DType::kF16, DType::kFx16}) {
    const PagedKv kv(*backend, {&sequence}, 64, dtype);
    const PagedKv both(*backend, {&sequence, &other}, 64, dtype);
    for (const RowRange& range : ranges) {
      std::vector<float> alone = Attend(*backend, {}, {&sequence}, kv, {range});
      const std::vector<float> together =
          Attend(*backend, {}, {&sequence, &other}, both, {range, {.first = 300, .count = 2}});
      const size_t size = size_t(range.count) * kDim;
      ASSERT_EQ(alone.size(), size);
      EXPECT_TRUE(SameBits({together.begin(), together.begin() + ptrdiff_t(size)}, alone));
    }
  }
}

// A prompt that fills the device has blocks of 128 rows, one of 300 rows has blocks of 64.
TEST_P(SplitPathTest, BitsDoNotDependOnTheRowsOfABlock) {
  constexpr int kTokens = 1100, kDim = 64;
  const int num_heads = is_gpu_ ? 40 : 1;
  const std::unique_ptr<Backend> backend = Open(90);
  const SequenceVectors sequence(kTokens, num_heads, kDim, 1, Content::kTopical);
  for (const DType dtype : {DType::kF16, DType::kI8}) {
    for (const double p : {15.0, 10.0}) {
      const PagedKv kv(*backend, {&sequence}, 64, dtype);
      const std::vector<float> whole =
          Attend(*backend, {.p = p}, {&sequence}, kv, {{.first = 0, .count = kTokens}});
      std::vector<float> parts;
      for (int first = 0; first < kTokens; first += 300) {
        const std::vector<float> part =
            Attend(*backend, {.p = p}, {&sequence}, kv,
                   {{.first = first, .count = std::min(300, kTokens - first)}});
        parts.insert(parts.end(), part.begin(), part.end());
      }
      EXPECT_TRUE(SameBits(parts, whole)) << NameOf(dtype) << ", p = " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SplitPathTest,
                         testing::Combine(testing::ValuesIn(Devices()), testing::Bool()),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) ? "Compacted" : "");
                         });

}  // namespace
}  // namespace lssar

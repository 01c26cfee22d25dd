// A device opened as sm_80 runs decode without clusters. Its bits and read counts must equal those
// of decode with clusters. Runs on the emulated device and, in the GPU test program, on the GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/emulation/emulated_backend.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"
#if LSSAR_WITH_CUDA
#include "kernels/cuda/device/device_backend.h"
#include "kernels/cuda/device/device_kernels.h"
#endif

namespace lssar {
namespace {

// Null where there is no such device.
std::unique_ptr<Backend> OpenAs(const std::string& device, int compute_capability) {
  if (device == "Emulated") return MakeEmulatedBackend(compute_capability);
#if LSSAR_WITH_CUDA
  auto backend = MakeCudaBackend(
      {.driver = MakeDeviceDriver(compute_capability), .kernels = DeviceKernels()}, 0);
  if (backend.ok()) return *std::move(backend);
#endif
  return nullptr;
}

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"Emulated"};
  if (OpenAs("Gpu", 90) != nullptr) devices.emplace_back("Gpu");
  return devices;
}

class SplitPathTest : public testing::TestWithParam<std::string> {};

TEST_P(SplitPathTest, BitsAndCountsOfTheClusterPath) {
  constexpr int kHeads = 2;
  const std::unique_ptr<Backend> clusters = OpenAs(GetParam(), 90);
  const std::unique_ptr<Backend> splits = OpenAs(GetParam(), 80);
  const int num_tokens = GetParam() == "Gpu" ? 20000 : 1100;
  for (const int dim : {32, 64, 80, 128}) {
    const SequenceVectors sequence(num_tokens, kHeads, dim, 1, Content::kTopical);
    const std::vector<RowRange> ranges = {{.first = 0, .count = 1},
                                          {.first = 255, .count = 2},
                                          {.first = num_tokens / 2, .count = 3},
                                          {.first = num_tokens - 1, .count = 1}};
    const std::vector<const SequenceVectors*> sequences = {&sequence};
    for (const DType dtype : {DType::kF16, DType::kI8}) {
      for (const AttentionSpec& spec :
           {AttentionSpec{.p = 15}, {.kind = AttentionKind::kSoftmax}}) {
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

INSTANTIATE_TEST_SUITE_P(Devices, SplitPathTest, testing::ValuesIn(Devices()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace lssar

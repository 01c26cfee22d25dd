// Devices with less shared memory than an H100: attention runs in launches that fit, with the same
// bits, or the layout is refused by name before anything runs.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/emulation/emulated_backend.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

constexpr int kHeads = 1;
constexpr int kTokens = 1300;  // several splits

struct DeviceLimit {
  int compute_capability = 80;
  // That its shared memory has space for.
  int max_fp16_dim = 128;
  int max_int8_dim = 128;
  int max_fx16_dim = 128;

  bool Fits(int dim, DType dtype) const {
    return dim <= (dtype == DType::kI8     ? max_int8_dim
                   : dtype == DType::kFx16 ? max_fx16_dim
                                           : max_fp16_dim);
  }
};

class SharedMemoryTest : public testing::TestWithParam<DeviceLimit> {
 protected:
  const std::unique_ptr<Backend> device_ = MakeEmulatedBackend(GetParam().compute_capability);
};

absl::Status Fit(const Backend& backend, int head_dim, DType dtype) {
  KvLayout layout{.num_layers = 1,
                  .num_kv_heads = kHeads,
                  .head_dim = head_dim,
                  .num_pages = 1,
                  .dtype = dtype};
  return backend.FitLayout(layout);
}

TEST_P(SharedMemoryTest, LayoutsThatDoNotFitAreRefusedByName) {
  for (const int dim : {32, 64, 80, 128}) {
    for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
      const absl::Status status = Fit(*device_, dim, dtype);
      EXPECT_EQ(status.ok(), GetParam().Fits(dim, dtype)) << dim << " " << status;
      if (status.ok()) continue;
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
      const std::string message(status.message());
      EXPECT_NE(message.find("head_dim " + std::to_string(dim)), std::string::npos) << message;
      EXPECT_NE(message.find("KiB of shared memory a block"), std::string::npos) << message;
    }
  }
}

TEST_P(SharedMemoryTest, LayoutsThatFitGiveTheBitsOfTheLargestDevice) {
  const std::unique_ptr<Backend> largest = MakeEmulatedBackend(90);
  for (const int dim : {32, 64, 80, 128}) {
    const SequenceVectors sequence(kTokens, kHeads, dim, 1, Content::kTopical);
    // A decode row and a prompt's tile.
    for (const RowRange& range : {RowRange{.first = kTokens - 1, .count = 1},
                                  RowRange{.first = kTokens - 40, .count = 40}}) {
      for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
        if (!GetParam().Fits(dim, dtype)) continue;
        std::vector<float> out[2];
        int i = 0;
        for (Backend* backend : {largest.get(), device_.get()}) {
          const PagedKv kv(*backend, {&sequence}, 64, dtype);
          out[i++] = Attend(*backend, {.p = 15}, {&sequence}, kv, {range});
        }
        EXPECT_TRUE(SameBits(out[1], out[0])) << dim << " " << NameOf(dtype);
      }
    }
  }
}

TEST(ClusterMemoryTest, ADeviceWithClustersHasTheirMemory) {
  const CudaKernels kernels = EmulatedParts().kernels;
  for (const int dim : {32, 64, 80, 128}) {
    for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
      EXPECT_LE(kernels.attention_memory(dtype, dim).cluster_decode, kClusterSharedBytes) << dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SharedMemoryTest,
                         testing::Values(DeviceLimit{.compute_capability = 80},
                                         DeviceLimit{86, 80, 64, 80}, DeviceLimit{89, 80, 64, 80},
                                         DeviceLimit{.compute_capability = 90},
                                         DeviceLimit{120, 80, 64, 80}),
                         [](const auto& test) {
                           return "Sm" + std::to_string(test.param.compute_capability);
                         });

}  // namespace
}  // namespace lssar

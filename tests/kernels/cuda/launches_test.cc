// The number of launches of a decode step.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/cuda/kernels.h"
#include "tests/kernels/cuda/stepper.h"

namespace lssar {
namespace {

CudaKernels kernels;  // of the emulation
int num_launches = 0;

template <auto kFunction, typename... Args>
int Counted(Args... args) {
  ++num_launches;
  return (kernels.*kFunction)(args...);
}

// The emulated backend, with launches counted.
std::unique_ptr<Backend> MakeCounted() {
  CudaBackendParts parts = EmulatedParts();
  kernels = parts.kernels;
  const auto count = [&]<auto kFunction, typename... Args>(int (*&function)(Args...)) {
    function = &Counted<kFunction, Args...>;
  };
  CudaKernels& to = parts.kernels;
  count.operator()<&CudaKernels::cluster_decode>(to.cluster_decode);
  count.operator()<&CudaKernels::prefill>(to.prefill);
  count.operator()<&CudaKernels::rope_write>(to.rope_write);
  count.operator()<&CudaKernels::split_rows>(to.split_rows);
  count.operator()<&CudaKernels::linear>(to.linear);
  count.operator()<&CudaKernels::fused_linear>(to.fused_linear);
  count.operator()<&CudaKernels::embed>(to.embed);
  count.operator()<&CudaKernels::sample>(to.sample);
  return *MakeCudaBackend(std::move(parts), 0);
}

// A GPT-2 layer has six ops, so a step of 12 layers has 73 launches before its logits.
TEST(LaunchesTest, AnOpOfAFewRowsIsOneLaunch) {
  const std::unique_ptr<Backend> backend = MakeCounted();
  const auto stepper = *Stepper::Make(*backend);
  const int ops_of_layer = 4;                                   // Stepper has no MLP
  const int num_ops = 1 + Stepper::kLayers * ops_of_layer + 2;  // Embed, layers, Logits and Sample
  const std::vector<int32_t> pages{3, 4, 5};
  for (int position = 0; position < 3; ++position) {
    num_launches = 0;
    ASSERT_TRUE(stepper->Step({{.first_position = position, .pages = pages}}, false).ok());
    EXPECT_EQ(num_launches, num_ops) << position;
  }
  // More rows than a GEMM splits for itself: another launch each.
  num_launches = 0;
  ASSERT_TRUE(
      stepper->Step({{.num_rows = kMaxFusedRows + 1, .first_position = 3, .pages = pages}}, false)
          .ok());
  EXPECT_EQ(num_launches, num_ops + Stepper::kLayers * 2);
}

}  // namespace
}  // namespace lssar

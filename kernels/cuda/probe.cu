// A kernel that MakeCudaBackend runs before anything is loaded: the device has code of this build,
// and its approximations are exact where the other kernels rely on it.
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/kernel_table.cuh"
#include "kernels/cuda/launch.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {
namespace {

LSSAR_KERNEL(kWarpThreads)
Probe(LSSAR_ARGS(CudaProbeArgs) args) {
  WaitForPreviousKernel();
  const int at = ThreadIdx();
  if (BlockX() > 0 || at >= kProbeValues) return;
  const float whole = args.whole[at];
  args.out[at] = {.power = Exp2(whole), .log = Log2(args.power[at]), .has_clusters = kHasClusters};
}

}  // namespace

int StartProbe(const CudaProbeArgs& args, void* stream) {
  return Launch({.num_blocks_x = args.cluster_blocks,
                 .num_threads = kWarpThreads,
                 .cluster_blocks = args.cluster_blocks,
                 .shared_bytes = args.shared_bytes,
                 .overlaps_previous = true},
                stream, &Probe, args);
}

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

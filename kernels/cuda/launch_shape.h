// Blocks, threads and shared memory of a launch.
#ifndef LSSAR_KERNELS_CUDA_LAUNCH_SHAPE_H_
#define LSSAR_KERNELS_CUDA_LAUNCH_SHAPE_H_

#include <cstddef>

namespace lssar {

struct LaunchShape {
  int num_blocks_x = 1;
  int num_blocks_y = 1;
  int num_threads = 1;     // of a block
  int cluster_blocks = 1;  // blocks along x that form a cluster; num_blocks_x is a multiple
  size_t shared_bytes = 0;
  // The kernel may start before the one before it in the stream ends (programmatic dependent
  // launch), and calls WaitForPreviousKernel before it reads or writes what others write.
  bool overlaps_previous = false;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_LAUNCH_SHAPE_H_

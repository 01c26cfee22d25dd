// The execution model of CUDA on the host: every thread of a cluster is a fiber of its own, so that
// a kernel's source runs as it stands, barriers, shuffles, shared memory and all. What hardware
// leaves open is chosen badly on purpose: which thread runs next, what shared memory holds at the
// start, and whether an asynchronous copy arrives at once or only when it is waited for.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_
#define LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cuda/launch_shape.h"

namespace lssar::emulation {

inline constexpr int kWarpThreads = 32;
// Of the machine that is emulated, an H200: a launch that asks for more fails as it does there.
inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 * 1024;  // of any device
inline constexpr int kMaxClusterBlocks = 8;

// Which thread runs next: 0 in turn, anything else at random from this seed. Process-wide.
void SetSchedule(uint64_t seed);

// Runs the kernel's every thread; clusters one after another. A deadlock, a barrier that some
// threads of a warp miss, and a collective that they enter from different places end the process.
// Requires  the shape passes ShapeFits; not called from a kernel
// Threads   one at a time in the process
void Run(const LaunchShape& shape, const std::function<void()>& kernel);

// max_shared_bytes: of a block, on the device that is emulated.
bool ShapeFits(const LaunchShape& shape, size_t max_shared_bytes = kMaxSharedBytes);

// ---- For the thread that runs now

struct Place {
  int thread = 0;  // in its block
  int block_x = 0;
  int block_y = 0;
  int cluster_rank = 0;
  int cluster_blocks = 1;
  unsigned char* shared = nullptr;  // its block's
};
const Place& Here();

// Meets the other 31 threads of the warp, each with its own `slot`; the last to come calls
// `act(slots)` for all, slots in the order of lanes. `act` is also what tells one collective from
// another: all lanes must bring the same.
using WarpAction = void (*)(void* const* slots);
void MeetWarp(WarpAction act, void* slot);

void MeetBlock();
void MeetCluster();
// MeetBlock, and whether any thread of the block brought true.
bool MeetBlockOr(bool condition);

// `address`, which lies in this block's shared memory, as the same place of another block's.
void* InBlock(const void* address, int cluster_rank);

// Asynchronous copies of a thread, in groups: arrive at the latest when Wait leaves at most
// `num_pending` younger groups. valid_bytes < num_bytes: the rest is zero.
void CopyLater(void* to, const void* from, size_t num_bytes, size_t valid_bytes);
void CloseCopyGroup();
void WaitForCopyGroups(int num_pending);

// A barrier in shared memory that counts arrivals and bytes (mbarrier).
void InitBarrier(uint64_t* barrier, int num_arrivals);
void ExpectBytes(uint64_t* barrier, size_t num_bytes);
void Arrive(uint64_t* barrier);
void BulkCopyLater(void* to, const void* from, size_t num_bytes, uint64_t* barrier);
// Until the phase of this parity is complete.
void WaitForBarrier(uint64_t* barrier, unsigned parity);

}  // namespace lssar::emulation

#endif  // LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_

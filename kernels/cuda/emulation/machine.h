// The execution model of CUDA on the host. Every thread of a cluster is a fiber, so that a kernel's
// source runs unchanged, with barriers, shuffles and shared memory. Threads run in order, each warp
// as far as it can. What hardware leaves unspecified is chosen adversely: shared memory holds NaN
// before a block starts and after it ends, and asynchronous copies arrive only when they are waited
// for. Other schedules, and races, are looked for in the device's own code (tests/ptx).
#ifndef LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_
#define LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels/cuda/launch_shape.h"

namespace lssar::emulation {

inline constexpr int kWarpThreads = 32;
// Limits of the emulated machine, an H200. A launch above them fails.
inline constexpr int kMaxThreads = 1024;
inline constexpr size_t kMaxSharedBytes = 227 * 1024;  // of any device
inline constexpr int kMaxClusterBlocks = 8;

// Runs all threads of the kernel, cluster after cluster. Aborts the process on a deadlock, on a
// barrier that some threads of a warp miss, and on a collective entered from different places.
// Requires  the shape passes ShapeFits; not called from a kernel
// Threads   one at a time in the process
void Run(const LaunchShape& shape, const std::function<void()>& kernel);

// Runs a launch in place of the kernel's C++ version, whose address is `kernel`: tests/ptx runs the
// device's own code. args: the kernel's argument. False: it does not run this kernel.
using KernelRunner = bool (*)(const void* kernel, const LaunchShape& shape, const void* args,
                              size_t num_bytes);
// Process-wide; null: none.
void SetKernelRunner(KernelRunner runner);
bool RunByRunner(const void* kernel, const LaunchShape& shape, const void* args, size_t num_bytes);

// max_shared_bytes: of a block, on the device that is emulated.
bool ShapeFits(const LaunchShape& shape, size_t max_shared_bytes = kMaxSharedBytes);

// ---- For the running thread

struct Place {
  int thread = 0;  // in its block
  int block_x = 0;
  int block_y = 0;
  int cluster_rank = 0;
  int cluster_blocks = 1;
  unsigned char* shared = nullptr;  // of its block
};
extern const Place* current_place;
inline const Place& Here() { return *current_place; }

// Waits for the other 31 threads of the warp, each with its own `slot`. The last one calls
// `act(slots)` for all, slots in lane order. All lanes must pass the same `act`: it identifies the
// collective.
using WarpAction = void (*)(void* const* slots);
void EmulatedSyncWarp(WarpAction act, void* slot);

void MeetBlock();
void MeetCluster();
// MeetBlock; returns whether any thread of the block passed true.
bool MeetBlockOr(bool condition);

// The address in another block's shared memory that corresponds to `address` in this block's.
void* InBlock(const void* address, int cluster_rank);

// Asynchronous copies of a thread, in groups. A group has arrived when WaitForCopyGroups leaves at
// most the `num_pending` groups after it. valid_bytes < num_bytes: the rest becomes zero.
void CpAsync(void* to, const void* from, size_t num_bytes, size_t valid_bytes);
void CpAsyncCommitGroup();
void WaitForCopyGroups(int num_pending);

// Marks that the thread has waited for the kernel before. A thread of a launch that overlaps the
// previous one fails if it ends without.
void WaitForPrevious();

// A barrier in shared memory that counts arrivals and bytes (mbarrier).
void InitBarrier(uint64_t* barrier, int num_arrivals);
void ExpectBytes(uint64_t* barrier, size_t num_bytes);
void Arrive(uint64_t* barrier);
void CpAsyncBulk(void* to, const void* from, size_t num_bytes, uint64_t* barrier);
// Waits until the phase of this parity is complete.
void WaitForBarrier(uint64_t* barrier, unsigned parity);

}  // namespace lssar::emulation

#endif  // LSSAR_KERNELS_CUDA_EMULATION_MACHINE_H_

// All hardware instructions that kernels use: indices, barriers, shuffles, copies, MMA,
// conversions. Everything else in a kernel is plain C++, so that the same source also runs on the
// host: emulation/instructions.h has the host version of every function here.
#ifndef LSSAR_KERNELS_CUDA_INSTRUCTIONS_CUH_
#define LSSAR_KERNELS_CUDA_INSTRUCTIONS_CUH_

#ifndef __CUDACC__
#include "kernels/cuda/emulation/instructions.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#define LSSAR_KERNEL(max_threads) __global__ void __launch_bounds__(max_threads, 1)
// A kernel's argument. It is in the constant bank; a reference to it makes no copy.
#define LSSAR_ARGS(type) const __grid_constant__ type
#define LSSAR_DEVICE __device__ __forceinline__
#define LSSAR_DEVICE_CALL __device__ __noinline__
#define LSSAR_UNROLL _Pragma("unroll")
#define LSSAR_NO_UNROLL _Pragma("unroll 1")
#define LSSAR_UNROLL_BY(count) LSSAR_PRAGMA(unroll count)
#define LSSAR_PRAGMA(text) _Pragma(#text)
#define LSSAR_CUDA_NAMESPACE cuda

namespace lssar::cuda {

inline constexpr int kWarpThreads = 32;

// Clusters, barriers that count bytes, bulk copies.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kHasClusters = false;
#else
inline constexpr bool kHasClusters = true;
#endif

// ---- Place

LSSAR_DEVICE int ThreadIdx() { return int(threadIdx.x); }
LSSAR_DEVICE int LaneIdx() { return int(threadIdx.x % 32); }
LSSAR_DEVICE int WarpIdx() { return int(threadIdx.x / 32); }
LSSAR_DEVICE int BlockX() { return int(blockIdx.x); }
LSSAR_DEVICE int BlockY() { return int(blockIdx.y); }

// The block's dynamic shared memory, 128-byte aligned.
LSSAR_DEVICE unsigned char* SharedMemory() {
  extern __shared__ __align__(128) unsigned char shared_memory[];
  return shared_memory;
}

LSSAR_DEVICE unsigned SharedAddress(const void* pointer) {
  return unsigned(__cvta_generic_to_shared(pointer));
}

// ---- Barriers and votes; all threads of the warp, block or cluster take part

LSSAR_DEVICE void SyncWarp() { __syncwarp(); }
LSSAR_DEVICE void SyncBlock() { __syncthreads(); }
LSSAR_DEVICE bool SyncBlockOr(bool condition) { return __syncthreads_or(condition) != 0; }
LSSAR_DEVICE unsigned Ballot(bool condition) { return __ballot_sync(0xFFFFFFFFu, condition); }
template <typename T>
LSSAR_DEVICE T ShuffleXor(T value, int lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, lane_mask);
}
template <typename T>
LSSAR_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}

// ---- Clusters: sm_90. Elsewhere a block is its own cluster.

LSSAR_DEVICE int ClusterRank() {
#if __CUDA_ARCH__ >= 900
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return int(rank);
#else
  return 0;
#endif
}

LSSAR_DEVICE int ClusterBlocks() {
#if __CUDA_ARCH__ >= 900
  unsigned count;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return int(count);
#else
  return 1;
#endif
}

// Shared memory written before it is visible to all blocks of the cluster after it. The threads of
// a warp call it together.
LSSAR_DEVICE void SyncCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
#else
  __syncthreads();
#endif
}

// The last call of a kernel: a block must not exit while another block reads its shared memory.
// Nothing is made visible. The threads of a warp call it together.
LSSAR_DEVICE void LeaveCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;\n" ::
          : "memory");
#endif
}

// Stops the kernel: every later call of the process reports cudaErrorLaunchFailure.
LSSAR_DEVICE void Trap() { __trap(); }

// The same address in the shared memory of another block of the cluster.
template <typename T>
LSSAR_DEVICE const T* InBlock(const T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  const T* remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(shared), "r"(rank));
  return remote;
#else
  return shared;
#endif
}

// ---- Overlap with the kernel before (LaunchShape::overlaps_previous)

// Lets the next kernel of the stream start, and waits until the one before has ended and its writes
// are visible. Each thread calls it once; code before it reads only what no step writes.
LSSAR_DEVICE void WaitForPreviousKernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Memory

LSSAR_DEVICE void FenceDevice() { __threadfence(); }
LSSAR_DEVICE unsigned AtomicAdd(unsigned* address, unsigned value) {
  return atomicAdd(address, value);
}
// For global memory only. atomicAdd would also compile a compare-and-swap loop for shared memory.
LSSAR_DEVICE void AtomicAdd(unsigned long long* address, unsigned long long value) {
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(address)), "l"(value)
               : "memory");
}

LSSAR_DEVICE void AtomicOr(unsigned* address, unsigned bits) { atomicOr(address, bits); }

// Copies 16 bytes to shared memory asynchronously. Not `valid`: writes zeros and does not read
// `from`.
// Requires  both aligned to 16 bytes
LSSAR_DEVICE void CopyAsync16(void* shared, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)),
               "l"(from), "r"(valid ? 16 : 0)
               : "memory");
}
// The same for 4 bytes.
LSSAR_DEVICE void CopyAsync4(void* shared, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(SharedAddress(shared)),
               "l"(from), "r"(valid ? 4 : 0)
               : "memory");
}
// Makes a group of the thread's copies since the last call.
LSSAR_DEVICE void CpAsyncCommitGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the kPending most recent groups of the thread are in flight.
template <int kPending>
LSSAR_DEVICE void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Barriers that count arrivals and bytes (mbarrier), and bulk copies that complete on them: sm_90.

LSSAR_DEVICE void InitBarrier(uint64_t* barrier, int num_arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(num_arrivals)
               : "memory");
#else
  __trap();
#endif
}

// Makes InitBarrier visible to the copy engine. Called once, by the thread that initialised.
LSSAR_DEVICE void FenceBarrierInit() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// The barrier's current phase expects num_bytes more.
LSSAR_DEVICE void ExpectBytes(uint64_t* barrier, unsigned num_bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(num_bytes)
      : "memory");
#endif
}

LSSAR_DEVICE void Arrive(uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
#endif
}

// Requires  both addresses and num_bytes multiples of 16; num_bytes expected by `barrier`
LSSAR_DEVICE void BulkCopy(void* shared, const void* from, unsigned num_bytes, uint64_t* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(shared)),
      "l"(from), "r"(num_bytes), "r"(SharedAddress(barrier))
      : "memory");
#endif
}

LSSAR_DEVICE void WaitForBarrier(uint64_t* barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
#endif
}

// ---- MMA: a warp adds A [16][16] times B [16][8] to C [16][8]. Thread t holds, of
//   A  a[0] row t/4, columns 2(t%4), +1;  a[1] row + 8;  a[2] column + 8;  a[3] row + 8, column + 8
//   B  b[0] rows 2(t%4), +1, column t/4;  b[1] row + 8
//   C  c[0], c[1] row t/4, columns 2(t%4), +1;  c[2], c[3] row + 8
// two elements of 16 bits to a register, the first in its low half.

LSSAR_DEVICE void MmaF16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

LSSAR_DEVICE void MmaBf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The same of bytes and int32, which is exact: A [16][32] signed, B [32][8] unsigned. A register
// holds four elements: a[0] columns 4(t%4) to +3, a[2] column + 16; b[0] rows 4(t%4) to +3, b[1]
// row + 16.
LSSAR_DEVICE void MmaBytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four 8 x 8 matrices of 16-bit elements, transposed. Lane l passes the address of row l % 8
// of matrix l / 8, 16 bytes in shared memory. Thread t gets rows 2(t%4), +1 of column t/4 of each:
// matrices 0 and 1 are one B operand above, matrices 2 and 3 another.
LSSAR_DEVICE void LoadTransposed(unsigned (&b)[2][2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(b[0][0]), "=r"(b[0][1]), "=r"(b[1][0]), "=r"(b[1][1])
               : "r"(SharedAddress(row))
               : "memory");
}

// ---- Arithmetic. Only MulAdd contracts a product and a sum (-fmad=false): a row must have the
// same bits in every kernel that computes it.

LSSAR_DEVICE float MulAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
LSSAR_DEVICE double MulAdd(double a, double b, double c) { return __fma_rn(a, b, c); }
// Within 2 ULP.
LSSAR_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Within 2^-22 for x in [0.5, 2], within 3 ULP elsewhere. A subnormal x counts as 0.
LSSAR_DEVICE float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / sqrt(x), within 2^-22 of itself, for a normal x.
LSSAR_DEVICE float InverseRoot(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LSSAR_DEVICE float FloatOfBits(unsigned bits) { return __uint_as_float(bits); }
LSSAR_DEVICE unsigned BitsOfFloat(float x) { return __float_as_uint(x); }

LSSAR_DEVICE float FloatFromF16(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
LSSAR_DEVICE uint16_t F16FromFloat(float x) { return __half_as_ushort(__float2half_rn(x)); }
// Both as fp16, `low` in the low half.
LSSAR_DEVICE unsigned F16Pair(float low, float high) {
  unsigned pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Four int8 as two pairs of fp16, exactly: x + 1152 is an fp16 whose low byte is x + 128.
LSSAR_DEVICE void F16FromI8(unsigned bytes, unsigned& first, unsigned& second) {
  const unsigned offset = bytes ^ 0x80808080u;
  asm("{\n"
      ".reg .b32 low, high;\n"
      "prmt.b32 low, %2, %3, 0x4140;\n"
      "prmt.b32 high, %2, %3, 0x4342;\n"
      "sub.f16x2 %0, low, %4;\n"
      "sub.f16x2 %1, high, %4;\n"
      "}"
      : "=&r"(first), "=&r"(second)  // `first` is written before the last input is read
      : "r"(offset), "r"(0x64646464u), "r"(0x64806480u));
}
LSSAR_DEVICE float FloatFromBf16(uint16_t bits) { return __uint_as_float(unsigned(bits) << 16); }
LSSAR_DEVICE uint16_t Bf16FromFloat(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

// ++*count if `condition`: one instruction, where the compiler makes two.
LSSAR_DEVICE void AddIf(bool condition, int* count) {
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.s32 p, %1, 0;\n"
      "@p add.s32 %0, %0, 1;\n"
      "}"
      : "+r"(*count)
      : "r"(int(condition)));
}

LSSAR_DEVICE int CountBits(unsigned bits) { return __popc(bits); }
LSSAR_DEVICE int LowestBit(unsigned bits) { return __ffs(int(bits)) - 1; }

}  // namespace lssar::cuda

#endif  // __CUDACC__
#endif  // LSSAR_KERNELS_CUDA_INSTRUCTIONS_CUH_

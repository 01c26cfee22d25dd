// The host version of instructions.cuh, function by function. Contracts are in that file.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_INSTRUCTIONS_H_
#define LSSAR_KERNELS_CUDA_EMULATION_INSTRUCTIONS_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/emulation/stream.h"
#include "kernels/float_bits.h"

#define LSSAR_KERNEL(max_threads) void
#define LSSAR_ARGS(type) const type
#define LSSAR_DEVICE inline
#define LSSAR_DEVICE_CALL inline
#define LSSAR_UNROLL
#define LSSAR_NO_UNROLL
#define LSSAR_UNROLL_BY(count)
// A namespace of its own, because a program may link the device's kernels beside the emulated ones.
#define LSSAR_CUDA_NAMESPACE cuda_emulated

namespace lssar::cuda_emulated {

inline constexpr int kWarpThreads = emulation::kWarpThreads;
inline constexpr bool kHasClusters = true;

inline int ThreadIdx() { return emulation::Here().thread; }
inline int LaneIdx() { return emulation::Here().thread % kWarpThreads; }
inline int WarpIdx() { return emulation::Here().thread / kWarpThreads; }
inline int BlockX() { return emulation::Here().block_x; }
inline int BlockY() { return emulation::Here().block_y; }
inline unsigned char* SharedMemory() { return emulation::Here().shared; }

inline void SyncBlock() { emulation::MeetBlock(); }
inline bool SyncBlockOr(bool condition) { return emulation::MeetBlockOr(condition); }
inline void SyncWarp() {
  emulation::EmulatedSyncWarp([](void* const*) {}, nullptr);
}

inline unsigned Ballot(bool condition) {
  struct Slot {
    bool condition;
    unsigned ballot;
  } slot{condition, 0};
  emulation::EmulatedSyncWarp(
      [](void* const* slots) {
        unsigned ballot = 0;
        for (int lane = 0; lane < kWarpThreads; ++lane) {
          ballot |= unsigned{static_cast<Slot*>(slots[lane])->condition} << lane;
        }
        for (int lane = 0; lane < kWarpThreads; ++lane) {
          static_cast<Slot*>(slots[lane])->ballot = ballot;
        }
      },
      &slot);
  return slot.ballot;
}

template <typename T>
T Shuffle(T value, int lane) {
  struct Slot {
    T value;
    int from;
    T received;
  } slot{value, lane % kWarpThreads, {}};
  emulation::EmulatedSyncWarp(
      [](void* const* slots) {
        for (int to = 0; to < kWarpThreads; ++to) {
          Slot* own = static_cast<Slot*>(slots[to]);
          own->received = static_cast<Slot*>(slots[own->from])->value;
        }
      },
      &slot);
  return slot.received;
}
template <typename T>
T ShuffleXor(T value, int lane_mask) {
  return Shuffle(value, LaneIdx() ^ lane_mask);
}

inline int ClusterRank() { return emulation::Here().cluster_rank; }
inline int ClusterBlocks() { return emulation::Here().cluster_blocks; }
inline void SyncCluster() { emulation::MeetCluster(); }
inline void LeaveCluster() { emulation::MeetCluster(); }
inline void Trap() { std::abort(); }
template <typename T>
const T* InBlock(const T* shared, int rank) {
  return static_cast<const T*>(emulation::InBlock(shared, rank));
}

inline void WaitForPreviousKernel() { emulation::WaitForPrevious(); }

inline void FenceDevice() {}
inline unsigned AtomicAdd(unsigned* address, unsigned value) {
  const unsigned before = *address;
  *address += value;
  return before;
}
inline void AtomicAdd(unsigned long long* address, unsigned long long value) { *address += value; }

inline void AtomicOr(unsigned* address, unsigned bits) { *address |= bits; }

inline void CopyAsync16(void* shared, const void* from, bool valid) {
  emulation::CpAsync(shared, from, 16, valid ? 16 : 0);
}
inline void CopyAsync4(void* shared, const void* from, bool valid) {
  emulation::CpAsync(shared, from, 4, valid ? 4 : 0);
}
inline void CpAsyncCommitGroup() { emulation::CpAsyncCommitGroup(); }
template <int kPending>
void WaitForCopyGroups() {
  emulation::WaitForCopyGroups(kPending);
}

inline void InitBarrier(uint64_t* barrier, int num_arrivals) {
  emulation::InitBarrier(barrier, num_arrivals);
}
inline void FenceBarrierInit() {}
inline void ExpectBytes(uint64_t* barrier, unsigned num_bytes) {
  emulation::ExpectBytes(barrier, num_bytes);
}
inline void Arrive(uint64_t* barrier) { emulation::Arrive(barrier); }
inline void BulkCopy(void* shared, const void* from, unsigned num_bytes, uint64_t* barrier) {
  emulation::CpAsyncBulk(shared, from, num_bytes, barrier);
}
inline void WaitForBarrier(uint64_t* barrier, unsigned parity) {
  emulation::WaitForBarrier(barrier, parity);
}

void MmaF16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
void MmaBf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
void MmaBytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
void LoadTransposed(unsigned (&b)[2][2], const void* row);

inline float MulAdd(float a, float b, float c) { return std::fma(a, b, c); }
inline double MulAdd(double a, double b, double c) { return std::fma(a, b, c); }
inline float Exp2(float x) {
  const float y = std::exp2(x);
  return std::fabs(y) < 0x1p-126f ? 0.0f : y;
}
inline float Log2(float x) { return std::log2(std::fabs(x) < 0x1p-126f ? 0.0f : x); }
inline float InverseRoot(float x) { return float(1.0 / std::sqrt(double(x))); }

inline float FloatOfBits(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned BitsOfFloat(float x) { return std::bit_cast<unsigned>(x); }
using lssar::Bf16FromFloat;
using lssar::F16FromFloat;
using lssar::FloatFromBf16;
using lssar::FloatFromF16;
inline unsigned F16Pair(float low, float high) {
  return unsigned{F16FromFloat(low)} | unsigned{F16FromFloat(high)} << 16;
}

inline void F16FromI8(unsigned bytes, unsigned& first, unsigned& second) {
  const auto element = [&](int i) { return float(int8_t(bytes >> (8 * i))); };
  first = F16Pair(element(0), element(1));
  second = F16Pair(element(2), element(3));
}

inline void AddIf(bool condition, int* count) { *count += condition ? 1 : 0; }
inline int CountBits(unsigned bits) { return std::popcount(bits); }
inline int LowestBit(unsigned bits) { return bits == 0 ? -1 : std::countr_zero(bits); }

}  // namespace lssar::cuda_emulated

#endif  // LSSAR_KERNELS_CUDA_EMULATION_INSTRUCTIONS_H_

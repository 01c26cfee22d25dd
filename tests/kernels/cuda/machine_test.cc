// The emulation of CUDA's execution model: its results, and that it detects faults that a GPU may
// not show.
#include "kernels/cuda/emulation/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/emulation/instructions.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

using namespace cuda_emulated;  // NOLINT: the names of a kernel's instructions

int* SharedInts() { return reinterpret_cast<int*>(SharedMemory()); }

// Each thread passes its number to its neighbour through shared memory.
std::vector<int> PassToNeighbour(bool with_barrier) {
  constexpr int kThreads = 96;
  std::vector<int> received(kThreads);
  emulation::Run({.num_threads = kThreads, .shared_bytes = kThreads * sizeof(int)}, [&] {
    SharedInts()[ThreadIdx()] = ThreadIdx();
    if (with_barrier) SyncBlock();
    received[size_t(ThreadIdx())] = SharedInts()[(ThreadIdx() + 1) % kThreads];
  });
  return received;
}

TEST(MachineTest, BarrierOrdersSharedMemory) {
  const std::vector<int> received = PassToNeighbour(true);
  for (size_t i = 0; i < received.size(); ++i) {
    ASSERT_EQ(received[i], int((i + 1) % received.size()));
  }
}

TEST(MachineTest, MissingBarrierIsDetected) {
  const std::vector<int> received = PassToNeighbour(false);
  EXPECT_NE(std::count(received.begin(), received.end(), -1), 0);
}

TEST(MachineTest, CopyArrivesOnlyWhenWaitedFor) {
  alignas(16) const int source[4] = {1, 2, 3, 4};
  int before = 0, after = 0, zeroed = 1;
  emulation::Run({.num_threads = 1, .shared_bytes = 32}, [&] {
    CopyAsync16(SharedMemory(), source, true);
    CopyAsync16(SharedMemory() + 16, source, false);
    CpAsyncCommitGroup();
    before = SharedInts()[2];
    WaitForCopyGroups<0>();
    after = SharedInts()[2];
    zeroed = SharedInts()[6];
  });
  EXPECT_EQ(before, -1);
  EXPECT_EQ(after, 3);
  EXPECT_EQ(zeroed, 0);
}

// Two stages of one buffer by bulk copies, one barrier phase each.
TEST(MachineTest, BulkCopiesCompleteOnTheirBarrier) {
  alignas(16) const int source[8] = {10, 11, 12, 13, 20, 21, 22, 23};
  int sum = 0;
  emulation::Run({.num_threads = 32, .shared_bytes = 64}, [&] {
    uint64_t* const barrier = reinterpret_cast<uint64_t*>(SharedMemory() + 32);
    if (LaneIdx() == 0) InitBarrier(barrier, 1);
    SyncWarp();
    for (unsigned phase = 0; phase < 2; ++phase) {
      if (LaneIdx() == 0) {
        ExpectBytes(barrier, 16);
        BulkCopy(SharedMemory(), source + 4 * phase, 16, barrier);
        Arrive(barrier);
      }
      WaitForBarrier(barrier, phase);
      SyncWarp();
      if (LaneIdx() == 31) sum += SharedInts()[3];
      SyncWarp();
    }
  });
  EXPECT_EQ(sum, 13 + 23);
}

TEST(MachineTest, BlocksOfAClusterReadSharedMemoryOfEachOther) {
  std::vector<int> received(4 * 32);
  emulation::Run({.num_blocks_x = 4, .num_threads = 32, .cluster_blocks = 2, .shared_bytes = 128},
                 [&] {
                   SharedInts()[ThreadIdx()] = 100 * BlockX() + ThreadIdx();
                   SyncCluster();
                   received[size_t(BlockX() * 32 + ThreadIdx())] =
                       *InBlock(SharedInts() + ThreadIdx(), 1 - ClusterRank());
                   SyncCluster();
                 });
  EXPECT_EQ(received[5], 105);
  EXPECT_EQ(received[32 + 5], 5);
  EXPECT_EQ(received[2 * 32 + 5], 305);
}

// As in a kernel without the last SyncCluster.
TEST(MachineTest, SharedMemoryIsPoisonedWhenABlockEnds) {
  int received = 1;
  emulation::Run({.num_blocks_x = 2, .num_threads = 2, .cluster_blocks = 2, .shared_bytes = 128},
                 [&] {
                   SharedInts()[0] = 1;
                   SyncCluster();
                   if (ClusterRank() == 0) return;
                   SyncBlock();  // block 0 runs to its end meanwhile
                   received = *InBlock(SharedInts(), 0);
                 });
  EXPECT_EQ(received, -1);
}

TEST(MachineTest, WarpsShuffleAndVote) {
  std::vector<int> sums(64), ballots(64);
  emulation::Run({.num_threads = 64}, [&] {
    int sum = ThreadIdx();
    for (int mask = 1; mask < 32; mask *= 2) sum += ShuffleXor(sum, mask);
    sums[size_t(ThreadIdx())] = sum;
    ballots[size_t(ThreadIdx())] = int(Ballot(LaneIdx() < 3));
  });
  EXPECT_EQ(sums[0], 31 * 16);
  EXPECT_EQ(sums[63], 31 * 16 + 32 * 32);
  EXPECT_EQ(ballots[40], 7);
}

// Two MMAs with operands in their layouts, both B loaded by one LoadTransposed.
TEST(MachineTest, MmaMultipliesMatrices) {
  const std::vector<float> a = RandomFloats(16 * 16, 1), b = RandomFloats(16 * 16, 2);
  const auto a_at = [&](int row, int col) { return F16FromFloat(a[size_t(row * 16 + col)]); };
  std::vector<float> product(16 * 16);
  emulation::Run({.num_threads = 32, .shared_bytes = 16 * 32}, [&] {
    uint16_t* const rows = reinterpret_cast<uint16_t*>(SharedMemory());  // [16][16]
    for (int i = LaneIdx(); i < 256; i += 32) rows[i] = F16FromFloat(b[size_t(i)]);
    SyncWarp();
    const int row = LaneIdx() / 4, col = LaneIdx() % 4 * 2;
    const auto pair = [&](int r, int c) {
      return unsigned{a_at(r, c)} | unsigned{a_at(r, c + 1)} << 16;
    };
    const unsigned a_of[4] = {pair(row, col), pair(row + 8, col), pair(row, col + 8),
                              pair(row + 8, col + 8)};
    unsigned b_of[2][2];  // columns 0 to 7, and 8 to 15
    LoadTransposed(b_of, rows + LaneIdx() % 16 * 16 + LaneIdx() / 16 * 8);
    for (int half = 0; half < 2; ++half) {
      float c[4] = {};
      MmaF16(c, a_of, b_of[half]);
      for (int i = 0; i < 4; ++i) {
        product[size_t((row + i / 2 * 8) * 16 + half * 8 + col + i % 2)] = c[i];
      }
    }
  });
  for (int row = 0; row < 16; ++row) {
    for (int col = 0; col < 16; ++col) {
      double want = 0;
      for (int k = 0; k < 16; ++k) {
        want += double{FloatFromF16(a_at(row, k))} *
                double{FloatFromF16(F16FromFloat(b[size_t(k * 16 + col)]))};
      }
      ASSERT_NEAR(double{product[size_t(row * 16 + col)]}, want, 1e-6 * (1 + std::fabs(want)));
    }
  }
}

TEST(MachineDeathTest, DetectsDeadlocksAndInvalidAccesses) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const LaunchShape shape{.num_threads = 64, .shared_bytes = 64};
  EXPECT_DEATH(emulation::Run(shape,
                              [] {
                                if (ThreadIdx() < 32) SyncBlock();
                              }),
               "wait for each other");
  EXPECT_DEATH(emulation::Run(shape,
                              [] {
                                if (LaneIdx() != 5) Ballot(true);
                              }),
               "wait for each other");
  EXPECT_DEATH(emulation::Run(shape, [] { LaneIdx() < 5 ? SyncWarp() : void(Ballot(true)); }),
               "different instructions");
  EXPECT_DEATH(emulation::Run(shape, [] { CopyAsync16(SharedMemory() + 8, nullptr, false); }),
               "not aligned");
  EXPECT_DEATH(emulation::Run(shape, [] { CopyAsync16(SharedMemory() + 64, nullptr, false); }),
               "not in the block's shared memory");
  EXPECT_DEATH(emulation::Run(shape, [] { CopyAsync16(SharedMemory(), nullptr, false); }),
               "before its copies have arrived");
  EXPECT_DEATH(emulation::Run(shape, [] { InBlock(SharedMemory(), 1); }), "no such block");
}

TEST(MachineTest, RefusesLaunchesAboveTheLimits) {
  EXPECT_TRUE(emulation::ShapeFits({.num_threads = 1024, .shared_bytes = 227 * 1024}));
  EXPECT_FALSE(emulation::ShapeFits({.num_threads = 1025}));
  EXPECT_FALSE(emulation::ShapeFits({.num_threads = 32, .shared_bytes = 227 * 1024 + 1}));
  EXPECT_FALSE(emulation::ShapeFits({.num_blocks_x = 12, .num_threads = 32, .cluster_blocks = 16}));
  EXPECT_FALSE(emulation::ShapeFits({.num_blocks_x = 3, .num_threads = 32, .cluster_blocks = 2}));
  EXPECT_FALSE(emulation::ShapeFits({.num_blocks_y = 65536, .num_threads = 32}));
}

}  // namespace
}  // namespace lssar

// The machine that runs a kernel's PTX: clusters of blocks of warps of 32 lanes, each lane with its
// own program counter, shared memory with a race check, asynchronous copies and barriers.
//
// What hardware leaves open is chosen adversely: registers and shared memory start poisoned, a
// copy arrives when it is waited for or, by seed, at once, and warps take turns in random order.
#ifndef LSSAR_TESTS_PTX_MACHINE_H_
#define LSSAR_TESTS_PTX_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/cuda/launch_shape.h"
#include "tests/ptx/program.h"

namespace lssar::ptx {

inline constexpr int kLanes = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFF;

// Generic addresses: the space in the top bits, of shared memory the block's rank below it.
inline constexpr uint64_t kSpaceMask = 0xFFFFull << 48;
inline constexpr uint64_t kSharedSpace = 0xA000ull << 48;
inline constexpr uint64_t kLocalSpace = 0xB000ull << 48;
inline constexpr uint64_t kParamSpace = 0xC000ull << 48;

struct Counts {
  int64_t instructions = 0;  // of warps
  int64_t mmas = 0;
  int64_t calls = 0;           // of functions: AttendFlat, once for each flat row
  int64_t shared_waves = 0;    // passes of the shared memory's banks; with Options::counts_memory
  int64_t global_sectors = 0;  // of 32 bytes

  void Add(const Counts& other);
  std::string Text() const;  // "1200 warp instructions, 16 MMAs, 0 flat rows"
};

struct Options {
  uint64_t seed = 0;  // 0: warps in turn, copies as late as possible; otherwise random
  bool checks_races = true;
  bool counts_memory = false;
  // Tensor cores: products aligned to the largest and truncated, as an H100 seems to do, rather
  // than an exact sum that is truncated.
  bool aligns_products = false;
  // 0: ex2, lg2 and rsqrt are rounded exactly, as in the emulation. Otherwise they err by up to
  // 2 ULP, everywhere but at ex2(0), lg2(1) and rsqrt(1): an H200 has lg2(0.5) = -0.9999999.
  uint64_t approximation_seed = 0;
};

// A copy to shared memory that has not arrived.
struct Copy {
  uint32_t to = 0;
  uint64_t from = 0;
  uint32_t num_bytes = 0;
  uint32_t valid_bytes = 0;  // the rest becomes zero
};

struct ByteBarrier {  // mbarrier
  int count = 0;
  int pending = 0;
  int64_t bytes = 0;  // expected and not arrived
  uint32_t phase = 0;
  std::vector<Copy> copies;  // not arrived
};

// Who touched a word of shared memory last, and when: the number of barriers passed until then.
struct Access {
  uint32_t thread = ~0u;
  uint32_t block_epoch = 0, warp_epoch = 0, cluster_epoch = 0;
  bool IsNone() const { return thread == ~0u; }
};

struct SharedWord {
  Access written;
  Access read[2];
  Access atomic[2];                      // since it was written
  Access read_by_other_block;            // of the cluster; the last one
  const ByteBarrier* barrier = nullptr;  // of the bulk copy that wrote it
  uint32_t barrier_phase = 0;
};

enum class LaneState : uint8_t { kRunning, kAtCollective, kAtBarrier, kAtCluster, kEnded };

struct Block;
struct Machine;

struct Warp {
  const Kernel* kernel = nullptr;
  Block* block = nullptr;
  Machine* machine = nullptr;
  int idx = 0;
  std::vector<uint64_t> registers;  // [slot][lane]
  uint32_t pc[kLanes] = {};
  LaneState state[kLanes] = {};
  uint32_t ended = 0;  // lanes
  uint32_t cluster_phase[kLanes] = {};
  std::vector<uint32_t> stack[kLanes];  // return addresses
  std::vector<uint8_t> local;           // [lane][local_bytes]
  std::vector<Copy> open_group[kLanes];
  std::deque<std::vector<Copy>> groups[kLanes];
  std::map<const ByteBarrier*, uint32_t> seen[kLanes];  // phases waited for
  uint32_t epoch = 0;                                   // warp barriers passed
  bool has_waited = false;                              // griddepcontrol.wait
  int num_retries = 0;

  uint64_t* Register(int slot) { return &registers[size_t(slot) * kLanes]; }
  uint32_t Thread(int lane) const { return uint32_t(idx * kLanes + lane); }
};

struct Cluster;

struct Block {
  Cluster* cluster = nullptr;
  int x = 0, y = 0, rank = 0;
  std::vector<uint8_t> shared;  // from address 0; the first kSharedBase bytes are not used
  std::vector<SharedWord> words;
  std::vector<std::unique_ptr<Warp>> warps;
  std::map<uint32_t, ByteBarrier> barriers;  // by address
  uint32_t epoch = 0;                        // block barriers passed
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  const uint8_t* params = nullptr;
  uint32_t phase = 0;
  uint32_t num_arrived = 0;  // threads
};

struct Machine {
  Options options;
  Counts counts;
  std::minstd_rand random;
  std::set<std::string> races;  // a line for each place in a kernel
  int64_t num_races = 0;

  // Runs all blocks. Throws Fault: a deadlock, an address out of bounds or not aligned, a
  // collective that some lanes miss, a thread that ends with copies in flight, a warp that does not
  // wait for the kernel before where the shape overlaps it.
  // args: [num_bytes], as the kernel's parameter
  void Run(const Kernel& kernel, const LaunchShape& shape, const void* args, size_t num_bytes,
           bool must_wait);
  // Whether a copy that starts now arrives only when it is waited for.
  bool IsLate() { return options.seed == 0 || random() % 2 == 0; }
};

// ---- For operations

[[noreturn]] void Fail(const Instruction& in, const std::string& what);

// A place in memory. block: of shared memory, null otherwise.
struct Place {
  uint8_t* bytes = nullptr;
  Block* block = nullptr;
  uint32_t at = 0;
};
Place ResolveTagged(Warp& warp, int lane, uint64_t address, Space space, int num_bytes,
                    const Instruction& in);
// Checks bounds of shared memory, and alignment to num_bytes, a power of two.
inline Place Resolve(Warp& warp, int lane, uint64_t address, Space space, int num_bytes,
                     const Instruction& in) {
  if ((address & uint64_t(num_bytes - 1)) != 0) Fail(in, "an address that is not aligned");
  if (space == Space::kGlobal) return {reinterpret_cast<uint8_t*>(address)};
  return ResolveTagged(warp, lane, address, space, num_bytes, in);
}
uint8_t* SharedBytes(Block& block, uint64_t address, int num_bytes, const Instruction& in);
void NoteRead(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
              int num_bytes);
void NoteWrite(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
               int num_bytes, const ByteBarrier* barrier = nullptr);
// Atomic operations are ordered among themselves alone.
void NoteAtomic(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
                int num_bytes);
void CountMemory(Warp& warp, const Instruction& in, uint32_t lanes, const uint64_t* addresses,
                 int num_bytes, Space space);

}  // namespace lssar::ptx

#endif  // LSSAR_TESTS_PTX_MACHINE_H_

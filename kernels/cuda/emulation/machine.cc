#include "kernels/cuda/emulation/machine.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace lssar::emulation {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
// Stacks begin this much apart modulo their size, each in other sets of the host's caches: threads
// of a warp run the same code, so they use the same depths of their stacks.
constexpr size_t kStackShiftBytes = 1088;
constexpr size_t kStackShifts = 64;

// Fills shared memory before a block starts and after it ends: a NaN in fp32, fp16 and bf16.
constexpr int kGarbage = 0xFF;

struct Copy {
  void* to;
  const void* from;
  size_t num_bytes;
  size_t valid_bytes;

  void Do() const {
    std::memcpy(to, from, valid_bytes);
    std::memset(static_cast<char*>(to) + valid_bytes, 0, num_bytes - valid_bytes);
  }
};

struct Barrier {
  int num_arrivals = 0;  // of a phase
  int pending_arrivals = 0;
  int64_t pending_bytes = 0;
  unsigned phase = 0;
  std::vector<Copy> copies;
};

struct Fiber;

// The threads that wait at one barrier.
struct Rendezvous {
  size_t num_expected = 0;
  std::vector<Fiber*> waiting;
};

struct Warp {
  void* slots[kWarpThreads] = {};
  WarpAction act = nullptr;
  Rendezvous meeting;
};

struct Block {
  std::unique_ptr<unsigned char[]> shared;
  size_t shared_bytes = 0;
  Rendezvous meeting;
  bool any = false;        // of the current MeetBlockOr
  bool any_last = false;   // of the previous one
  size_t num_running = 0;  // threads
  std::map<const uint64_t*, Barrier> barriers;
  std::vector<Warp> warps;
};

// Saved registers of a fiber, for the compiler's own setjmp: longjmp of the C library and of the
// sanitizers reject a jump to another stack.
using Registers = void* [5];

[[noreturn, gnu::noinline, gnu::no_sanitize_address]] void JumpTo(Registers& registers) {
  __builtin_longjmp(registers, 1);
}

// Runs one thread of each cluster, cluster after cluster: it never ends.
struct Fiber {
  Registers registers;
  ucontext_t first_entry;
  void* stack = nullptr;
  size_t stack_bytes = 0;
  bool entered = false;     // for the first time
  bool done = false;        // the thread of the current cluster
  bool has_waited = false;  // for the kernel before
  Place place;
  Block* block = nullptr;
  Warp* warp = nullptr;
  std::deque<std::vector<Copy>> copy_groups;
  std::vector<Copy> open_group;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

[[noreturn]] void Fail(const char* what, const Place& at) {
  std::fprintf(stderr, "emulated kernel: %s (block %d, %d thread %d)\n", what, at.block_x,
               at.block_y, at.thread);
  std::abort();
}

// Threads that can run, in order. Each is in it at most once.
class ReadyQueue {
 public:
  // Empties the queue.
  void Reserve(size_t num_fibers) {
    fibers_.resize(std::bit_ceil(num_fibers));
    first_ = end_ = 0;
  }
  size_t Size() const { return end_ - first_; }
  Fiber*& At(size_t i) { return fibers_[(first_ + i) & (fibers_.size() - 1)]; }
  void Push(Fiber* fiber) { fibers_[end_++ & (fibers_.size() - 1)] = fiber; }
  void PushFirst(Fiber* fiber) { fibers_[--first_ & (fibers_.size() - 1)] = fiber; }
  Fiber* Pop() { return fibers_[first_++ & (fibers_.size() - 1)]; }

 private:
  std::vector<Fiber*> fibers_;
  size_t first_ = 0, end_ = 0;
};

class Machine {
 public:
  void Run(const LaunchShape& shape, const std::function<void()>& kernel) {
    LSSAR_CHECK(ShapeFits(shape) && current_ == nullptr);
    kernel_ = &kernel;
    overlaps_previous_ = shape.overlaps_previous;
    for (int y = 0; y < shape.num_blocks_y; ++y) {
      for (int x = 0; x < shape.num_blocks_x; x += shape.cluster_blocks) RunCluster(shape, x, y);
    }
    kernel_ = nullptr;
  }

  Fiber& Current() { return *current_; }

  void Meet(Rendezvous& meeting) {
    if (meeting.waiting.size() + 1 == meeting.num_expected) {
      // Before all others: a warp runs as far as it can.
      for (size_t i = meeting.waiting.size(); i-- > 0;) ready_.PushFirst(meeting.waiting[i]);
      meeting.waiting.clear();
      return;
    }
    meeting.waiting.push_back(current_);
    SwitchToNext();
  }

  // Runs other threads.
  void Yield() {
    ready_.Push(current_);
    SwitchToNext();
  }

  Rendezvous& ClusterRendezvous() { return cluster_meeting_; }
  Block& BlockOfRank(int rank) { return blocks_[size_t(rank)]; }

  // Runs on each fiber: one thread after the other.
  [[noreturn]] void RunThreads() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &outer_stack_, &outer_stack_bytes_);
#endif
    for (;;) {
      RunThread();
      SwitchToNext();  // returns in the next cluster
    }
  }

 private:
  void RunThread() {
    (*kernel_)();
    Fiber& self = *current_;
    if (!self.open_group.empty() || !self.copy_groups.empty()) {
      Fail("a thread ends before its copies have arrived", self.place);
    }
    if (overlaps_previous_ && !self.has_waited) {
      Fail("a thread ends without having waited for the kernel before", self.place);
    }
    self.done = true;
    // A GPU gives the memory to the next block.
    if (--self.block->num_running == 0) {
      std::memset(self.block->shared.get(), kGarbage, self.block->shared_bytes);
    }
  }

  void RunCluster(const LaunchShape& shape, int first_block_x, int block_y) {
    const size_t num_blocks = size_t(shape.cluster_blocks);
    const size_t num_threads = size_t(shape.num_threads);
    blocks_ = std::vector<Block>(num_blocks);
    while (fibers_.size() < num_blocks * num_threads) fibers_.push_back(MakeFiber(fibers_.size()));
    cluster_meeting_ = {.num_expected = num_blocks * num_threads, .waiting = {}};
    ready_.Reserve(num_blocks * num_threads);
    for (size_t b = 0; b < num_blocks; ++b) {
      Block& block = blocks_[b];
      block.shared.reset(new unsigned char[shape.shared_bytes]);
      block.shared_bytes = shape.shared_bytes;
      std::memset(block.shared.get(), kGarbage, shape.shared_bytes);
      block.meeting.num_expected = num_threads;
      block.num_running = num_threads;
      block.warps.resize((num_threads + kWarpThreads - 1) / kWarpThreads);
      for (size_t t = 0; t < num_threads; ++t) {
        Fiber& fiber = *fibers_[b * num_threads + t];
        fiber.done = fiber.has_waited = false;
        fiber.place = {.thread = int(t),
                       .block_x = first_block_x + int(b),
                       .block_y = block_y,
                       .cluster_rank = int(b),
                       .cluster_blocks = shape.cluster_blocks,
                       .shared = block.shared.get()};
        fiber.block = &block;
        fiber.warp = &block.warps[t / kWarpThreads];
        ++fiber.warp->meeting.num_expected;
        ready_.Push(&fiber);
      }
    }
    if (__builtin_setjmp(outer_) == 0) SwitchToNext();
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(outer_fake_stack_, nullptr, nullptr);
#endif
    current_ = nullptr;
    for (size_t i = 0; i < num_blocks * num_threads; ++i) {
      if (!fibers_[i]->done)
        Fail("threads wait for each other, or for one that has ended", fibers_[i]->place);
    }
  }

  static std::unique_ptr<Fiber> MakeFiber(size_t fiber_idx) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LSSAR_CHECK(fiber->stack != MAP_FAILED);
    fiber->stack_bytes = kStackBytes - fiber_idx % kStackShifts * kStackShiftBytes;
    return fiber;
  }

  // Not inlined: a jump would clobber local variables.
  [[gnu::noinline]] Fiber* TakeReady() {
    if (ready_.Size() == 0) return nullptr;
    Fiber* const next = ready_.Pop();
    // Stacks of a large block do not fit in the host's first caches.
    if (ready_.Size() > 2) {
      __builtin_prefetch(ready_.At(2)->registers);
      const char* const stack = static_cast<const char*>(ready_.At(1)->registers[2]);
      for (int i = 0; i < 4; ++i) __builtin_prefetch(stack + 64 * i);
    }
    return next;
  }

  // Switches from the current thread, or the caller of Run, to the next ready thread, or to the
  // caller of Run if none is ready. Not sanitized: a frame that never returns would leave its red
  // zones on the stack.
  [[gnu::no_sanitize_address]] void SwitchToNext() {
    Fiber* const from = current_;
    Fiber* const to = TakeReady();
    if (from == to) return;
    if (from != nullptr && __builtin_setjmp(from->registers) != 0) {
#if defined(__SANITIZE_ADDRESS__)
      __sanitizer_finish_switch_fiber(current_->fake_stack, nullptr, nullptr);
#endif
      return;
    }
    current_ = to;
    current_place = to == nullptr ? nullptr : &to->place;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(from == nullptr ? &outer_fake_stack_ : &from->fake_stack,
                                   to != nullptr ? to->stack : outer_stack_,
                                   to != nullptr ? to->stack_bytes : outer_stack_bytes_);
#endif
    if (to == nullptr) JumpTo(outer_);
    if (to->entered) JumpTo(to->registers);
    to->entered = true;
    getcontext(&to->first_entry);
    to->first_entry.uc_stack = {.ss_sp = to->stack, .ss_flags = 0, .ss_size = to->stack_bytes};
    to->first_entry.uc_link = nullptr;
    makecontext(&to->first_entry, &Machine::Enter, 0);
    setcontext(&to->first_entry);
  }

  static void Enter();

  const std::function<void()>* kernel_ = nullptr;
  bool overlaps_previous_ = false;
  std::vector<Block> blocks_;  // of the cluster that runs
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Rendezvous cluster_meeting_;
  ReadyQueue ready_;
  Fiber* current_ = nullptr;
  Registers outer_;
#if defined(__SANITIZE_ADDRESS__)
  void* outer_fake_stack_ = nullptr;
  const void* outer_stack_ = nullptr;
  size_t outer_stack_bytes_ = 0;
#endif
};

Machine& TheMachine() {
  static Machine* machine = new Machine;  // fibers' stacks live as long as the process
  return *machine;
}

void Machine::Enter() { TheMachine().RunThreads(); }

Barrier& Find(uint64_t* barrier) {
  Fiber& self = TheMachine().Current();
  const auto found = self.block->barriers.find(barrier);
  if (found == self.block->barriers.end()) Fail("a barrier was never initialised", self.place);
  return found->second;
}

void CompletePhase(Barrier& barrier) {
  if (barrier.pending_arrivals > 0 || barrier.pending_bytes != 0) return;
  barrier.pending_arrivals = barrier.num_arrivals;
  ++barrier.phase;
}

// Copies of 4 bytes are aligned to 4 bytes, others to 16.
void RequireAligned(const void* to, const void* from, size_t num_bytes) {
  const uintptr_t bits =
      reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | num_bytes;
  if (bits % (num_bytes == 4 ? 4 : 16) != 0) {
    Fail("an asynchronous copy is not aligned to 16 bytes, or to its 4", Here());
  }
}

void RequireShared(const void* address, size_t num_bytes) {
  const Block& block = *TheMachine().Current().block;
  const unsigned char* first = static_cast<const unsigned char*>(address);
  if (first < block.shared.get() || first + num_bytes > block.shared.get() + block.shared_bytes) {
    Fail("an address is not in the block's shared memory", Here());
  }
}

}  // namespace

const Place* current_place = nullptr;

namespace {
KernelRunner kernel_runner = nullptr;
}  // namespace

void SetKernelRunner(KernelRunner runner) { kernel_runner = runner; }

bool RunByRunner(const void* kernel, const LaunchShape& shape, const void* args, size_t num_bytes) {
  return kernel_runner != nullptr && kernel_runner(kernel, shape, args, num_bytes);
}

bool ShapeFits(const LaunchShape& shape, size_t max_shared_bytes) {
  return shape.num_blocks_x >= 1 && shape.num_blocks_y >= 1 && shape.num_blocks_y <= 65535 &&
         shape.num_threads >= 1 && shape.num_threads <= kMaxThreads && shape.cluster_blocks >= 1 &&
         shape.cluster_blocks <= kMaxClusterBlocks &&
         shape.num_blocks_x % shape.cluster_blocks == 0 && shape.shared_bytes <= max_shared_bytes;
}

void Run(const LaunchShape& shape, const std::function<void()>& kernel) {
  TheMachine().Run(shape, kernel);
}

void EmulatedSyncWarp(WarpAction act, void* slot) {
  Machine& machine = TheMachine();
  Fiber& self = machine.Current();
  Warp& warp = *self.warp;
  if (warp.meeting.num_expected != kWarpThreads) Fail("a warp is not whole", self.place);
  if (warp.meeting.waiting.empty()) warp.act = act;
  if (warp.act != act) Fail("a warp's threads are at different instructions", self.place);
  warp.slots[self.place.thread % kWarpThreads] = slot;
  if (warp.meeting.waiting.size() + 1 == warp.meeting.num_expected) act(warp.slots);
  machine.Meet(warp.meeting);
}

void MeetBlock() {
  Machine& machine = TheMachine();
  machine.Meet(machine.Current().block->meeting);
}

bool MeetBlockOr(bool condition) {
  Machine& machine = TheMachine();
  Block& block = *machine.Current().block;
  block.any |= condition;
  if (block.meeting.waiting.size() + 1 == block.meeting.num_expected) {
    block.any_last = block.any;
    block.any = false;
  }
  machine.Meet(block.meeting);
  return block.any_last;
}

void MeetCluster() {
  Machine& machine = TheMachine();
  machine.Meet(machine.ClusterRendezvous());
}

void* InBlock(const void* address, int cluster_rank) {
  RequireShared(address, 0);
  Machine& machine = TheMachine();
  const Place& here = machine.Current().place;
  if (cluster_rank < 0 || cluster_rank >= here.cluster_blocks) Fail("no such block", here);
  return machine.BlockOfRank(cluster_rank).shared.get() +
         (static_cast<const unsigned char*>(address) - here.shared);
}

void CpAsync(void* to, const void* from, size_t num_bytes, size_t valid_bytes) {
  RequireAligned(to, from, num_bytes);
  RequireShared(to, num_bytes);
  TheMachine().Current().open_group.push_back({to, from, num_bytes, valid_bytes});
}

void CpAsyncCommitGroup() {
  Fiber& self = TheMachine().Current();
  self.copy_groups.push_back(std::move(self.open_group));
  self.open_group.clear();
}

void WaitForCopyGroups(int num_pending) {
  Fiber& self = TheMachine().Current();
  while (self.copy_groups.size() > size_t(num_pending)) {
    for (const Copy& copy : self.copy_groups.front()) copy.Do();
    self.copy_groups.pop_front();
  }
}

void WaitForPrevious() { TheMachine().Current().has_waited = true; }

void InitBarrier(uint64_t* barrier, int num_arrivals) {
  RequireShared(barrier, sizeof(*barrier));
  TheMachine().Current().block->barriers[barrier] = {.num_arrivals = num_arrivals,
                                                     .pending_arrivals = num_arrivals,
                                                     .pending_bytes = 0,
                                                     .phase = 0,
                                                     .copies = {}};
}

void ExpectBytes(uint64_t* barrier, size_t num_bytes) {
  Find(barrier).pending_bytes += int64_t(num_bytes);
}

void Arrive(uint64_t* barrier) {
  Barrier& found = Find(barrier);
  if (found.pending_arrivals == 0) Fail("one arrival too many at a barrier", Here());
  --found.pending_arrivals;
  CompletePhase(found);
}

void CpAsyncBulk(void* to, const void* from, size_t num_bytes, uint64_t* barrier) {
  RequireAligned(to, from, num_bytes);
  RequireShared(to, num_bytes);
  Find(barrier).copies.push_back({to, from, num_bytes, num_bytes});
}

void WaitForBarrier(uint64_t* barrier, unsigned parity) {
  Barrier& found = Find(barrier);
  // The phase of this parity is complete when the current one has the other.
  while (found.phase % 2 == parity) {
    for (const Copy& copy : found.copies) {
      copy.Do();
      found.pending_bytes -= int64_t(copy.num_bytes);
    }
    found.copies.clear();
    CompletePhase(found);
    if (found.phase % 2 == parity) TheMachine().Yield();
  }
}

}  // namespace lssar::emulation

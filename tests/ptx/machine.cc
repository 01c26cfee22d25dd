#include "tests/ptx/machine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/str_cat.h"

namespace lssar::ptx {

[[noreturn]] void Fail(const Instruction& in, const std::string& what) {
  throw Fault(what + ": " + in.text);
}

void Counts::Add(const Counts& other) {
  instructions += other.instructions;
  mmas += other.mmas;
  calls += other.calls;
  shared_waves += other.shared_waves;
  global_sectors += other.global_sectors;
}

std::string Counts::Text() const {
  return StrCat(instructions, " warp instructions, ", mmas, " MMAs, ", calls, " flat rows");
}

// ---- Memory

uint8_t* SharedBytes(Block& block, uint64_t address, int num_bytes, const Instruction& in) {
  if (address < kSharedBase || address + uint64_t(num_bytes) > block.shared.size()) {
    Fail(in, StrCat("shared memory at ", address, " of [", kSharedBase, ", ", block.shared.size(),
                    ")"));
  }
  return &block.shared[address];
}

Place ResolveTagged(Warp& warp, int lane, uint64_t address, Space space, int num_bytes,
                    const Instruction& in) {
  Block* block = warp.block;
  if (space == Space::kGeneric) {
    const uint64_t tag = address & kSpaceMask;
    space = Space::kGlobal;
    if (tag == kSharedSpace) {
      block = block->cluster->blocks[address >> 32 & 0xFF].get();
      space = Space::kShared;
    } else if (tag == kLocalSpace) {
      space = Space::kLocal;
    } else if (tag == kParamSpace) {
      space = Space::kParam;
    }
  }
  const uint32_t at = uint32_t(address);
  switch (space) {
    case Space::kShared: return {SharedBytes(*block, at, num_bytes, in), block, at};
    case Space::kLocal: {
      if (at + uint32_t(num_bytes) > uint32_t(warp.kernel->local_bytes)) {
        Fail(in, "an address outside of local memory");
      }
      return {&warp.local[size_t(lane) * size_t(warp.kernel->local_bytes) + at]};
    }
    case Space::kParam: return {const_cast<uint8_t*>(block->cluster->params) + at};
    default: return {reinterpret_cast<uint8_t*>(address)};
  }
}

void CountMemory(Warp& warp, const Instruction& in, uint32_t lanes, const uint64_t* addresses,
                 int num_bytes, Space space) {
  if (!warp.machine->options.counts_memory) return;
  Counts& counts = warp.machine->counts;
  if (space == Space::kGlobal) {
    std::set<uint64_t> sectors;
    for (int lane = 0; lane < kLanes; ++lane) {
      if ((lanes >> lane & 1) != 0) sectors.insert((addresses[lane] + uint64_t(in.offset)) / 32);
    }
    counts.global_sectors += int64_t(sectors.size());
  } else if (space == Space::kShared) {
    // 32 banks of 4 bytes. Wide accesses are served a half or a quarter of the warp at a time.
    const int at_a_time = num_bytes >= 16 ? 8 : num_bytes == 8 ? 16 : 32;
    for (int first = 0; first < kLanes; first += at_a_time) {
      std::set<uint64_t> words[32];
      size_t worst = 0;
      for (int lane = first; lane < first + at_a_time; ++lane) {
        if ((lanes >> lane & 1) == 0) continue;
        for (int byte = 0; byte < num_bytes; byte += 4) {
          const uint64_t word = (addresses[lane] + uint64_t(in.offset + byte)) / 4;
          words[word % 32].insert(word);
          worst = std::max(worst, words[word % 32].size());
        }
      }
      counts.shared_waves += int64_t(worst);
    }
  }
}

// ---- Races. Two accesses of shared memory of which one is a write must be ordered: by the same
// thread, by a barrier of the block or of the cluster between them, or by a barrier of their warp.

namespace {

Access Now(const Warp& warp, int lane) {
  return {warp.Thread(lane), warp.block->epoch, warp.epoch, warp.block->cluster->phase};
}

bool IsOrdered(const Access& before, const Warp& warp, int lane) {
  if (before.IsNone() || before.thread == warp.Thread(lane)) return true;
  if (warp.block->epoch > before.block_epoch) return true;
  return before.thread / kLanes == uint32_t(warp.idx) && warp.epoch > before.warp_epoch;
}

// True if the cluster has passed no barrier since.
bool IsBeforeClusterBarrier(const Access& before, const Block& block) {
  return !before.IsNone() && block.cluster->phase <= before.cluster_epoch;
}

// Two accesses that are not ordered are enough: one that races with any has one of them beside it.
void Remember(const Warp& warp, int lane, Access (&accesses)[2]) {
  accesses[IsOrdered(accesses[0], warp, lane) ? 0 : 1] = Now(warp, lane);
}

void ReportRace(Warp& warp, int lane, const Instruction& in, const Access& before,
                const char* kind) {
  ++warp.machine->num_races;
  warp.machine->races.insert(StrCat(warp.kernel->name, ": ", kind, ", threads ", before.thread,
                                    " and ", warp.Thread(lane), ": ", in.text));
}

}  // namespace

void NoteRead(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
              int num_bytes) {
  if (!warp.machine->options.checks_races) return;
  for (uint32_t i = at / 4; i <= (at + uint32_t(num_bytes) - 1) / 4; ++i) {
    SharedWord& word = block.words[i];
    if (&block != warp.block) {  // of another block of the cluster
      for (const Access& write : {word.written, word.atomic[0], word.atomic[1]}) {
        if (IsBeforeClusterBarrier(write, block)) {
          ReportRace(warp, lane, in, write, "remote read after write");
        }
      }
      word.read_by_other_block = Now(warp, lane);
      continue;
    }
    if (!IsOrdered(word.written, warp, lane)) {
      ReportRace(warp, lane, in, word.written, "read after write");
    }
    for (const Access& atomic : word.atomic) {
      if (!IsOrdered(atomic, warp, lane)) ReportRace(warp, lane, in, atomic, "read after atomic");
    }
    if (word.barrier != nullptr && block.epoch <= word.written.block_epoch) {
      const auto seen = warp.seen[lane].find(word.barrier);
      if (seen == warp.seen[lane].end() || seen->second <= word.barrier_phase) {
        ReportRace(warp, lane, in, word.written, "read of a bulk copy before it was waited for");
      }
    }
    Remember(warp, lane, word.read);
  }
}

void NoteWrite(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
               int num_bytes, const ByteBarrier* barrier) {
  if (!warp.machine->options.checks_races) return;
  if (&block != warp.block) Fail(in, "a write to another block's memory, which is not checked");
  for (uint32_t i = at / 4; i <= (at + uint32_t(num_bytes) - 1) / 4; ++i) {
    SharedWord& word = block.words[i];
    // Neighbours may write the halves of a word.
    if (num_bytes >= 4 && !IsOrdered(word.written, warp, lane)) {
      ReportRace(warp, lane, in, word.written, "write after write");
    }
    for (const Access& read : word.read) {
      if (!IsOrdered(read, warp, lane)) ReportRace(warp, lane, in, read, "write after read");
    }
    for (const Access& atomic : word.atomic) {
      if (!IsOrdered(atomic, warp, lane)) ReportRace(warp, lane, in, atomic, "write after atomic");
    }
    if (IsBeforeClusterBarrier(word.read_by_other_block, block)) {
      ReportRace(warp, lane, in, word.read_by_other_block, "write after remote read");
    }
    word = {.written = Now(warp, lane),
            .read = {},
            .atomic = {},
            .read_by_other_block = {},
            .barrier = barrier,
            .barrier_phase = barrier == nullptr ? 0 : barrier->phase};
  }
}

void NoteAtomic(Warp& warp, int lane, const Instruction& in, Block& block, uint32_t at,
                int num_bytes) {
  if (!warp.machine->options.checks_races) return;
  if (&block != warp.block) Fail(in, "an atomic operation on another block's memory");
  for (uint32_t i = at / 4; i <= (at + uint32_t(num_bytes) - 1) / 4; ++i) {
    SharedWord& word = block.words[i];
    if (!IsOrdered(word.written, warp, lane)) {
      ReportRace(warp, lane, in, word.written, "atomic after write");
    }
    for (const Access& read : word.read) {
      if (!IsOrdered(read, warp, lane)) ReportRace(warp, lane, in, read, "atomic after read");
    }
    if (IsBeforeClusterBarrier(word.read_by_other_block, block)) {
      ReportRace(warp, lane, in, word.read_by_other_block, "atomic after remote read");
    }
    Remember(warp, lane, word.atomic);
  }
}

// ---- Execution

namespace {

// Runs one warp until it waits, or for a number of instructions.
class WarpRun {
 public:
  explicit WarpRun(Warp& warp) : warp_(warp), code_(warp.kernel->code) {}

  // True if the warp got further.
  bool Run(uint64_t budget) {
    while (Choose()) {
      for (is_split_ = false; !is_split_;) {
        if (budget-- == 0) {
          Store(lanes_, pc_);
          return true;
        }
        if (!Step()) return progressed_;
        if (!is_split_ && pc_ >= next_other_) {  // other lanes are there, or behind
          Store(lanes_, pc_);
          is_split_ = true;
        }
      }
    }
    return progressed_;
  }

 private:
  // The running lanes with the lowest place. False: none runs.
  bool Choose() {
    pc_ = next_other_ = ~0u;
    lanes_ = 0;
    for (int l = 0; l < kLanes; ++l) {
      if (warp_.state[l] != LaneState::kRunning) continue;
      if (warp_.pc[l] < pc_) {
        next_other_ = pc_;
        pc_ = warp_.pc[l];
        lanes_ = 1u << l;
      } else if (warp_.pc[l] == pc_) {
        lanes_ |= 1u << l;
      } else {
        next_other_ = std::min(next_other_, warp_.pc[l]);
      }
    }
    return lanes_ != 0;
  }
  void Store(uint32_t lanes, uint32_t pc) {
    for (; lanes != 0; lanes &= lanes - 1) warp_.pc[std::countr_zero(lanes)] = pc;
  }
  void Park(LaneState state) {
    for (uint32_t left = lanes_; left != 0; left &= left - 1) {
      warp_.state[std::countr_zero(left)] = state;
    }
    Store(lanes_, pc_);
    is_split_ = true;
  }

  // False: the warp waits.
  bool Step() {
    const Instruction& in = code_[pc_];
    uint32_t on = lanes_;
    if (in.guard >= 0) {
      const uint64_t* const guard = warp_.Register(in.guard);
      uint32_t is_true = 0;
      for (int l = 0; l < kLanes; ++l) is_true |= uint32_t(guard[l] & 1) << l;
      on &= in.is_guard_negated ? ~is_true : is_true;
    }
    ++warp_.machine->counts.instructions;
    switch (in.flow) {
      case Flow::kNext:
        if (on != 0) in.run(warp_, in, on);
        ++pc_;
        break;
      case Flow::kRetry: {
        in.run(warp_, in, on);
        const uint64_t* const is_done = warp_.Register(in.slots[0]);
        for (uint32_t left = on; left != 0; left &= left - 1) {
          if ((is_done[std::countr_zero(left)] & 1) != 0) continue;
          Store(lanes_, pc_);
          if (++warp_.num_retries > 1000000) Fail(in, "a wait that does not end");
          return false;
        }
        ++pc_;
        break;
      }
      case Flow::kBranch:
        if (on == lanes_) {
          pc_ = uint32_t(in.target);
        } else if (on == 0) {
          ++pc_;
        } else {
          Store(on, uint32_t(in.target));
          Store(lanes_ & ~on, pc_ + 1);
          is_split_ = true;
        }
        break;
      case Flow::kCall:
        if (on != lanes_) Fail(in, "a call by some lanes of those that are here");
        ++warp_.machine->counts.calls;
        for (uint32_t left = on; left != 0; left &= left - 1) {
          warp_.stack[std::countr_zero(left)].push_back(pc_ + 1);
        }
        Store(lanes_, uint32_t(in.target));
        is_split_ = true;
        break;
      case Flow::kReturn: Return(in, on); break;
      case Flow::kCollective: Collect(in, on); break;
      case Flow::kBlockBarrier: Park(LaneState::kAtBarrier); break;
      case Flow::kClusterArrive: {
        Cluster& cluster = *warp_.block->cluster;
        for (uint32_t left = on; left != 0; left &= left - 1) {
          warp_.cluster_phase[std::countr_zero(left)] = cluster.phase;
        }
        cluster.num_arrived += uint32_t(std::popcount(on));
        ++pc_;
        break;
      }
      case Flow::kClusterWait: Park(LaneState::kAtCluster); break;
    }
    progressed_ = true;
    return true;
  }

  void Return(const Instruction& in, uint32_t on) {
    is_split_ = true;
    Store(lanes_ & ~on, pc_ + 1);
    for (uint32_t left = on; left != 0; left &= left - 1) {
      const int lane = std::countr_zero(left);
      std::vector<uint32_t>& stack = warp_.stack[lane];
      if (!stack.empty()) {
        warp_.pc[lane] = stack.back();
        stack.pop_back();
        continue;
      }
      warp_.state[lane] = LaneState::kEnded;
      warp_.ended |= 1u << lane;
      bool has_copies = !warp_.open_group[lane].empty();
      for (const std::vector<Copy>& group : warp_.groups[lane]) has_copies |= !group.empty();
      if (has_copies) Fail(in, "a thread ends with copies in flight");
    }
    // Memory of a block that has ended is not there for its cluster.
    const auto& warps = warp_.block->warps;
    if (std::all_of(warps.begin(), warps.end(),
                    [](const auto& w) { return w->ended == kAllLanes; })) {
      std::fill(warp_.block->shared.begin(), warp_.block->shared.end(), uint8_t{0xFF});
    }
  }

  // The instruction runs once all lanes of the warp are there.
  void Collect(const Instruction& in, uint32_t on) {
    if (on != lanes_) Fail(in, "a collective with a predicate that is false in some lanes");
    uint32_t here = lanes_;
    for (int l = 0; l < kLanes; ++l) {
      if (warp_.state[l] == LaneState::kAtCollective && warp_.pc[l] == pc_) here |= 1u << l;
    }
    if (here != ~warp_.ended) return Park(LaneState::kAtCollective);
    if (warp_.ended != 0) Fail(in, "a collective after lanes have ended");
    for (LaneState& state : warp_.state) state = LaneState::kRunning;
    lanes_ = kAllLanes;
    next_other_ = ~0u;
    in.run(warp_, in, lanes_);
    ++pc_;
  }

  Warp& warp_;
  const std::vector<Instruction>& code_;
  uint32_t pc_ = 0, lanes_ = 0;
  uint32_t next_other_ = 0;  // the lowest place of the lanes that run and are not in lanes_
  bool is_split_ = false;    // the lanes must be chosen again
  bool progressed_ = false;
};

// Releases the block's barrier if all of its threads that have not ended are there.
bool ReleaseBlock(Block& block) {
  bool is_any = false, is_or = false;
  for (const auto& warp : block.warps) {
    for (int l = 0; l < kLanes; ++l) {
      if (warp->state[l] == LaneState::kEnded) continue;
      if (warp->state[l] != LaneState::kAtBarrier) return false;
      is_any = true;
      const Instruction& in = warp->kernel->code[warp->pc[l]];
      if (in.mode == 1) is_or |= (warp->Register(in.slots[1])[l] & 1) != 0;
    }
  }
  if (!is_any) return false;
  ++block.epoch;
  for (const auto& warp : block.warps) {
    for (int l = 0; l < kLanes; ++l) {
      if (warp->state[l] != LaneState::kAtBarrier) continue;
      const Instruction& in = warp->kernel->code[warp->pc[l]];
      if (in.mode == 1) warp->Register(in.slots[0])[l] = is_or;
      warp->state[l] = LaneState::kRunning;
      ++warp->pc[l];
    }
  }
  return true;
}

bool ReleaseCluster(Cluster& cluster) {
  uint32_t num_live = 0;
  for (const auto& block : cluster.blocks) {
    for (const auto& warp : block->warps) num_live += uint32_t(kLanes - std::popcount(warp->ended));
  }
  if (cluster.num_arrived > 0 && cluster.num_arrived >= num_live) {
    cluster.num_arrived = 0;
    ++cluster.phase;
    for (const auto& block : cluster.blocks) ++block->epoch;
  }
  bool is_any = false;
  for (const auto& block : cluster.blocks) {
    for (const auto& warp : block->warps) {
      for (int l = 0; l < kLanes; ++l) {
        if (warp->state[l] != LaneState::kAtCluster || warp->cluster_phase[l] >= cluster.phase) {
          continue;
        }
        warp->state[l] = LaneState::kRunning;
        ++warp->pc[l];
        is_any = true;
      }
    }
  }
  return is_any;
}

Cluster MakeCluster(Machine& machine, const Kernel& kernel, const LaunchShape& shape, int first_x,
                    int y, const uint8_t* params) {
  constexpr uint64_t kPoison = 0xDEADBEEFDEADBEEF;
  Cluster cluster;
  cluster.params = params;
  for (int rank = 0; rank < shape.cluster_blocks; ++rank) {
    auto block = std::make_unique<Block>();
    block->x = first_x + rank;
    block->y = y;
    block->rank = rank;
    block->shared.assign(kSharedBase + shape.shared_bytes, 0xFF);
    block->words.resize(block->shared.size() / 4 + 1);
    for (int i = 0; i < shape.num_threads / kLanes; ++i) {
      auto warp = std::make_unique<Warp>();
      warp->kernel = &kernel;
      warp->block = block.get();
      warp->machine = &machine;
      warp->idx = i;
      warp->registers.assign(size_t(kernel.num_slots) * kLanes, kPoison);
      warp->local.assign(size_t(kernel.local_bytes) * kLanes, 0xFF);
      std::fill(std::begin(warp->pc), std::end(warp->pc), uint32_t(kernel.entry));
      for (const auto& [slot, value] : kernel.constants) {
        std::fill_n(warp->Register(slot), kLanes, value);
      }
      block->warps.push_back(std::move(warp));
    }
    cluster.blocks.push_back(std::move(block));
  }
  return cluster;
}

void RunCluster(Machine& machine, Cluster& cluster) {
  std::vector<Warp*> warps;
  for (const auto& block : cluster.blocks) {
    block->cluster = &cluster;
    for (const auto& warp : block->warps) warps.push_back(warp.get());
  }
  for (;;) {
    bool progressed = false, all_ended = true;
    if (machine.options.seed != 0) std::shuffle(warps.begin(), warps.end(), machine.random);
    for (Warp* const warp : warps) {
      if (warp->ended == kAllLanes) continue;
      all_ended = false;
      const uint64_t budget = machine.options.seed == 0 ? ~0ull : 1 + machine.random() % 400;
      progressed |= WarpRun(*warp).Run(budget);
    }
    if (all_ended) return;
    for (const auto& block : cluster.blocks) progressed |= ReleaseBlock(*block);
    progressed |= ReleaseCluster(cluster);
    if (progressed) continue;
    for (const Warp* const warp : warps) {
      for (int l = 0; l < kLanes; ++l) {
        if (warp->state[l] == LaneState::kEnded || warp->state[l] == LaneState::kRunning) continue;
        throw Fault(StrCat(warp->kernel->name, ": deadlock; block ", warp->block->rank, " warp ",
                           warp->idx, " lane ", l, " waits at ",
                           warp->kernel->code[warp->pc[l]].text));
      }
    }
  }
}

}  // namespace

void Machine::Run(const Kernel& kernel, const LaunchShape& shape, const void* args,
                  size_t num_bytes, bool must_wait) {
  if (size_t(kernel.param_bytes) != num_bytes) {
    throw Fault(StrCat(kernel.name, ": the argument has ", num_bytes, " bytes on the host, ",
                       kernel.param_bytes, " on the device"));
  }
  for (int y = 0; y < shape.num_blocks_y; ++y) {
    for (int x = 0; x < shape.num_blocks_x; x += shape.cluster_blocks) {
      Cluster cluster = MakeCluster(*this, kernel, shape, x, y, static_cast<const uint8_t*>(args));
      RunCluster(*this, cluster);
      if (!must_wait || !shape.overlaps_previous) continue;
      for (const auto& block : cluster.blocks) {
        for (const auto& warp : block->warps) {
          if (!warp->has_waited) {
            throw Fault(kernel.name + ": a warp does not wait for the kernel before");
          }
        }
      }
    }
  }
}

}  // namespace lssar::ptx

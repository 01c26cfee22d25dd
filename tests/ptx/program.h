// A kernel's PTX as the machine runs it: instructions with registers as slots, and the functions
// that a kernel may call behind it.
#ifndef LSSAR_TESTS_PTX_PROGRAM_H_
#define LSSAR_TESTS_PTX_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace lssar::ptx {

// PTX that the executor does not know, or that breaks a rule of the machine.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kU8,
  kS8,
  kB16,
  kU16,
  kS16,
  kF16,
  kBF16,
  kB32,
  kU32,
  kS32,
  kF32,
  kF16x2,
  kB64,
  kU64,
  kS64,
  kF64,
};

// "f32" -> kF32; kNone: no such type.
Type ParseType(const std::string& name);
int BytesOf(Type type);
bool IsSigned(Type type);
bool IsFloat(Type type);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam };

// What an instruction does to the lanes that run it, besides its effect.
enum class Flow : uint8_t {
  kNext,
  kBranch,
  kReturn,
  kCall,
  kCollective,    // needs all lanes of the warp at the same place
  kBlockBarrier,  // all threads of the block
  kClusterArrive,
  kClusterWait,
  kRetry,  // again, until its predicate is true in all lanes
};

struct Warp;
struct Instruction;
// Runs the instruction for the lanes whose bits are set.
using RunFn = void (*)(Warp& warp, const Instruction& in, uint32_t lanes);

inline constexpr int kMaxOperands = 12;

struct Instruction {
  RunFn run = nullptr;
  Flow flow = Flow::kNext;
  int guard = -1;  // slot of the predicate; -1: none
  bool is_guard_negated = false;
  int slots[kMaxOperands] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
  int num_slots = 0;
  int num_written = 0;  // slots[0, num_written) are written, the others read
  int target = -1;      // of a branch or call: index of an instruction
  Type type = Type::kNone, from = Type::kNone;  // of cvt: to and from
  int count = 1;                                // elements of a vector, bytes of cp.async
  Space space = Space::kGeneric;
  int mode = 0;  // meaning by operation
  bool saturates = false;
  int64_t offset = 0;
  std::string text;
};

struct Kernel {
  std::string name;  // as ShortName gives it
  std::vector<Instruction> code;
  int entry = 0;
  int num_slots = 0;
  std::vector<std::pair<int, uint64_t>> constants;  // slot, value
  std::map<int, std::string> functions;             // called functions by entry
  int local_bytes = 0;                              // of a thread
  int param_bytes = 0;
};

// A function's text in a PTX file.
struct Function {
  std::string name, params, body;
  bool is_entry = false;
};

// Kernels and functions of PTX files, by mangled name.
class Module {
 public:
  // Throws Fault.
  void Add(const std::string& text);
  // Mangled name of a kernel; empty: none. short_name: ShortName of its demangled name.
  std::string Find(const std::string& short_name) const;
  std::vector<std::string> ShortNames() const;
  // Throws Fault for an instruction that the executor does not know.
  Kernel Assemble(const std::string& mangled) const;

 private:
  std::map<std::string, Function> functions_;
  std::map<std::string, std::string> by_short_name_;
};

// "PrefillTiles<F16Element, 64, 15, 2>" of a mangled or demangled kernel, of the device or of the
// emulation.
std::string ShortName(const std::string& name);

// Shared memory starts here, as on sm_90.
inline constexpr uint32_t kSharedBase = 1024;

// mode of Special
enum SpecialRegister { kTidX, kCtaidX, kCtaidY, kClusterRank, kClusterBlocks, kLaneId };

}  // namespace lssar::ptx

#endif  // LSSAR_TESTS_PTX_PROGRAM_H_

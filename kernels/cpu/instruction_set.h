// The instruction sets that kernels/cpu is compiled for, as Highway names them.
#ifndef LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_
#define LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lssar {

struct InstructionSet {
  std::string name;    // "AVX3_DL" (AVX-512 with VNNI), "AVX3", "AVX2", "SSE4", "SCALAR", ...
  int64_t target = 0;  // Highway's bit
};

// The instruction sets of this build that this machine supports, best first. Never empty.
std::vector<InstructionSet> UsableInstructionSets();

// Selects the instruction set of later calls into kernels/cpu.
// Threads   the selection is global to the process; no op may run meanwhile
void ChooseInstructionSet(const InstructionSet& instruction_set);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_

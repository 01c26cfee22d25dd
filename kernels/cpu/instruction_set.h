// The instruction sets that kernels/cpu is compiled for, as Highway names them.
#ifndef LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_
#define LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_

#include <cstdint>
#include <string>
#include <vector>

namespace lssar {

struct InstructionSet {
  std::string name;    // "AVX3", "AVX2", "SSE4", "SCALAR", ...
  int64_t target = 0;  // Highway's bit
};

// Those that this build holds and this machine runs, best first; never empty.
std::vector<InstructionSet> UsableInstructionSets();

// Functions of kernels/cpu run on this one from now on.
// Threads   the choice is one word of the whole process; not while another thread is in an op
void ChooseInstructionSet(const InstructionSet& instruction_set);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_INSTRUCTION_SET_H_

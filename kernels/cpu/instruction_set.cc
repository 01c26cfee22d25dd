#include "kernels/cpu/instruction_set.h"

#include "hwy/highway.h"

namespace lssar {

std::vector<InstructionSet> UsableInstructionSets() {
  std::vector<InstructionSet> sets;
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit) {  // better ones have lower bits
    const int64_t target = int64_t{1} << bit;
    if ((usable & target) != 0) sets.push_back({.name = hwy::TargetName(target), .target = target});
  }
  return sets;
}

void ChooseInstructionSet(const InstructionSet& instruction_set) {
  hwy::GetChosenTarget().Update(instruction_set.target);
}

}  // namespace lssar

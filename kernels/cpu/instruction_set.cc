#include "kernels/cpu/instruction_set.h"

#include "hwy/highway.h"

namespace lssar {
namespace {

// Highway's targets of this build that this machine supports.
int64_t UsableTargets() {
  int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
#if HWY_ARCH_X86
  // Here it is AVX-512 with VNNI (highway/hwy/ops/set_macros-inl.h), which more machines have than
  // what Highway asks for.
  usable &= ~HWY_AVX3_DL;
  if ((usable & HWY_AVX3) != 0 && __builtin_cpu_supports("avx512vnni")) usable |= HWY_AVX3_DL;
#endif
  return usable;
}

}  // namespace

std::vector<InstructionSet> UsableInstructionSets() {
  std::vector<InstructionSet> sets;
  const int64_t usable = UsableTargets();
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

// Prints the best instruction set of this machine, for LSSAR_INSTRUCTION_SET=native.
#include <cstdio>

#include "kernels/cpu/instruction_set.h"

int main() { std::fputs(lssar::UsableInstructionSets().front().name.c_str(), stdout); }

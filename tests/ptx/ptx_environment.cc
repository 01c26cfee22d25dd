// Runs the emulated CUDA backend of any program that this file is linked into on nvcc's PTX:
//   LSSAR_PTX=FOLDER LSSAR_PTX_TARGET=90|80 [LSSAR_PTX_SEED=N] program
// At its end, the program prints what ran. Its exit code is 3 after a race or a fault, and if no
// kernel has run.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/ptx/executor.h"

namespace lssar::ptx {
namespace {

std::string Setting(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

struct WholeProgram {
  WholeProgram() {
    const Options options{.seed = std::strtoull(Setting("LSSAR_PTX_SEED").c_str(), nullptr, 10)};
    if (Executor::Get().Start(Setting("LSSAR_PTX"), Setting("LSSAR_PTX_TARGET"), options)) return;
    std::fprintf(stderr, "no PTX: set LSSAR_PTX and LSSAR_PTX_TARGET\n");
    _exit(3);
  }
  ~WholeProgram() {
    const Report report = Executor::Get().TakeReport();
    for (const std::string& race : report.races) std::fprintf(stderr, "race: %s\n", race.c_str());
    for (const std::string& fault : report.faults) std::fprintf(stderr, "%s\n", fault.c_str());
    std::printf("PTX: %s\n", report.Total().Text().c_str());
    std::fflush(nullptr);
    if (!report.IsClean() || report.Total().instructions == 0) _exit(3);
  }
} whole_program;

}  // namespace
}  // namespace lssar::ptx

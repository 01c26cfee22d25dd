// Runs the launches of the emulated CUDA backend on nvcc's PTX, so that every test of the emulated
// backend is a test of the device's code. One for the process.
#ifndef LSSAR_TESTS_PTX_EXECUTOR_H_
#define LSSAR_TESTS_PTX_EXECUTOR_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/ptx/machine.h"
#include "tests/ptx/program.h"

namespace lssar::ptx {

// What happened since the last TakeReport.
struct Report {
  std::map<std::string, Counts> by_kernel;
  std::set<std::string> races;
  std::vector<std::string> faults;
  bool IsClean() const { return races.empty() && faults.empty(); }
  Counts Total() const;
};

class Executor {
 public:
  // Directs the emulated backend's launches here.
  static Executor& Get();

  // Reads the files *.TARGET.ptx of a folder and runs launches on them from now on. target: "80" or
  // "90". False: there are none.
  bool Start(const std::string& folder, const std::string& target, const Options& options);
  const std::vector<std::string>& Texts() const { return texts_; }
  bool HasClusters() const { return has_clusters_; }
  // PTX instead of that of the files. Throws Fault.
  void Replace(const std::vector<std::string>& texts);
  // Off: launches run in the emulation. On: a launch of a kernel without PTX is a fault.
  void SetEnabled(bool is_enabled) { is_enabled_ = is_enabled; }
  void SetOptions(const Options& options);
  Report TakeReport();
  const Module& Kernels() const { return module_; }

 private:
  Executor();
  static bool RunLaunch(const void* function, const LaunchShape& shape, const void* args,
                        size_t num_bytes);
  const Kernel& KernelOf(const void* function);

  std::vector<std::string> texts_;
  Module module_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;  // by short name
  std::map<uint64_t, std::string> names_;                   // short, of this program's functions
  bool has_clusters_ = true;
  bool is_enabled_ = false;
  Machine machine_;
  Report report_;
};

}  // namespace lssar::ptx

#endif  // LSSAR_TESTS_PTX_EXECUTOR_H_

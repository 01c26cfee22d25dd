#include "kernels/cpu/cpu_backend.h"

#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "kernels/attention_math.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/rope_write.h"
#include "kernels/cpu/sample.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/host_backend.h"

namespace lssar {
namespace {

class CpuBackend final : public HostBackend {
 public:
  CpuBackend(int num_threads, std::vector<int> cpus, const InstructionSet& instruction_set)
      : instruction_set_(instruction_set),
        cpus_(cpus),
        pool_(num_threads, std::move(cpus)),
        scratch_(num_threads) {}

  std::string_view Name() const override { return "cpu"; }
  std::string Describe() const override {
    return StrCat("cpu ", instruction_set_.name, ", ", NumThreads(), " threads",
                  cpus_.empty() ? "" : " on CPUs " + FormatCpuList(cpus_));
  }
  int NumThreads() const override { return pool_.NumThreads(); }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return CheckAttentionSpec(spec);
  }

  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    ChooseTarget();
    return PackForCpu(view, stored, pool_);
  }
  void Embed(const EmbedArgs& args) override {
    ChooseTarget();
    EmbedOnCpu(args, pool_);
  }
  void Norm(const NormArgs& args) override {
    ChooseTarget();
    NormOnCpu(args, pool_, scratch_);
  }
  void Linear(const LinearArgs& args) override {
    ChooseTarget();
    LinearOnCpu(args, pool_, scratch_);
  }
  void RopeWrite(const RopeWriteArgs& args) override {
    ChooseTarget();
    RopeWriteOnCpu(args, pool_, scratch_);
  }
  void Attention(const AttentionArgs& args) override {
    ChooseTarget();
    AttentionOnCpu(args, pool_, scratch_, &plan_);
  }
  void Logits(const LogitsArgs& args) override {
    ChooseTarget();
    LogitsOnCpu(args, pool_, scratch_);
  }
  void Sample(const SampleArgs& args) override {
    ChooseTarget();
    SampleOnCpu(args, pool_, scratch_);
  }

 private:
  // Called before each op, because another backend of this process may have selected another one.
  void ChooseTarget() const { ChooseInstructionSet(instruction_set_); }

  InstructionSet instruction_set_;
  const std::vector<int> cpus_;  // of the threads; empty: not pinned
  ThreadPool pool_;
  Scratch scratch_;
  AttentionPlan plan_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options) {
  const int num_threads = !options.cpus.empty()      ? int(options.cpus.size())
                          : options.num_threads == 0 ? NumUsableCpus()
                                                     : options.num_threads;
#ifdef LSSAR_NATIVE_SET
  // Otherwise the scalar one would run, which is many times slower.
  if (UsableInstructionSets().front().name != LSSAR_NATIVE_SET) {
    return absl::FailedPreconditionError(
        "this build is for CPUs with " LSSAR_NATIVE_SET
        " (LSSAR_INSTRUCTION_SET), which this one lacks: build it on this machine");
  }
#endif
  std::vector<std::string> names;
  for (const InstructionSet& usable : UsableInstructionSets()) {
    if (options.instruction_set.empty() || options.instruction_set == usable.name) {
      return std::make_unique<CpuBackend>(num_threads, options.cpus, usable);
    }
    names.push_back(usable.name);
  }
  return absl::InvalidArgumentError(
      StrCat("instruction_set is \"", options.instruction_set,
             "\", must be one of this machine and build: ", StrJoin(names)));
}

}  // namespace lssar

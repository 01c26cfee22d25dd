#include "kernels/cpu/cpu_backend.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "hwy/highway.h"
#include "kernels/attention_check.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/logits.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/rope_write.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/top_logprobs.h"
#include "kernels/host_buffer.h"

namespace lssar {
namespace {

// Targets that this build holds and this machine runs, best (lowest bit) first.
std::vector<int64_t> UsableTargets() {
  std::vector<int64_t> targets;
  const int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit) {
    const int64_t target = int64_t{1} << bit;
    if ((usable & target) != 0) targets.push_back(target);
  }
  return targets;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(int num_threads, int64_t target)
      : target_(target), pool_(num_threads), scratch_(num_threads) {}

  std::string_view Name() const override { return "cpu"; }
  std::string Describe() const override {
    return absl::StrCat("cpu ", hwy::TargetName(target_), ", ", NumThreads(), " threads");
  }
  int NumThreads() const override { return pool_.NumThreads(); }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return CheckHostAttention(spec);
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return AllocateHostBuffer(num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    ChooseTarget();
    return PackForCpu(view, stored, pool_);
  }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    std::memcpy(to, from_host, num_bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    std::memcpy(to_host, from, num_bytes);
    return absl::OkStatus();
  }

  void Embed(const EmbedArgs& args) override {
    ChooseTarget();
    EmbedOnCpu(args, pool_, scratch_);
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
    AttentionOnCpu(args, pool_, scratch_, plan_);
  }
  void Logits(const LogitsArgs& args) override {
    ChooseTarget();
    LogitsOnCpu(args, pool_, scratch_);
  }
  void TopLogprobs(const TopLogprobsArgs& args) override {
    ChooseTarget();
    TopLogprobsOnCpu(args, pool_, scratch_);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  // Before each op, because another backend of this process may have chosen otherwise.
  void ChooseTarget() const { hwy::GetChosenTarget().Update(target_); }

  int64_t target_;
  ThreadPool pool_;
  Scratch scratch_;
  AttentionPlan plan_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options) {
  const int num_threads =
      options.num_threads == 0 ? ThreadPool::NumUsableCores() : options.num_threads;
  const std::vector<int64_t> usable = UsableTargets();
  if (options.instruction_set.empty()) {
    return std::make_unique<CpuBackend>(num_threads, usable.front());
  }
  std::vector<std::string> names;
  for (int64_t target : usable) {
    names.push_back(hwy::TargetName(target));
    if (names.back() == options.instruction_set) {
      return std::make_unique<CpuBackend>(num_threads, target);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "instruction_set is \"", options.instruction_set,
      "\", must be one that this machine and build have: ", absl::StrJoin(names, ", ")));
}

}  // namespace lssar

// A backend that forwards to another one and measures the time of each kind of op.
#ifndef LSSAR_TESTS_BENCH_TIMED_BACKEND_H_
#define LSSAR_TESTS_BENCH_TIMED_BACKEND_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/backend.h"

namespace lssar::bench {

enum class Op : uint8_t { kEmbed, kNorm, kLinear, kRopeWrite, kAttention, kLogits };
inline constexpr int kNumOps = 6;
inline constexpr std::array<const char*, kNumOps> kOpNames = {"embed",      "norm",      "linear",
                                                              "rope_write", "attention", "logits"};

struct OpCost {
  double seconds = 0;
  int64_t weight_bytes = 0;  // of packed matrices with scales, counted in each call
};
using OpCosts = std::array<OpCost, kNumOps>;

// For backends whose ops are complete when they return. The clock is read twice per op: 0.2% of a
// small step.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  // The costs of all ops since the last call. Embed counts no weight bytes.
  OpCosts TakeCosts() { return std::exchange(costs_, {}); }

  std::string_view Name() const override { return inner_->Name(); }
  std::string Describe() const override { return inner_->Describe(); }
  int NumThreads() const override { return inner_->NumThreads(); }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return inner_->CheckAttention(spec);
  }
  bool Supports(Feature feature) const override { return inner_->Supports(feature); }
  absl::Status FitLayout(KvLayout& layout) const override { return inner_->FitLayout(layout); }
  bool IsBatchInvariant() const override { return inner_->IsBatchInvariant(); }
  absl::StatusOr<std::optional<int64_t>> FreeBytes() override { return inner_->FreeBytes(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return inner_->Allocate(num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    return inner_->Pack(view, stored);
  }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    return inner_->CopyIn(to, from_host, num_bytes);
  }
  absl::Status ReserveSteps(int max_rows, int max_width) override {
    return inner_->ReserveSteps(max_rows, max_width);
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    return inner_->CopyOut(to_host, from, num_bytes);
  }

  void Embed(const EmbedArgs& args) override;
  void Norm(const NormArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void RopeWrite(const RopeWriteArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Logits(const LogitsArgs& args) override;
  void Sample(const SampleArgs& args) override { inner_->Sample(args); }
  void CopyPages(const CopyPagesArgs& args) override { inner_->CopyPages(args); }
  absl::Status Synchronize() override { return inner_->Synchronize(); }
  // Calls the ops on this backend, so that each is measured: inner_ records no step.
  void RunStep(const StepArgs&, absl::FunctionRef<void()> ops) override { ops(); }
  void PrepareSteps(const StepArgs&, int, int, absl::FunctionRef<void()>) override {}
  bool IsLost() override { return inner_->IsLost(); }

 private:
  std::unique_ptr<Backend> inner_;
  OpCosts costs_ = {};
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_TIMED_BACKEND_H_

#include "kernels/reference/reference_backend.h"

#include "kernels/attention_math.h"
#include "kernels/host_backend.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/dense.h"
#include "kernels/reference/rope_write.h"
#include "kernels/reference/sample.h"

namespace lssar {
namespace {

class ReferenceBackend final : public HostBackend {
 public:
  std::string_view Name() const override { return "reference"; }
  std::string Describe() const override { return "reference, double accumulators, 1 thread"; }
  int NumThreads() const override { return 1; }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return CheckAttentionSpec(spec);
  }
  // Keeps the order of K: tests pass pages of other backends.
  absl::Status FitLayout(KvLayout& layout) const override {
    KvLayout fitted = layout;
    return HostBackend::FitLayout(fitted);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    return ReferencePack(view, stored);
  }

  void Embed(const EmbedArgs& args) override { ReferenceEmbed(args); }
  void Norm(const NormArgs& args) override { ReferenceNorm(args); }
  void Linear(const LinearArgs& args) override { ReferenceLinear(args); }
  void RopeWrite(const RopeWriteArgs& args) override { ReferenceRopeWrite(args); }
  void Attention(const AttentionArgs& args) override { ReferenceAttention(args); }
  void Logits(const LogitsArgs& args) override { ReferenceLogits(args); }
  void Sample(const SampleArgs& args) override { ReferenceSample(args); }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace lssar

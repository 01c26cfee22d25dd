#include "kernels/reference/reference_backend.h"

#include <cstring>

#include "kernels/attention_check.h"
#include "kernels/copy_pages.h"
#include "kernels/host_buffer.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/dense.h"
#include "kernels/reference/rope_write.h"
#include "kernels/reference/sample.h"

namespace lssar {
namespace {

class ReferenceBackend final : public Backend {
 public:
  std::string_view Name() const override { return "reference"; }
  std::string Describe() const override { return "reference, double accumulators, 1 thread"; }
  int NumThreads() const override { return 1; }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    return CheckAttentionSpec(spec);
  }
  // Any will do: tests bring pages of other backends.
  absl::Status FitLayout(KvLayout&) const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return AllocateHostBuffer(num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    return ReferencePack(view, stored);
  }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    std::memcpy(to, from_host, num_bytes);
    return absl::OkStatus();
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    std::memcpy(to_host, from, num_bytes);
    return absl::OkStatus();
  }

  void Embed(const EmbedArgs& args) override { ReferenceEmbed(args); }
  void Linear(const LinearArgs& args) override { ReferenceLinear(args); }
  void RopeWrite(const RopeWriteArgs& args) override { ReferenceRopeWrite(args); }
  void Attention(const AttentionArgs& args) override { ReferenceAttention(args); }
  void Logits(const LogitsArgs& args) override { ReferenceLogits(args); }
  void Sample(const SampleArgs& args) override { ReferenceSample(args); }
  void CopyPages(const CopyPagesArgs& args) override { CopyHostPages(args); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace lssar

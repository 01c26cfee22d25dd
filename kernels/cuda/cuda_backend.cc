#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/attention_math.h"
#include "kernels/copy_pages.h"
#include "kernels/cuda/attention_stats.h"
#include "kernels/cuda/cuda_attention.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_sampler.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/step_graphs.h"

namespace lssar {
namespace {

// The forms of attention_math.cuh.
bool ComputesForm(const AttentionForm& form) {
  return form.divisor == Divisor::kRowSum && form.shift == ScoreShift::kNone &&
         (form.phi == Phi::kSoftplus || (form.phi == Phi::kExp && !form.reweights));
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(CudaBackendParts parts, const CudaDevice& device,
              std::unique_ptr<GemmLibrary> gemm_library)
      : name_(std::move(parts.name)),
        context_(std::move(parts.driver), parts.kernels, device),
        tables_(context_),
        stats_(context_),
        attention_(context_, tables_, stats_, /*is_batch_invariant=*/gemm_library == nullptr),
        gemm_(context_, std::move(gemm_library), parts.max_widened_bytes, std::move(parts.log)),
        graphs_(context_, tables_, stats_, parts.max_step_graphs),
        sampler_(context_) {}

  std::string_view Name() const override { return name_; }
  std::string Describe() const override {
    const CudaDevice& device = context_.Device();
    return StrCat(name_, " ", device.name, ", ", device.num_multiprocessors, " multiprocessors, ",
                  device.memory_bytes >> 20, " MiB", gemm_.HasLibrary() ? "" : ", batch-invariant");
  }
  bool IsBatchInvariant() const override { return !gemm_.HasLibrary(); }
  absl::Status ReserveWorkspaces() { return gemm_.ReserveWorkspace(); }
  int NumThreads() const override { return 1; }

  absl::Status CheckAttention(const AttentionSpec& spec) const override;
  bool Supports(Feature feature) const override { return InfoOf(feature).on_cuda; }
  absl::Status FitLayout(KvLayout& layout) const override;

  absl::StatusOr<std::optional<int64_t>> FreeBytes() override {
    size_t num_bytes = 0;
    CudaDriver& driver = context_.Driver();
    const int code = driver.FreeMemory(num_bytes);
    if (code != kCudaSuccess) return CudaStatus(driver, code, "querying free memory");
    return int64_t(num_bytes);
  }
  absl::Status ReserveSteps(int max_rows, int max_width) override {
    return gemm_.ReserveRows(max_rows, max_width);
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return AllocateOnDevice(context_.Driver(), num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView& view,
                                                     DType stored) override {
    return PackOnDevice(context_.Driver(), view, stored);
  }
  absl::Status CopyIn(void* to, const void* from_host, size_t num_bytes) override {
    CudaDriver& driver = context_.Driver();
    const int code = context_.Stage(to, from_host, num_bytes);
    return CudaStatus(driver, code, "copying to the device");
  }
  absl::Status CopyOut(void* to_host, const void* from, size_t num_bytes) override {
    CudaDriver& driver = context_.Driver();
    return CudaStatus(driver, driver.CopyOut(to_host, from, num_bytes), "copying from the device");
  }

  void Embed(const EmbedArgs& args) override { gemm_.Embed(args); }
  void Norm(const NormArgs& args) override { gemm_.Norm(args); }
  void Linear(const LinearArgs& args) override { gemm_.Linear(args); }
  void RopeWrite(const RopeWriteArgs& args) override { attention_.RopeWrite(args); }
  void Attention(const AttentionArgs& args) override;
  void Logits(const LogitsArgs& args) override { gemm_.Logits(args); }
  void Sample(const SampleArgs& args) override { sampler_.Sample(args); }
  void CopyPages(const CopyPagesArgs& args) override;
  absl::Status Synchronize() override;
  bool IsLost() override { return IsStickyCudaError(context_.Driver().Synchronize()); }

  void RunStep(const StepArgs& args, absl::FunctionRef<void()> ops) override;
  void PrepareSteps(const StepArgs& args, int max_rows, int max_keys,
                    absl::FunctionRef<void()> ops) override;

 private:
  // Publishes the statistics of another caller, if any are being counted.
  void PublishOtherCounts(const AttentionStats* counters, const RaggedBatch& rows);

  const std::string name_;
  CudaContext context_;
  DeviceTables tables_;
  AttentionStatsBuffer stats_;
  CudaAttention attention_;
  CudaGemm gemm_;
  StepGraphs graphs_;
  CudaSampler sampler_;
};

absl::Status CudaBackend::CheckAttention(const AttentionSpec& spec) const {
  if (!ComputesForm(spec.Form())) {
    std::vector<std::string_view> names;
    for (const AttentionKindInfo& info : kAttentionKinds) {
      if (info.kind != AttentionKind::kPhi && ComputesForm(info.form)) names.push_back(info.name);
    }
    return absl::UnimplementedError(StrCat("attention kind \"", NameOf(spec.kind),
                                           "\" is not computed on CUDA, where there are ",
                                           StrJoin(names), "; the cpu backend computes all kinds"));
  }
  if (spec.window > 0 || spec.has_alibi) {
    return absl::UnimplementedError(StrCat(spec.has_alibi ? "ALiBi" : "a window of attention",
                                           " is not computed on CUDA; the cpu backend computes "
                                           "it"));
  }
  if (!spec.steps.empty()) {
    return absl::UnimplementedError(
        "p by head or by number of keys is not computed on CUDA; the cpu backend computes it");
  }
  return CheckAttentionSpec(spec);
}

absl::Status CudaBackend::FitLayout(KvLayout& layout) const {
  if (layout.dtype != DType::kF16 && layout.dtype != DType::kI8 && layout.dtype != DType::kFx16) {
    return absl::UnimplementedError(StrCat("the cuda backend does not support ",
                                           NameOf(layout.dtype),
                                           " K/V pages; it supports fp16, int8 and fx16"));
  }
  if (!IsCudaHeadDim(layout.head_dim)) {
    return absl::UnimplementedError(StrCat("the cuda backend does not support head_dim ",
                                           layout.head_dim, "; it supports 32, 64, 80 and 128"));
  }
  const CudaDevice& device = context_.Device();
  const CudaAttentionMemory needed =
      context_.Kernels().attention_memory(layout.dtype, layout.head_dim);
  // Split decode runs with as few warps as fit: one is the least.
  const size_t needed_bytes = std::max({needed.prefill, needed.split_decode_warp,
                                        device.has_clusters ? needed.cluster_decode : size_t{0}});
  if (needed_bytes > device.shared_bytes_of_block) {
    return absl::UnimplementedError(
        StrCat("attention with head_dim ", layout.head_dim, " over ", NameOf(layout.dtype),
               " pages needs ", (needed_bytes + 1023) / 1024, " KiB of shared memory a block; ",
               device.name, " has ", device.shared_bytes_of_block / 1024,
               " KiB: use another --kv-cache-dtype or --device cpu"));
  }
  layout.key_order = KeyOrder::kSlotMajor;
  return absl::OkStatus();
}

void CudaBackend::PublishOtherCounts(const AttentionStats* counters, const RaggedBatch& rows) {
  if (counters == nullptr || stats_.CanCountFor(counters, rows.sequences.size())) return;
  context_.RecordError(Synchronize());
}

void CudaBackend::Attention(const AttentionArgs& args) {
  PublishOtherCounts(args.counters, *args.rows);
  attention_.Attention(args);
}

void CudaBackend::RunStep(const StepArgs& args, absl::FunctionRef<void()> ops) {
  PublishOtherCounts(args.counters, *args.rows);
  graphs_.Run(args, ops);
}

void CudaBackend::PrepareSteps(const StepArgs& args, int max_rows, int max_keys,
                               absl::FunctionRef<void()> ops) {
  PublishOtherCounts(args.counters, *args.rows);
  graphs_.Prepare(args, max_rows, max_keys, ops);
}

void CudaBackend::CopyPages(const CopyPagesArgs& args) {
  ForEachPageCopy(args, [this](const PageBlocks& blocks) {
    if (!context_.IsOk()) return;
    const int code = context_.Driver().CopyInside(blocks.to, blocks.from,
                                                  {.num_rows = blocks.num_blocks,
                                                   .row_bytes = blocks.block_bytes,
                                                   .stride_bytes = blocks.stride_bytes});
    context_.Check(code, "copying pages");
  });
}

absl::Status CudaBackend::Synchronize() {
  stats_.Fetch();
  context_.Wait();
  stats_.Publish();
  sampler_.Publish();
  return context_.TakeStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(CudaBackendParts parts, int device_idx) {
  ASSIGN_OR_RETURN(CudaDevice device, OpenCudaDevice(*parts.driver, device_idx));
  RETURN_IF_ERROR(ProbeCudaDevice(*parts.driver, parts.kernels, &device));
  std::unique_ptr<GemmLibrary> gemm_library;
  if (parts.make_gemm_library != nullptr) {
    ASSIGN_OR_RETURN(gemm_library, parts.make_gemm_library());
  }
  auto backend = std::make_unique<CudaBackend>(std::move(parts), device, std::move(gemm_library));
  RETURN_IF_ERROR(backend->ReserveWorkspaces());
  return backend;
}

}  // namespace lssar

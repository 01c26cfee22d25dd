#include "kernels/cuda/cuda_gemm.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {

const int32_t* CudaGemm::CopyIds(std::span<const int32_t> ids) {
  int32_t* const to = context_.Reserve<int32_t>(ids_memory_, ids.size_bytes());
  if (to == nullptr || !context_.CopyIn(to, ids.data(), ids.size_bytes(), "copying ids")) {
    return nullptr;
  }
  return to;
}

void CudaGemm::Embed(const EmbedArgs& args) {
  if (!context_.IsOk() || args.ids.empty()) return;
  const StepShape* const shape = context_.Shape();
  const int32_t* const ids = shape == nullptr ? CopyIds(args.ids) : shape->ids;
  if (ids == nullptr) return;
  context_.Check(
      context_.Kernels().embed({.ids = ids,
                                .num_ids = context_.PaddedRows(int(args.ids.size())),
                                .table = static_cast<const DeviceMatrix&>(*args.table).View(),
                                .out = args.out},
                               context_.Stream()),
      "embedding");
}

namespace {

size_t PartsBytes(size_t num_rows, int padded_width) {
  return num_rows * size_t(padded_width) * sizeof(float);
}

// `rows` for a GEMM with `weight`.
CudaSplitArgs RowsFor(CudaSplitArgs rows, const CudaMatrix& weight) {
  rows.width = weight.num_cols;
  rows.padded_width = weight.padded_cols;
  rows.dtype = weight.dtype;
  return rows;
}

}  // namespace

bool CudaGemm::SplitRows(CudaSplitArgs args, const CudaMatrix& weight) {
  // Large enough for every decode step.
  const size_t num_rows = size_t(std::max(args.num_rows, kMaxBucketRows));
  const size_t parts_bytes = PartsBytes(num_rows, weight.padded_cols);
  unsigned char* const memory = context_.Reserve<unsigned char>(
      rows_memory_, parts_bytes + num_rows * kMaxGemmChains * sizeof(float));
  if (memory == nullptr) return false;
  split_rows_ = {.parts = memory, .inverse = reinterpret_cast<float*>(memory + parts_bytes)};
  args = RowsFor(args, weight);
  args.to = split_rows_;
  return context_.Check(context_.Kernels().split_rows(args, context_.Stream()), "a norm");
}

absl::Status CudaGemm::ReserveWorkspace() {
  if (library_ == nullptr) return absl::OkStatus();
  return library_memory_.Reserve(kGemmWorkspaceBytes).status();
}

absl::Status CudaGemm::ReserveRows(int max_rows, int max_width) {
  const size_t num_rows = size_t(std::max(max_rows, kMaxBucketRows));
  RETURN_IF_ERROR(rows_memory_
                      .Reserve(PartsBytes(num_rows, PaddedCols(max_width)) +
                               num_rows * kMaxGemmChains * sizeof(float))
                      .status());
  if (library_ == nullptr) return absl::OkStatus();
  return sums_memory_.Reserve(num_rows * size_t(max_width) * sizeof(float)).status();
}

void CudaGemm::LogChoice(const CudaLinearArgs& gemm, GemmChoice choice) {
  if (log_ == nullptr) return;
  const CudaMatrix& weight = gemm.weight;
  const bool is_new = logged_
                          .emplace(choice, weight.dtype, weight.num_rows, weight.num_cols,
                                   gemm.activation, gemm.bias != nullptr, gemm.multiply != nullptr,
                                   gemm.residual != nullptr, gemm.softcap > 0)
                          .second;
  if (!is_new) return;
  std::string sentence =
      StrCat("GEMM of ", NameOf(weight.dtype), " weights [", weight.num_rows, ", ", weight.num_cols,
             "]", gemm.bias != nullptr ? " with bias" : "");
  if (gemm.activation != Activation::kNone) {
    sentence += gemm.activation == Activation::kGeluTanh ? ", GELU" : ", activation";
  }
  if (gemm.multiply != nullptr) sentence += ", gate";
  if (gemm.residual != nullptr) sentence += ", residual";
  if (gemm.softcap > 0) sentence += ", softcap";
  if (choice == GemmChoice::kOwn) {
    sentence += ": our own kernels, because the library does not run it";
  } else {
    const bool with_epilogue = choice == GemmChoice::kLibrary;
    sentence += StrCat(": ", library_->Describe(SliceOf(gemm, 0, with_epilogue)),
                       weight.dtype == DType::kI8 ? ", weights widened to fp16" : "",
                       with_epilogue ? "" : ", then our own kernel");
  }
  log_(sentence);
}

int CudaGemm::SliceRows(const CudaMatrix& weight) const {
  if (weight.dtype != DType::kI8) return weight.num_rows;
  const size_t row_bytes = size_t(weight.padded_cols) * sizeof(uint16_t);
  // Multiples of 64, so that parts of bias and result are aligned as the whole.
  const size_t num_rows = std::max(size_t{64}, max_widened_bytes_ / row_bytes / 64 * 64);
  return int(std::min(num_rows, size_t(weight.num_rows)));
}

LibraryGemmArgs CudaGemm::SliceOf(const CudaLinearArgs& gemm, int first, bool with_epilogue) const {
  LibraryGemmArgs slice{.num_rows = gemm.num_rows,
                        .weight = gemm.weight,
                        .out = gemm.out + first,
                        .out_stride = gemm.weight.num_rows,
                        .workspace = library_memory_.Address()};
  slice.weight.num_rows = std::min(SliceRows(gemm.weight), gemm.weight.num_rows - first);
  if (gemm.weight.dtype == DType::kI8) slice.weight.dtype = DType::kF16;
  if (!with_epilogue) return slice;
  slice.bias = gemm.bias == nullptr ? nullptr : gemm.bias + first;
  slice.residual = gemm.residual == nullptr ? nullptr : gemm.residual + first;
  slice.gelu = gemm.activation == Activation::kGeluTanh;
  return slice;
}

bool CudaGemm::IsSupported(const CudaLinearArgs& gemm, bool with_epilogue) {
  const bool has_epilogue =
      (gemm.activation == Activation::kNone || gemm.activation == Activation::kGeluTanh) &&
      gemm.multiply == nullptr && gemm.scale == 1.0f && gemm.softcap == 0.0f;
  if (with_epilogue && !has_epilogue) return false;
  for (int first = 0; first < gemm.weight.num_rows; first += SliceRows(gemm.weight)) {
    if (!library_->Supports(SliceOf(gemm, first, with_epilogue))) return false;
  }
  return true;
}

bool CudaGemm::RunByLibrary(CudaSplitArgs rows, const CudaLinearArgs& gemm) {
  if (library_ == nullptr || gemm.num_rows <= kMaxOwnRows) return false;
  const bool with_epilogue = IsSupported(gemm, true);
  if (!with_epilogue && !IsSupported(gemm, false)) {
    LogChoice(gemm, GemmChoice::kOwn);
    return false;
  }
  LogChoice(gemm, with_epilogue ? GemmChoice::kLibrary : GemmChoice::kLibraryThenOwn);
  // Every op ends here: after an error, Synchronize returns it.
  rows.rounds = true;
  if (!SplitRows(rows, gemm.weight)) return true;
  CudaLinearArgs sums = gemm;
  if (!with_epilogue && (gemm.multiply != nullptr || gemm.residual != nullptr)) {
    const size_t num_rows = size_t(std::max(gemm.num_rows, kMaxBucketRows));
    sums.out = context_.Reserve<float>(sums_memory_,
                                       num_rows * size_t(gemm.weight.num_rows) * sizeof(float));
    if (sums.out == nullptr) return true;
  }
  for (int first = 0; first < gemm.weight.num_rows; first += SliceRows(gemm.weight)) {
    LibraryGemmArgs slice = SliceOf(sums, first, with_epilogue);
    slice.x = split_rows_.parts;
    if (gemm.weight.dtype == DType::kI8 && !WidenSlice(first, &slice.weight)) return true;
    context_.RecordError(library_->Run(slice, context_.Stream()));
    if (!context_.IsOk()) return true;
  }
  if (with_epilogue) return true;
  context_.Check(context_.Kernels().epilogue({.sums = sums.out, .linear = gemm}, context_.Stream()),
                 "the epilogue of a GEMM");
  return true;
}

bool CudaGemm::WidenSlice(int first, CudaMatrix* slice) {
  const size_t row_elements = size_t(slice->padded_cols), at = size_t(first) * row_elements;
  CudaMatrix from = *slice;
  from.dtype = DType::kI8;
  from.elements = static_cast<const int8_t*>(slice->elements) + at;
  from.scales += at / kCudaGroupCols;
  uint16_t* const to = context_.Reserve<uint16_t>(
      widened_memory_, size_t(slice->num_rows) * row_elements * sizeof(uint16_t));
  if (to == nullptr) return false;
  slice->elements = to;
  return context_.Check(context_.Kernels().widen({.weight = from, .to = to}, context_.Stream()),
                        "widening weights");
}

void CudaGemm::Linear(const LinearArgs& args) {
  LSSAR_CHECK(args.x != args.out);
  if (!context_.IsOk() || args.num_rows == 0) return;
  const CudaMatrix& weight = static_cast<const DeviceMatrix&>(*args.weight).View();
  Run({.x = args.x,
       .norm = NormOf(args.norm),
       .num_rows = context_.PaddedRows(args.num_rows),
       .to = {}},
      {.x = {},
       .weight = weight,
       .bias = args.bias,
       .activation = args.activation,
       .multiply = args.multiply,
       .scale = args.scale,
       .residual = args.residual,
       .out = args.out});
}

void CudaGemm::Logits(const LogitsArgs& args) {
  if (!context_.IsOk() || args.row_ids.empty()) return;
  const int32_t* const row_ids = CopyIds(args.row_ids);
  if (row_ids == nullptr) return;
  const CudaMatrix& weight = static_cast<const DeviceMatrix&>(*args.weight).View();
  Run({.x = args.x,
       .row_ids = row_ids,
       .norm = NormOf(args.norm),
       .num_rows = int(args.row_ids.size()),
       .to = {}},
      {.x = {}, .weight = weight, .softcap = args.softcap, .out = args.logits});
}

void CudaGemm::Norm(const NormArgs& args) {
  LSSAR_CHECK(args.norm.kind != NormKind::kNone);
  if (!context_.IsOk() || args.num_rows == 0) return;
  context_.Check(context_.Kernels().norm({.rows = {.x = args.x,
                                                   .norm = NormOf(args.norm),
                                                   .num_rows = context_.PaddedRows(args.num_rows),
                                                   .width = args.size,
                                                   .padded_width = PaddedCols(args.size),
                                                   .to = {}},
                                          .scale = args.scale,
                                          .residual = args.residual,
                                          .out = args.out},
                                         context_.Stream()),
                 "a norm");
}

void CudaGemm::Run(const CudaSplitArgs& rows, CudaLinearArgs gemm) {
  gemm.num_rows = rows.num_rows;
  if (RunByLibrary(rows, gemm)) return;
  const bool is_fused = gemm.weight.dtype != DType::kF32 && rows.num_rows <= kMaxFusedRows &&
                        FusesWidth(rows.num_rows, gemm.weight.padded_cols);
  if (is_fused) {
    context_.Check(context_.Kernels().fused_linear(
                       {.rows = RowsFor(rows, gemm.weight), .linear = gemm}, context_.Stream()),
                   "a GEMM");
    return;
  }
  if (!SplitRows(rows, gemm.weight)) return;
  gemm.x = split_rows_;
  context_.Check(context_.Kernels().linear(gemm, context_.Stream()), "a GEMM");
}

}  // namespace lssar

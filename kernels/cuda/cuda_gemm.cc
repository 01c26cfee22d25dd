#include "kernels/cuda/cuda_gemm.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"
#include "base/str_cat.h"

namespace lssar {

void ChooseTile(const CudaDevice& device, CudaLinearArgs* gemm) {
  gemm->tile = CudaGemmTile::k16x8;
  gemm->cluster_blocks = 1;
  if (gemm->weight.dtype == DType::kF32 || gemm->num_rows <= kMaxRowsWithoutTiles) return;
  const auto num_tiles = [&](int size) {
    return int64_t{(gemm->num_rows + size - 1) / size} *
           int64_t{(gemm->weight.num_rows + size - 1) / size};
  };
  const int64_t num_blocks = device.num_multiprocessors;  // at least, to fill the device
  const int max_cluster = device.HasClusters() ? kGemmChains : 1;
  const bool is_large = gemm->num_rows > 64 && num_tiles(128) * max_cluster >= num_blocks;
  gemm->tile = is_large ? CudaGemmTile::k128x128 : CudaGemmTile::k64x64;
  if (num_tiles(is_large ? 128 : 64) < num_blocks) gemm->cluster_blocks = max_cluster;
}

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

// `rows` for a GEMM with `weight`.
CudaSplitArgs RowsFor(CudaSplitArgs rows, const CudaMatrix& weight) {
  rows.width = weight.num_cols;
  rows.padded_width = weight.padded_cols;
  rows.dtype = weight.dtype;
  return rows;
}

}  // namespace

bool CudaGemm::SplitRows(CudaSplitArgs args, const CudaMatrix& weight) {
  // Large enough for every decode step: graphs hold the address.
  const int num_tiles = (args.num_rows + kMostTileRows - 1) / kMostTileRows;
  const size_t num_rows = size_t(std::max(num_tiles * kMostTileRows, kMaxBucketRows));
  const size_t num_elements = num_rows * size_t(weight.padded_cols);
  const size_t parts_bytes = num_elements * std::max(kMaxRowParts * size_t{2}, sizeof(float));
  unsigned char* const memory =
      context_.Reserve<unsigned char>(rows_memory_, parts_bytes + num_rows * sizeof(float));
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

void CudaGemm::LogChoice(const LinearArgs& args, const CudaMatrix& weight,
                         const std::string& choice) {
  if (log_ == nullptr) return;
  const bool is_gelu = args.activation == Activation::kGeluTanh;
  const std::string sentence =
      StrCat("GEMM of ", NameOf(weight.dtype), " weights [", weight.num_rows, ", ", weight.num_cols,
             "]", args.bias != nullptr ? " with bias" : "", is_gelu ? ", GELU" : "",
             args.residual != nullptr ? ", residual" : "", ": ", choice);
  if (logged_.insert(sentence).second) log_(sentence);
}

bool CudaGemm::RunByLibrary(const LinearArgs& args, const CudaMatrix& weight) {
  if (library_ == nullptr || args.num_rows < kMinLibraryRows) return false;
  const bool has_epilogue =
      (args.activation == Activation::kNone || args.activation == Activation::kGeluTanh) &&
      args.multiply == nullptr && args.scale == 1.0f;
  if (!has_epilogue) {
    LogChoice(args, weight, "our own kernels, because the library has no such epilogue");
    return false;
  }
  LibraryGemmArgs gemm{.num_rows = args.num_rows,
                       .weight = weight,
                       .bias = args.bias,
                       .residual = args.residual,
                       .gelu = args.activation == Activation::kGeluTanh,
                       .out = args.out,
                       .workspace = library_memory_.Address()};
  if (!library_->Supports(gemm)) {
    LogChoice(args, weight, "our own kernels, because the library does not run it");
    return false;
  }
  LogChoice(args, weight, library_->Describe(gemm));
  if (!SplitRows({.x = args.x,
                  .norm = NormOf(args.norm),
                  .num_rows = args.num_rows,
                  .rounds = true,
                  .to = {}},
                 weight)) {
    return true;
  }
  gemm.x = split_rows_.parts;
  context_.Check(library_->Run(gemm, context_.Stream()), "a GEMM by cuBLASLt");
  return true;
}

void CudaGemm::Linear(const LinearArgs& args) {
  LSSAR_CHECK(args.x != args.out);
  if (!context_.IsOk() || args.num_rows == 0) return;
  const CudaMatrix& weight = static_cast<const DeviceMatrix&>(*args.weight).View();
  if (RunByLibrary(args, weight)) return;
  RunKernels({.x = args.x,
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
  RunKernels({.x = args.x,
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
                                                   .padded_width = args.size,
                                                   .to = {}},
                                          .scale = args.scale,
                                          .residual = args.residual,
                                          .out = args.out},
                                         context_.Stream()),
                 "a norm");
}

void CudaGemm::RunKernels(CudaSplitArgs rows, CudaLinearArgs gemm) {
  gemm.num_rows = rows.num_rows;
  const bool is_fused = gemm.weight.dtype != DType::kF32 && rows.num_rows <= kMaxFusedRows &&
                        gemm.weight.num_rows <= kMaxFusedCols &&
                        FusesWidth(rows.num_rows, gemm.weight.padded_cols);
  if (is_fused) {
    context_.Check(context_.Kernels().fused_linear(
                       {.rows = RowsFor(rows, gemm.weight), .linear = gemm}, context_.Stream()),
                   "a GEMM");
    return;
  }
  ChooseTile(context_.Device(), &gemm);
  rows.is_tiled = gemm.tile != CudaGemmTile::k16x8;
  if (!SplitRows(rows, gemm.weight)) return;
  gemm.x = split_rows_;
  context_.Check(context_.Kernels().linear(gemm, context_.Stream()), "a GEMM");
}

}  // namespace lssar

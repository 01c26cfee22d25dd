#include "kernels/cuda/device/cublas_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "base/str_cat.h"

namespace lssar {
namespace {

// Rows that an algorithm is chosen for, and the largest number that it must support.
constexpr uint64_t kTypicalRows = 512;
constexpr uint64_t kMostRows = 16384;
constexpr int kMaxAlgorithms = 16;  // candidates of the heuristic

// Loaded on demand, not linked: the library is half a gigabyte, which a program that runs on the
// CPU neither needs to install nor maps.
struct CublasLt {
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;

  // The name of the first missing function; empty: none.
  std::string Load(void* library) {
    const auto load = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr ? std::string() : std::string(name);
    };
    for (const std::string& missing :
         {load(status_name, "cublasLtGetStatusName"), load(create, "cublasLtCreate"),
          load(destroy, "cublasLtDestroy"), load(desc_create, "cublasLtMatmulDescCreate"),
          load(desc_destroy, "cublasLtMatmulDescDestroy"),
          load(desc_set, "cublasLtMatmulDescSetAttribute"),
          load(layout_create, "cublasLtMatrixLayoutCreate"),
          load(layout_destroy, "cublasLtMatrixLayoutDestroy"),
          load(layout_set, "cublasLtMatrixLayoutSetAttribute"),
          load(preference_create, "cublasLtMatmulPreferenceCreate"),
          load(preference_destroy, "cublasLtMatmulPreferenceDestroy"),
          load(preference_set, "cublasLtMatmulPreferenceSetAttribute"),
          load(find, "cublasLtMatmulAlgoGetHeuristic"),
          load(config_get, "cublasLtMatmulAlgoConfigGetAttribute"),
          load(check, "cublasLtMatmulAlgoCheck"), load(multiply, "cublasLtMatmul")}) {
      if (!missing.empty()) return missing;
    }
    return "";
  }
};

absl::Status GemmStatus(const CublasLt& lt, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string sentence = StrCat("a GEMM by cuBLASLt failed: ", lt.status_name(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(sentence)
                                              : absl::InternalError(sentence);
}

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

// A GEMM of one shape and epilogue. The library is column-major, so our rows are its columns:
// out^T = W x^T, with W passed as a transposed matrix.
struct GemmPlan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  bool is_found = false;
  std::map<int, bool> supported_rows;
};

class CublasGemm final : public GemmLibrary {
 public:
  CublasGemm(void* library, const CublasLt& lt, cublasLtHandle_t handle)
      : library_(library), lt_(lt), handle_(handle) {}
  ~CublasGemm() override {
    for (auto& [key, plan] : plans_) {
      if (plan.desc != nullptr) lt_.desc_destroy(plan.desc);
      for (cublasLtMatrixLayout_t layout : {plan.w, plan.x, plan.out}) {
        if (layout != nullptr) lt_.layout_destroy(layout);
      }
    }
    lt_.destroy(handle_);
    dlclose(library_);
  }

  // Not GELU with a residual: the library would add the residual before GELU.
  bool Supports(const LibraryGemmArgs& args) override {
    const DType dtype = args.weight.dtype;
    const bool is_float = dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
    return is_float && !(args.gelu && args.residual != nullptr) &&
           uint64_t(args.num_rows) <= kMostRows && SupportsRows(PlanFor(args), args.num_rows);
  }

  std::string Describe(const LibraryGemmArgs& args) override {
    const cublasLtMatmulAlgo_t& algorithm = PlanFor(args).algorithm;
    return StrCat("cuBLASLt algorithm ", Config(algorithm, CUBLASLT_ALGO_CONFIG_ID), ", tile ",
                  Config(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID), ", stages ",
                  Config(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID));
  }

  absl::Status Run(const LibraryGemmArgs& args, void* stream) override {
    GemmPlan& plan = PlanFor(args);
    cublasStatus_t status = SetRows(plan, uint64_t(args.num_rows));
    if (status == CUBLAS_STATUS_SUCCESS && args.bias != nullptr) {
      status = Set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    }
    if (status != CUBLAS_STATUS_SUCCESS) return GemmStatus(lt_, status);
    const float one = 1, beta = args.residual != nullptr ? 1.0f : 0.0f;
    const float* const c = args.residual != nullptr ? args.residual : args.out;
    status = lt_.multiply(handle_, plan.desc, &one, args.weight.elements, plan.w, args.x, plan.x,
                          &beta, c, plan.out, args.out, plan.out, &plan.algorithm, args.workspace,
                          kGemmWorkspaceBytes, static_cast<cudaStream_t>(stream));
    return GemmStatus(lt_, status);
  }

 private:
  // out_features, columns, stride of the result, type, bias, gelu, residual.
  using Key = std::tuple<int, int, int, DType, bool, bool, bool>;

  template <typename T>
  cublasStatus_t Set(GemmPlan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return lt_.desc_set(plan.desc, attribute, &value, sizeof(value));
  }
  cublasStatus_t SetRows(GemmPlan& plan, uint64_t num_rows) {
    for (cublasLtMatrixLayout_t layout : {plan.x, plan.out}) {
      const cublasStatus_t status =
          lt_.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &num_rows, sizeof(num_rows));
      if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
  }

  // Whether the plan's algorithm runs with so many rows; asked of the library once for each number.
  bool SupportsRows(GemmPlan& plan, int num_rows) {
    if (!plan.is_found) return false;
    const auto [at, is_new] = plan.supported_rows.try_emplace(num_rows, false);
    if (is_new) {
      at->second =
          SetRows(plan, uint64_t(num_rows)) == CUBLAS_STATUS_SUCCESS && Fits(plan, plan.algorithm);
    }
    return at->second;
  }
  // Whether `algorithm` runs on the plan's layouts as they are set, within the workspace.
  bool Fits(GemmPlan& plan, const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t result;
    return lt_.check(handle_, plan.desc, plan.w, plan.x, plan.out, plan.out, &algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kGemmWorkspaceBytes;
  }

  // One algorithm for every number of rows, chosen at the first GEMM of the shape.
  GemmPlan& PlanFor(const LibraryGemmArgs& args) {
    const Key key{args.weight.num_rows,    args.weight.padded_cols, args.out_stride,
                  args.weight.dtype,       args.bias != nullptr,    args.gelu,
                  args.residual != nullptr};
    const auto [at, is_new] = plans_.try_emplace(key);
    if (is_new && Describe(args, at->second)) at->second.is_found = Find(at->second);
    return at->second;
  }

  bool Describe(const LibraryGemmArgs& args, GemmPlan& plan) {
    const cudaDataType_t type = TypeOf(args.weight.dtype);
    const uint64_t cols = uint64_t(args.weight.padded_cols);
    const uint64_t out_features = uint64_t(args.weight.num_rows);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (args.bias != nullptr) epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (args.gelu) {
      epilogue = args.bias != nullptr ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    }
    const bool is_made =
        lt_.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&plan.w, type, cols, out_features, int64_t(cols)) ==
            CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&plan.x, type, cols, kTypicalRows, int64_t(cols)) ==
            CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&plan.out, CUDA_R_32F, out_features, kTypicalRows,
                          int64_t{args.out_stride}) == CUBLAS_STATUS_SUCCESS &&
        Set(plan, CUBLASLT_MATMUL_DESC_TRANSA, transposed) == CUBLAS_STATUS_SUCCESS &&
        Set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) == CUBLAS_STATUS_SUCCESS;
    if (!is_made || args.bias == nullptr) return is_made;
    return Set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           Set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias) == CUBLAS_STATUS_SUCCESS;
  }

  bool Find(GemmPlan& plan) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt_.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    const size_t workspace_bytes = kGemmWorkspaceBytes;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                       sizeof(workspace_bytes));
    lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                       sizeof(no_reduction));
    cublasLtMatmulHeuristicResult_t found[kMaxAlgorithms];
    int num_found = 0;
    if (lt_.find(handle_, plan.desc, plan.w, plan.x, plan.out, plan.out, preference, kMaxAlgorithms,
                 found, &num_found) != CUBLAS_STATUS_SUCCESS) {
      num_found = 0;
    }
    lt_.preference_destroy(preference);
    SetRows(plan, kMostRows);
    for (int i = 0; i < num_found; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS || !IsWhole(found[i].algo)) continue;
      if (!Fits(plan, found[i].algo)) continue;
      plan.algorithm = found[i].algo;
      return true;
    }
    return false;
  }

  // Whether each element is one sum over K in one block (no split-K).
  bool IsWhole(const cublasLtMatmulAlgo_t& algorithm) {
    const int32_t num_splits = Config(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    return num_splits == 0 || num_splits == 1;
  }

  // -1: the library does not tell.
  int32_t Config(const cublasLtMatmulAlgo_t& algorithm,
                 cublasLtMatmulAlgoConfigAttributes_t attribute) {
    int32_t value = -1;
    size_t num_written = 0;
    const cublasStatus_t status =
        lt_.config_get(&algorithm, attribute, &value, sizeof(value), &num_written);
    return status == CUBLAS_STATUS_SUCCESS ? value : -1;
  }

  void* const library_;
  const CublasLt lt_;
  const cublasLtHandle_t handle_;
  std::map<Key, GemmPlan> plans_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GemmLibrary>> MakeCublasGemm() {
  const std::string name = StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("cuBLASLt is not installed: ", dlerror(),
               "; install CUDA's libcublas, or add --batch-invariant, which does without it"));
  }
  CublasLt lt;
  cublasLtHandle_t handle = nullptr;
  std::string failure = lt.Load(library);
  if (!failure.empty()) {
    failure = StrCat(name, " has no ", failure);
  } else if (const cublasStatus_t status = lt.create(&handle); status != CUBLAS_STATUS_SUCCESS) {
    failure = StrCat(name, " does not start on this device: ", lt.status_name(status));
  }
  if (!failure.empty()) {
    dlclose(library);
    return absl::FailedPreconditionError(failure);
  }
  return std::make_unique<CublasGemm>(library, lt, handle);
}

}  // namespace lssar

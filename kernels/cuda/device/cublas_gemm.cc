#include "kernels/cuda/device/cublas_gemm.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "kernels/cuda/driver.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

// Rows that an algorithm is chosen for, and the most that it must do: chunks of a prompt.
constexpr uint64_t kTypicalRows = 512;
constexpr uint64_t kMostRows = 16384;
constexpr int kMaxAlgorithms = 16;  // that are looked at

// Loaded when it is asked for, not linked: half a gigabyte that a program without fast products
// neither needs on its machine nor maps.
struct CublasLt {
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

  // The name of the first function that is missing; empty: all are there.
  std::string Load(void* library) {
    const auto load = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr ? std::string() : std::string(name);
    };
    for (const std::string& missing :
         {load(create, "cublasLtCreate"), load(destroy, "cublasLtDestroy"),
          load(desc_create, "cublasLtMatmulDescCreate"),
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

int CodeOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return kCudaSuccess;
    case CUBLAS_STATUS_ALLOC_FAILED: return kCudaOutOfMemory;
    case CUBLAS_STATUS_EXECUTION_FAILED: return kCudaLaunchFailure;
    default: return kCudaInvalidValue;
  }
}

// A product of one shape and epilogue. Our rows are the library's columns: out^T = W x^T, where W
// lies as the transpose of a column-major matrix.
struct Product {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm;
  bool is_found = false;
};

class CublasGemm final : public MatrixProducts {
 public:
  CublasGemm(void* library, const CublasLt& lt, cublasLtHandle_t handle)
      : library_(library), lt_(lt), handle_(handle) {}
  ~CublasGemm() override {
    for (auto& [key, product] : products_) {
      if (product.desc != nullptr) lt_.desc_destroy(product.desc);
      for (cublasLtMatrixLayout_t layout : {product.w, product.x, product.out}) {
        if (layout != nullptr) lt_.layout_destroy(layout);
      }
    }
    lt_.destroy(handle_);
    dlclose(library_);
  }

  // Both GELU and a residual: the library would add before it bends.
  bool Takes(const MatrixProductArgs& args) override {
    const bool is_half = args.weight.dtype == DType::kF16 || args.weight.dtype == DType::kBF16;
    return is_half && !(args.gelu && args.residual != nullptr) &&
           uint64_t(args.num_rows) <= kMostRows && ProductFor(args).is_found;
  }

  int Multiply(const MatrixProductArgs& args, void* stream) override {
    Product& product = ProductFor(args);
    cublasStatus_t status = SetRows(product, uint64_t(args.num_rows));
    if (status == CUBLAS_STATUS_SUCCESS && args.bias != nullptr) {
      status = Set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
    }
    if (status != CUBLAS_STATUS_SUCCESS) return CodeOf(status);
    const float one = 1, beta = args.residual != nullptr ? 1.0f : 0.0f;
    const float* const c = args.residual != nullptr ? args.residual : args.out;
    return CodeOf(lt_.multiply(handle_, product.desc, &one, args.weight.elements, product.w, args.x,
                               product.x, &beta, c, product.out, args.out, product.out,
                               &product.algorithm, args.workspace, kProductWorkspaceBytes,
                               static_cast<cudaStream_t>(stream)));
  }

 private:
  // out_features, columns, type, bias, gelu, residual.
  using Key = std::tuple<int, int, DType, bool, bool, bool>;

  template <typename T>
  cublasStatus_t Set(Product& product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return lt_.desc_set(product.desc, attribute, &value, sizeof(value));
  }
  cublasStatus_t SetRows(Product& product, uint64_t num_rows) {
    for (cublasLtMatrixLayout_t layout : {product.x, product.out}) {
      const cublasStatus_t status =
          lt_.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &num_rows, sizeof(num_rows));
      if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
  }

  // One algorithm for every number of rows, found when the shape is met first.
  Product& ProductFor(const MatrixProductArgs& args) {
    const Key key{args.weight.num_rows,
                  args.weight.padded_cols,
                  args.weight.dtype,
                  args.bias != nullptr,
                  args.gelu,
                  args.residual != nullptr};
    const auto [at, is_new] = products_.try_emplace(key);
    if (is_new && Describe(args, at->second)) at->second.is_found = Find(at->second);
    return at->second;
  }

  bool Describe(const MatrixProductArgs& args, Product& product) {
    const cudaDataType_t type = args.weight.dtype == DType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
    const uint64_t cols = uint64_t(args.weight.padded_cols);
    const uint64_t out_features = uint64_t(args.weight.num_rows);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (args.bias != nullptr) epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (args.gelu) {
      epilogue = args.bias != nullptr ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    }
    const bool is_made =
        lt_.desc_create(&product.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&product.w, type, cols, out_features, int64_t(cols)) ==
            CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&product.x, type, cols, kTypicalRows, int64_t(cols)) ==
            CUBLAS_STATUS_SUCCESS &&
        lt_.layout_create(&product.out, CUDA_R_32F, out_features, kTypicalRows,
                          int64_t(out_features)) == CUBLAS_STATUS_SUCCESS &&
        Set(product, CUBLASLT_MATMUL_DESC_TRANSA, transposed) == CUBLAS_STATUS_SUCCESS &&
        Set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) == CUBLAS_STATUS_SUCCESS;
    if (!is_made || args.bias == nullptr) return is_made;
    return Set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           Set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias) == CUBLAS_STATUS_SUCCESS;
  }

  bool Find(Product& product) {
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt_.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    const size_t workspace_bytes = kProductWorkspaceBytes;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                       sizeof(workspace_bytes));
    lt_.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                       sizeof(no_reduction));
    cublasLtMatmulHeuristicResult_t found[kMaxAlgorithms];
    int num_found = 0;
    if (lt_.find(handle_, product.desc, product.w, product.x, product.out, product.out, preference,
                 kMaxAlgorithms, found, &num_found) != CUBLAS_STATUS_SUCCESS) {
      num_found = 0;
    }
    lt_.preference_destroy(preference);
    SetRows(product, kMostRows);
    for (int i = 0; i < num_found; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS || !IsWhole(found[i].algo)) continue;
      cublasLtMatmulHeuristicResult_t largest;
      const cublasStatus_t fits = lt_.check(handle_, product.desc, product.w, product.x,
                                            product.out, product.out, &found[i].algo, &largest);
      if (fits != CUBLAS_STATUS_SUCCESS || largest.workspaceSize > workspace_bytes) continue;
      product.algorithm = found[i].algo;
      return true;
    }
    return false;
  }

  // Whether each element is one sum over all columns, by one block.
  bool IsWhole(const cublasLtMatmulAlgo_t& algorithm) {
    int32_t num_splits = 0;
    size_t num_written = 0;
    return lt_.config_get(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &num_splits,
                          sizeof(num_splits), &num_written) == CUBLAS_STATUS_SUCCESS &&
           num_splits <= 1;
  }

  void* const library_;
  const CublasLt lt_;
  const cublasLtHandle_t handle_;
  std::map<Key, Product> products_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixProducts>> MakeCublasGemm() {
  const std::string name = StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        StrCat("fast products need cuBLASLt, which is not installed: ", dlerror()));
  }
  CublasLt lt;
  cublasLtHandle_t handle = nullptr;
  const std::string missing = lt.Load(library);
  const bool is_started = missing.empty() && lt.create(&handle) == CUBLAS_STATUS_SUCCESS;
  if (!is_started) {
    dlclose(library);
    return absl::FailedPreconditionError(missing.empty()
                                             ? StrCat(name, " does not start on this device")
                                             : StrCat(name, " has no ", missing));
  }
  return std::make_unique<CublasGemm>(library, lt, handle);
}

}  // namespace lssar

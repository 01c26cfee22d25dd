// Shared by the tests of the ops: backends, inputs, comparisons.
#ifndef LSSAR_TESTS_KERNELS_DENSE_CASES_H_
#define LSSAR_TESTS_KERNELS_DENSE_CASES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/float_bits.h"
#include "kernels/quantize.h"

namespace lssar {

// An array of floats in a backend's memory.
class Floats {
 public:
  Floats(Backend& backend, const std::vector<float>& values)
      : backend_(backend), size_(values.size()) {
    auto buffer = backend.Allocate(std::max<size_t>(1, size_) * sizeof(float));
    LSSAR_CHECK(buffer.ok());
    buffer_ = *std::move(buffer);
    if (size_ == 0) return;  // an empty vector has no address to copy from
    LSSAR_CHECK(backend.CopyIn(Address(), values.data(), size_ * sizeof(float)).ok());
  }
  float* Address() { return buffer_->As<float>(); }
  std::vector<float> Values() {
    std::vector<float> values(size_);
    if (size_ == 0) return values;
    LSSAR_CHECK(backend_.CopyOut(values.data(), Address(), size_ * sizeof(float)).ok());
    return values;
  }

 private:
  Backend& backend_;
  std::unique_ptr<Buffer> buffer_;
  size_t size_;
};

inline std::unique_ptr<Backend> MakeCpu(int num_threads, const std::string& instruction_set = "") {
  auto backend =
      MakeBackend({.name = "cpu", .num_threads = num_threads, .instruction_set = instruction_set});
  return backend.ok() ? *std::move(backend) : nullptr;
}

// The instruction sets of this machine by Highway's names, best first.
inline std::vector<std::string> InstructionSets() {
  std::vector<std::string> names;
  for (const char* name :
       {"AVX3_DL", "AVX3", "AVX2", "SSE4", "SSSE3", "NEON", "EMU128", "SCALAR"}) {
    if (MakeCpu(1, name) != nullptr) names.emplace_back(name);
  }
  LSSAR_CHECK(!names.empty());
  return names;
}

// reference, cpu with every instruction set of this machine, the emulated CUDA kernels, and the GPU
// if there is one, both batch-invariant. The names are valid in gtest.
inline std::vector<std::string> BackendNames() {
  std::vector<std::string> names = InstructionSets();
  names.insert(names.begin(), "reference");
  names.emplace_back("CUDA_EMULATED");
  if (MakeBackend({.name = "cuda", .batch_invariant = true}).ok()) names.emplace_back("CUDA");
  return names;
}

// Attention is the one op that takes another path on a device without clusters.
inline std::vector<std::string> AttentionBackendNames() {
  std::vector<std::string> names = BackendNames();
  names.emplace_back("CUDA_EMULATED_SM80");
  return names;
}

inline bool IsCuda(const std::string& name) { return name.starts_with("CUDA"); }

inline std::unique_ptr<Backend> MakeNamed(const std::string& name) {
  if (name == "CUDA_EMULATED") return MakeEmulatedBackend();
  if (name == "CUDA_EMULATED_SM80") return MakeEmulatedBackend(80);
  if (name == "CUDA_EMULATED_LIBRARY") return MakeEmulatedBackend(90, /*has_library=*/true);
  if (name == "reference" || name == "CUDA") {
    auto backend = MakeBackend({.name = name == "CUDA" ? "cuda" : name, .batch_invariant = true});
    LSSAR_CHECK(backend.ok());
    return *std::move(backend);
  }
  return MakeCpu(2, name);
}

// True if the backend has weights of this type.
inline bool Stores(const std::string& backend_name, DType stored) {
  return stored != DType::kI4 || !IsCuda(backend_name);
}

// The backends that have weights of this type.
inline std::vector<std::unique_ptr<Backend>> BackendsWith(DType stored) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const std::string& name : BackendNames()) {
    if (Stores(name, stored)) backends.push_back(MakeNamed(name));
  }
  return backends;
}

inline std::vector<std::unique_ptr<Backend>> AllBackends() { return BackendsWith(DType::kF32); }

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// The types of stored weights: all.
inline constexpr DType kStoredTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8,
                                         DType::kI4};

// The values that `dtype` represents a matrix with `num_cols` columns with.
inline std::vector<float> KeptAs(DType dtype, std::vector<float> w, int num_cols) {
  const size_t width = size_t(num_cols);
  if (dtype == DType::kI4) {  // quantize_test.cc has the rule
    for (size_t row = 0; row < w.size(); row += width) {
      LSSAR_CHECK(RoundWeights(std::span(w).subspan(row, width), dtype));
    }
    return w;
  }
  for (size_t row = 0; row < w.size(); row += width) {
    for (size_t first = 0; first < width; first += size_t{kGroupCols}) {
      const std::span<float> group =
          std::span(w).subspan(row + first, std::min(width - first, size_t{kGroupCols}));
      float largest = 0;
      for (const float value : group) largest = std::max(largest, std::abs(value));
      const float scale = FloatFromBf16(Bf16FromFloat(largest / 127));
      for (float& value : group) {
        if (dtype == DType::kF16) value = FloatFromF16(F16FromFloat(value));
        if (dtype == DType::kBF16) value = FloatFromBf16(Bf16FromFloat(value));
        if (dtype != DType::kI8 || scale == 0) continue;
        value = std::nearbyint(value / scale) * scale + 0.0f;  // int8 has one zero
      }
    }
  }
  return w;
}

inline std::unique_ptr<PackedMatrix> Pack(Backend& backend, const std::vector<float>& w,
                                          int num_rows, int num_cols, DType stored,
                                          bool transposed = false) {
  auto packed = backend.Pack({.elements = w.data(),
                              .dtype = DType::kF32,
                              .num_rows = num_rows,
                              .num_cols = num_cols,
                              .transposed = transposed},
                             stored);
  LSSAR_CHECK(packed.ok());
  return *std::move(packed);
}

// Each element is within its own bound; a NaN never is. Reports the worst element.
inline ::testing::AssertionResult AllClose(const std::vector<float>& got,
                                           const std::vector<double>& want,
                                           const std::vector<double>& bound) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << "sizes differ";
  size_t worst = 0;
  double worst_ratio = -1;
  for (size_t i = 0; i < got.size(); ++i) {
    const double ratio = std::abs(double{got[i]} - want[i]) / bound[i];
    if (std::isnan(ratio) || ratio > worst_ratio) {
      worst = i;
      worst_ratio = ratio;
      if (std::isnan(ratio)) break;
    }
  }
  if (worst_ratio <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "element " << worst << " is " << got[worst] << ", not "
                                       << want[worst] << " +- " << bound[worst];
}

// All elements have the same bits.
inline ::testing::AssertionResult SameBits(const std::vector<float>& got,
                                           const std::vector<float>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << got[i] << ", not " << want[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_DENSE_CASES_H_

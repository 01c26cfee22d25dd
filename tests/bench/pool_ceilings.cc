#include "tests/bench/pool_ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "kernels/host_buffer.h"
#include "tests/bench/median.h"

namespace lssar::bench {
namespace {

// Independent multiply-adds in registers: the upper bound of every GEMM.
__attribute__((target("avx512f"))) void MultiplyAdd512(int64_t num_steps) {
  const __m512 half = _mm512_set1_ps(0.5f);
  // Distinct values: the compiler merges equal sums.
  __m512 a = _mm512_set1_ps(2), b = _mm512_set1_ps(3), c = _mm512_set1_ps(4), e = _mm512_set1_ps(5),
         f = _mm512_set1_ps(6), g = _mm512_set1_ps(7), h = _mm512_set1_ps(8), i = _mm512_set1_ps(9),
         j = _mm512_set1_ps(10), k = _mm512_set1_ps(11);
  for (int64_t step = 0; step < num_steps; ++step) {
    a = _mm512_fmadd_ps(a, half, half), b = _mm512_fmadd_ps(b, half, half);
    c = _mm512_fmadd_ps(c, half, half), e = _mm512_fmadd_ps(e, half, half);
    f = _mm512_fmadd_ps(f, half, half), g = _mm512_fmadd_ps(g, half, half);
    h = _mm512_fmadd_ps(h, half, half), i = _mm512_fmadd_ps(i, half, half);
    j = _mm512_fmadd_ps(j, half, half), k = _mm512_fmadd_ps(k, half, half);
  }
  asm volatile("" ::"v"(a), "v"(b), "v"(c), "v"(e), "v"(f), "v"(g), "v"(h), "v"(i), "v"(j), "v"(k));
}

__attribute__((target("avx2,fma"))) void MultiplyAdd256(int64_t num_steps) {
  const __m256 half = _mm256_set1_ps(0.5f);
  // Distinct values: the compiler merges equal sums.
  __m256 a = _mm256_set1_ps(2), b = _mm256_set1_ps(3), c = _mm256_set1_ps(4), e = _mm256_set1_ps(5),
         f = _mm256_set1_ps(6), g = _mm256_set1_ps(7), h = _mm256_set1_ps(8), i = _mm256_set1_ps(9),
         j = _mm256_set1_ps(10), k = _mm256_set1_ps(11);
  for (int64_t step = 0; step < num_steps; ++step) {
    a = _mm256_fmadd_ps(a, half, half), b = _mm256_fmadd_ps(b, half, half);
    c = _mm256_fmadd_ps(c, half, half), e = _mm256_fmadd_ps(e, half, half);
    f = _mm256_fmadd_ps(f, half, half), g = _mm256_fmadd_ps(g, half, half);
    h = _mm256_fmadd_ps(h, half, half), i = _mm256_fmadd_ps(i, half, half);
    j = _mm256_fmadd_ps(j, half, half), k = _mm256_fmadd_ps(k, half, half);
  }
  asm volatile("" ::"x"(a), "x"(b), "x"(c), "x"(e), "x"(f), "x"(g), "x"(h), "x"(i), "x"(j), "x"(k));
}

__attribute__((target("avx2"))) int64_t ReadBlock(const std::byte* from, size_t num_bytes) {
  __m256i sums[4] = {};
  for (size_t i = 0; i < num_bytes; i += 128) {
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 2048), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(from + i + 2048 + 64), _MM_HINT_T0);
    for (size_t v = 0; v < 4; ++v) {
      const auto* address = reinterpret_cast<const __m256i*>(from + i + 32 * v);
      sums[v] = _mm256_add_epi64(sums[v], _mm256_load_si256(address));
    }
  }
  const __m256i sum =
      _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
  return _mm256_extract_epi64(sum, 0);
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double MeasureFmaGflops(ThreadPool& pool, int num_samples) {
  constexpr int64_t kSteps = 5'000'000;
  const bool has_512 = __builtin_cpu_supports("avx512f") != 0;
  const double flops_per_step = 10.0 * 2 * (has_512 ? 16 : 8);
  std::vector<double> samples;
  for (int i = 0; i < num_samples; ++i) {
    const double start = Now();
    pool.ParallelFor(pool.NumThreads(), [&](int64_t, int) {
      has_512 ? MultiplyAdd512(kSteps) : MultiplyAdd256(kSteps);
    });
    samples.push_back(flops_per_step * kSteps * pool.NumThreads() / (Now() - start) * 1e-9);
  }
  return Median(samples);
}

double MeasureReadGb(ThreadPool& pool, int num_samples) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  auto buffer = AllocateHostBuffer(kColdBytes);
  LSSAR_CHECK(buffer.ok());
  auto* bytes = (*buffer)->As<std::byte>();
  pool.ParallelForOwn(kColdBytes / kBlockBytes, [&](int64_t block, int) {
    std::fill_n(bytes + size_t(block) * kBlockBytes, kBlockBytes, std::byte{1});
  });
  std::vector<double> samples;
  for (int i = 0; i < num_samples; ++i) {
    const double start = Now();
    pool.ParallelFor(kColdBytes / kBlockBytes, [&](int64_t block, int) {
      volatile int64_t keep = ReadBlock(bytes + size_t(block) * kBlockBytes, kBlockBytes);
      (void)keep;
    });
    samples.push_back(kColdBytes / (Now() - start) * 1e-9);
  }
  return Median(samples);
}

double MeasureLoopUs(ThreadPool& pool, int num_samples) {
  constexpr int kLoops = 2000;
  std::vector<double> samples;
  for (int i = 0; i < num_samples; ++i) {
    const double start = Now();
    for (int loop = 0; loop < kLoops; ++loop) {
      pool.ParallelForOwn(pool.NumThreads(), [](int64_t, int) {});
    }
    samples.push_back((Now() - start) / kLoops * 1e6);
  }
  return Median(samples);
}

}  // namespace lssar::bench

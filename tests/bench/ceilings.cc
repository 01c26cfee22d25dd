#include "tests/bench/ceilings.h"

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "kernels/host_buffer.h"

namespace lssar::bench {
namespace {

double SecondsOf(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Eight running sums, so that the loop waits for memory and not for an addition; the widest loads
// that the machine has, as the kernels use them.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t SumOf(const uint64_t* words,
                                                                            size_t num_words) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= num_words; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  return std::accumulate(sums, sums + 8, uint64_t{0});
}

}  // namespace

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t half = samples.size() / 2;
  return samples.size() % 2 ? samples[half] : (samples[half - 1] + samples[half]) / 2;
}

double MeasureReadGbPerSecond(int num_threads) {
  constexpr size_t kWords = size_t{64} << 20;  // 512 MiB
  const absl::StatusOr<std::unique_ptr<Buffer>> memory = AllocateHostBuffer(kWords * 8);
  LSSAR_CHECK(memory.ok());
  uint64_t* const words = (*memory)->As<uint64_t>();
  std::fill_n(words, kWords, 1);
  const size_t share = kWords / size_t(num_threads) / 8 * 8;
  std::vector<double> samples;
  volatile uint64_t keep = 0;
  for (int pass = 0; pass < 7; ++pass) {
    const double seconds = SecondsOf([&] {
      std::vector<std::jthread> threads;
      std::vector<uint64_t> sums(size_t(num_threads) * 8);
      for (int t = 0; t < num_threads; ++t) {
        threads.emplace_back(
            [&, t] { sums[size_t(t) * 8] = SumOf(words + size_t(t) * share, share); });
      }
      threads.clear();
      keep = keep + sums[0];
    });
    samples.push_back(double(share) * 8 * num_threads / seconds / 1e9);
  }
  return Median(samples);
}

double MeasureSgemmGflops(int num_threads) {
  omp_set_num_threads(num_threads);
  constexpr dnnl_dim_t kRows = 512, kIn = 768, kOut = 3072;
  std::vector<float> x(size_t(kRows * kIn), 0.5f), w(size_t(kIn * kOut), 0.25f),
      y(size_t(kRows * kOut));
  auto product = [&] {
    dnnl::sgemm('N', 'N', kRows, kOut, kIn, 1.0f, x.data(), kIn, w.data(), kOut, 0.0f, y.data(),
                kOut);
  };
  product();
  std::vector<double> samples;
  for (int i = 0; i < 7; ++i) samples.push_back(2e-9 * kRows * kIn * kOut / SecondsOf(product));
  return Median(samples);
}

std::string MachineLine(int num_threads) {
  std::string cpu = "unknown CPU", line;
  for (std::ifstream in("/proc/cpuinfo"); std::getline(in, line);) {
    if (line.starts_with("model name")) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  return cpu + ", " + std::to_string(num_threads) + " threads of " +
         std::to_string(std::thread::hardware_concurrency());
}

}  // namespace lssar::bench

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

#include "base/check.h"
#include "kernels/host_buffer.h"
#include "tests/bench/median.h"

namespace lssar::bench {
namespace {

constexpr size_t kReadBytes = size_t{256} << 20;
constexpr dnnl_dim_t kRows = 512, kIn = 768, kOut = 3072;

double SecondsOf(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Eight independent sums, so that the loop waits for memory and not for an addition. Compiled for
// the widest loads of the machine, as the kernels are.
__attribute__((target_clones("avx512f", "avx2", "default"))) uint64_t SumOf(const uint64_t* words,
                                                                            size_t num_words) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 8 <= num_words; i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
  }
  return std::accumulate(sums, sums + 8, uint64_t{0});
}

}  // namespace

Ceilings::Ceilings(int num_threads)
    : num_threads_(num_threads), x_(kRows * kIn, 0.5f), w_(kIn * kOut, 0.25f), y_(kRows * kOut) {
  absl::StatusOr<std::unique_ptr<Buffer>> memory = AllocateHostBuffer(kReadBytes);
  LSSAR_CHECK(memory.ok());
  memory_ = *std::move(memory);
  std::fill_n(memory_->As<uint64_t>(), kReadBytes / sizeof(uint64_t), 1);
  GemmFlops();  // oneDNN compiles its kernel in the first call
}

int64_t Ceilings::NumBytes() const {
  return int64_t(kReadBytes + (x_.size() + w_.size() + y_.size()) * sizeof(float));
}

double Ceilings::ReadBytesPerSecond() {
  const uint64_t* const words = memory_->As<uint64_t>();
  const size_t share = kReadBytes / sizeof(uint64_t) / size_t(num_threads_) / 8 * 8;
  std::vector<uint64_t> sums(size_t(num_threads_) * 8);
  const double seconds = SecondsOf([&] {
    std::vector<std::jthread> threads;
    for (int t = 0; t < num_threads_; ++t) {
      threads.emplace_back(
          [&, t] { sums[size_t(t) * 8] = SumOf(words + size_t(t) * share, share); });
    }
  });
  LSSAR_CHECK(sums[0] == share);
  return double(share * sizeof(uint64_t)) * num_threads_ / seconds;
}

double Ceilings::GemmFlops() {
  omp_set_num_threads(num_threads_);
  const double seconds = SecondsOf([&] {
    dnnl::sgemm('N', 'N', kRows, kOut, kIn, 1.0f, x_.data(), kIn, w_.data(), kOut, 0.0f, y_.data(),
                kOut);
  });
  // OpenMP's threads spin for some milliseconds after their work and would disturb the next
  // measurement.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return 2.0 * kRows * kIn * kOut / seconds;
}

double MeasureReadGbPerSecond(int num_threads) {
  Ceilings ceilings(num_threads);
  std::vector<double> samples;
  for (int pass = 0; pass < 7; ++pass) samples.push_back(ceilings.ReadBytesPerSecond() / 1e9);
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

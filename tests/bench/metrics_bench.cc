// Cost of a metrics report on the engine thread, alone and beside a scraper that never pauses.
#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "server/ops/metrics.h"

namespace lssar {
namespace {

using std::chrono::microseconds;

// Argument: whether a scraper runs.
void BM_NextToken(benchmark::State& state) {
  Metrics metrics;
  std::atomic<bool> is_over = false;
  std::thread scraper;
  if (state.range(0) != 0) {
    scraper = std::thread([&] {
      while (!is_over) benchmark::DoNotOptimize(metrics.Text(EngineStats()));
    });
  }
  for (auto _ : state) {
    // As a Generate call does: read the clock, then report.
    benchmark::DoNotOptimize(Clock::now());
    metrics.OnNextTokens(1, microseconds(7300));
  }
  is_over = true;
  if (scraper.joinable()) scraper.join();
}
BENCHMARK(BM_NextToken)->ArgName("scraper")->Arg(0)->Arg(1);

void BM_Step(benchmark::State& state) {
  Metrics metrics;
  for (auto _ : state) metrics.OnStep(16);
}
BENCHMARK(BM_Step);

void BM_Page(benchmark::State& state) {
  const Metrics metrics;
  for (auto _ : state) benchmark::DoNotOptimize(metrics.Text(EngineStats()));
}
BENCHMARK(BM_Page);

}  // namespace
}  // namespace lssar

BENCHMARK_MAIN();

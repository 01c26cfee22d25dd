// Times attention over paged K/V at the shape of a 124M model (12 heads of 64; "grouped": 4 KV
// heads): LSSAR and softmax of the same backend over the same pages.
//
// Keys, values and queries are random. `v_read` is the share of V rows that a row reads. Calls use
// the layers in turn; together these exceed every cache, so each call reads its pages from memory.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/kv_rows.h"
#include "kernels/two_planes.h"
#include "tests/bench/ceilings.h"

namespace lssar::bench {
namespace {

constexpr int kNumHeads = 12;
constexpr int kHeadDim = 64;
constexpr int kPageSize = 64;
constexpr int kBlockPages = 16;
constexpr size_t kColdPageBytes = size_t{256} << 20;

// One sequence of `num_tokens` in each of some layers.
class Context {
 public:
  Context(Backend& backend, int num_tokens, int num_kv_heads, DType dtype) {
    KvLayout& layout = kv.layout;
    layout = {.num_layers = 1,
              .num_kv_heads = num_kv_heads,
              .head_dim = kHeadDim,
              .page_size = kPageSize,
              .num_pages = (num_tokens + kPageSize - 1) / kPageSize,
              .dtype = dtype};
    layout.num_layers =
        static_cast<int>(1 + kColdPageBytes / (layout.PoolBytes() + layout.ValuePoolBytes()));
    k_ = *backend.Allocate(layout.PoolBytes());
    v_ = *backend.Allocate(layout.ValuePoolBytes());
    kv.k = k_->Address();
    kv.v = v_->Address();
    // Blocks of adjacent pages in random order, as in a pool in use.
    std::vector<int32_t> blocks;
    for (int page = 0; page < layout.num_pages; page += kBlockPages) blocks.push_back(page);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (const int32_t block : blocks) {
      const int32_t end = std::min(block + kBlockPages, layout.num_pages);
      for (int32_t page = block; page < end; ++page) pages.push_back(page);
    }

    // Random numbers for one layer, copied to the others.
    const size_t key_bytes = layout.BlockIndex(1, 0, 0) * BytesOf(dtype);
    const size_t value_bytes = layout.ValueBlockIndex(1, 0, 0) * BytesOf(dtype);
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(kHeadDim)));
    std::vector<float> row(kHeadDim);
    const auto random_row = [&] {
      for (float& x : row) x = normal(random_);
      return std::span<const float>(row);
    };
    for (int page = 0; page < layout.num_pages; ++page) {
      for (int head = 0; head < num_kv_heads; ++head) {
        const KvBlock block = layout.Block(0, page, head);
        for (int slot = 0; slot < kPageSize; ++slot) {
          KeyRow(kv, block, slot).Store(random_row());
          ValueRow(kv, block, slot).Store(random_row());
        }
      }
    }
    for (int layer = 1; layer < layout.num_layers; ++layer) {
      const auto at = static_cast<size_t>(layer);
      std::memcpy(k_->As<char>() + at * key_bytes, kv.k, key_bytes);
      std::memcpy(v_->As<char>() + at * value_bytes, kv.v, value_bytes);
    }
  }

  // Random unit vectors.
  std::vector<float> Queries(int num_rows) {
    std::vector<float> q(static_cast<size_t>(num_rows) * kNumHeads * kHeadDim);
    std::normal_distribution<float> normal;
    for (float* x = q.data(); x < q.data() + q.size(); x += kHeadDim) {
      double squares = 0;
      for (int i = 0; i < kHeadDim; ++i) {
        x[i] = normal(random_);
        squares += double{x[i]} * double{x[i]};
      }
      for (int i = 0; i < kHeadDim; ++i) x[i] = static_cast<float>(x[i] / std::sqrt(squares));
    }
    return q;
  }

  KvView kv;
  std::vector<int32_t> pages;

 private:
  std::mt19937 random_{1};
  std::unique_ptr<Buffer> k_, v_;
};

// The context of the last call, reused: generating it takes longer than most measurements, and the
// library calls a benchmark several times in a row.
Context& CachedContext(Backend& backend, int num_tokens, int num_kv_heads, DType dtype) {
  static std::tuple<int, int, DType> cached_for;
  static std::unique_ptr<Context> context;
  if (context == nullptr || cached_for != std::tuple(num_tokens, num_kv_heads, dtype)) {
    context.reset();
    context = std::make_unique<Context>(backend, num_tokens, num_kv_heads, dtype);
    cached_for = {num_tokens, num_kv_heads, dtype};
  }
  return *context;
}

// args: tokens, rows (the last ones of the sequence), threads, kind, element type, KV heads.
void BM_Attention(benchmark::State& state) {
  const int num_tokens = static_cast<int>(state.range(0));
  const int num_rows = static_cast<int>(state.range(1));
  const AttentionSpec spec{.kind = static_cast<AttentionKind>(state.range(3))};
  const DType dtype = static_cast<DType>(state.range(4));
  const std::unique_ptr<Backend> backend =
      *MakeBackend({.num_threads = static_cast<int>(state.range(2))});
  const int num_kv_heads = static_cast<int>(state.range(5));
  Context& context = CachedContext(*backend, num_tokens, num_kv_heads, dtype);
  const std::vector<float> q = context.Queries(num_rows);
  std::vector<float> out(q.size());

  const std::vector<SequenceSlice> sequences{
      {.num_rows = num_rows, .first_position = num_tokens - num_rows, .pages = context.pages}};
  const RaggedBatch rows{.num_rows = num_rows, .sequences = sequences};
  AttentionStats counters;
  int layer = 0;
  for (auto unused : state) {
    backend->Attention({.rows = &rows,
                        .layer = layer,
                        .num_heads = kNumHeads,
                        .spec = spec,
                        .q = q.data(),
                        .kv = context.kv,
                        .out = out.data(),
                        .counters = &counters});
    layer = (layer + 1) % context.kv.layout.num_layers;
  }

  const double read = static_cast<double>(counters.num_value_rows_read) /
                      static_cast<double>(counters.num_value_rows);
  state.counters["v_read"] = read;
  const double calls = static_cast<double>(state.iterations());
  if (num_rows == 1) {
    // All of the pool of K, and the share of the pool of V. The heads of a group choose different
    // random keys: V rows are counted for each of them, as far as there are rows.
    const KvLayout& layout = context.kv.layout;
    const double of_head = double(num_tokens) * double(BytesOf(dtype)) / kPageSize;
    const double value_heads = std::min(read * kNumHeads, double(num_kv_heads));
    const double num_bytes = of_head * (double(layout.BlockStride()) * num_kv_heads +
                                        double(layout.ValueBlockStride()) * value_heads);
    state.counters["GB/s"] =
        benchmark::Counter(calls * num_bytes / 1e9, benchmark::Counter::kIsRate);
  } else {
    // Multiply-adds of q k^T and of w v under the causal mask.
    const double pairs = (double(num_tokens) - (num_rows - 1) / 2.0) * num_rows * kNumHeads;
    state.counters["GFLOP/s"] =
        benchmark::Counter(calls * pairs * 4 * kHeadDim / 1e9, benchmark::Counter::kIsRate);
  }
}

void Register(int num_threads) {
  struct Work {
    int num_tokens, num_rows, num_kv_heads = kNumHeads;
  };
  constexpr Work kWorks[] = {{1024, 1},  {4096, 1},    {16384, 1},  {16384, 1, 4},
                             {512, 512}, {1024, 1024}, {4096, 512}, {16384, 512}};
  for (DType dtype : {DType::kF16, DType::kFx16, DType::kI8, DType::kF32}) {
    for (const Work& work : kWorks) {
      for (AttentionKind kind : {AttentionKind::kLssar, AttentionKind::kSoftmax}) {
        if (!CheckKvType({.kind = kind}, dtype).ok()) continue;
        const std::string name = std::string(work.num_rows == 1 ? "decode" : "prefill") + "/" +
                                 std::to_string(work.num_rows) + "_of_" +
                                 std::to_string(work.num_tokens) +
                                 (work.num_kv_heads < kNumHeads ? "_grouped/" : "/") +
                                 std::string(NameOf(dtype)) + "/" + std::string(NameOf(kind));
        benchmark::RegisterBenchmark(name.c_str(), BM_Attention)
            ->Args({work.num_tokens, work.num_rows, num_threads, int64_t(kind), int64_t(dtype),
                    work.num_kv_heads})
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace lssar::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const int num_threads = (*lssar::MakeBackend({}))->NumThreads();
  std::printf("%s\nread bandwidth %.1f GB/s\n", lssar::bench::MachineLine(num_threads).c_str(),
              lssar::bench::MeasureReadGbPerSecond(num_threads));
  lssar::bench::Register(num_threads);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

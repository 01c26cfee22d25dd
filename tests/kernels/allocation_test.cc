// An op allocates nothing after its first calls. Counts calls of operator new and the heap's size.
#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <vector>

#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/count_allocations.h"

namespace lssar {
namespace {

class AllocationTest : public testing::TestWithParam<DType> {};

TEST_P(AllocationTest, WarmAttentionAndRopeWriteAllocateNothing) {
  constexpr int kTokens = 4200, kHeads = 2, kDim = 64;
  const std::unique_ptr<Backend> backend = MakeCpu(3);
  const SequenceVectors vectors(kTokens, kHeads, kDim, 1, Content::kNearlyEqualK);
  const PagedKv kv(*backend, {&vectors}, 64, GetParam());
  // A prefill chunk and a decode row, as of two sequences that share their pages.
  const std::vector<SequenceSlice> sequences{
      {.num_rows = 50, .first_position = 100, .pages = kv.Pages(0)},
      {.first_row = 50, .num_rows = 1, .first_position = kTokens - 1, .pages = kv.Pages(0)}};
  const KvView view = kv.Upload();
  const RaggedBatch rows{.num_rows = 51, .sequences = sequences};
  Floats qkv(*backend, RandomFloats(51 * 3 * kHeads * kDim, 2));
  Floats rope(*backend, std::vector<float>(51 * kDim, 0.5f));
  Floats q(*backend, std::vector<float>(51 * kHeads * kDim));
  Floats out(*backend, std::vector<float>(51 * kHeads * kDim));
  const auto step = [&] {
    backend->RopeWrite({.rows = &rows,
                        .layer = kCaseLayer,
                        .num_heads = kHeads,
                        .qkv = qkv.Address(),
                        .rope = rope.Address(),
                        .kv = view,
                        .q = q.Address()});
    backend->Attention({.rows = &rows,
                        .layer = kCaseLayer,
                        .num_heads = kHeads,
                        .spec = {},
                        .q = q.Address(),
                        .kv = view,
                        .out = out.Address()});
  };
  const auto heap_bytes = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  // The assignment of tasks to threads is random, so an area may still grow in a late step. Each
  // area grows only a few times.
  int num_warm_steps = 0;
  for (int i = 0; i < 500 && num_warm_steps < 30; ++i) {
    const int64_t allocations = NumAllocations();
    const size_t bytes = heap_bytes();
    step();
    num_warm_steps =
        NumAllocations() == allocations && heap_bytes() == bytes ? num_warm_steps + 1 : 0;
  }
  EXPECT_EQ(num_warm_steps, 30);
}

INSTANTIATE_TEST_SUITE_P(Pages, AllocationTest, testing::Values(DType::kF16, DType::kFx16),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

}  // namespace
}  // namespace lssar

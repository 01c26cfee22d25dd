// The bits of a row of Attention depend only on the row.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/two_planes.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

constexpr int kTokens = 2300;  // more than one split
constexpr int kHeads = 2;
constexpr int kDim = 32;
constexpr int kFirst = 2272;  // rows from here on are compared

class AttentionBitsTest : public testing::TestWithParam<std::string> {
 protected:
  AttentionBitsTest()
      : sequence_(kTokens, kHeads, kDim, 1, Content::kTopical),
        backend_(IsCuda(GetParam()) ? MakeNamed(GetParam()) : MakeCpu(1, GetParam())) {}

  // Backends that must compute the same bits as backend_: other thread counts or GPU generations.
  std::vector<std::unique_ptr<Backend>> Twins() const {
    std::vector<std::unique_ptr<Backend>> twins;
    if (GetParam().starts_with("CUDA_EMULATED")) {
      twins.push_back(MakeEmulatedBackend(80));
      twins.push_back(MakeEmulatedBackend(90));
    } else if (!IsCuda(GetParam())) {
      for (const int num_threads : {2, 3, 8, 16}) {
        twins.push_back(MakeCpu(num_threads, GetParam()));
      }
    }
    return twins;
  }

  // fp32 if the backend supports such pages, else fp16.
  DType MostExact() const { return IsCuda(GetParam()) ? DType::kF16 : DType::kF32; }

  // Rows from kFirst on in one call.
  std::vector<float> Tail(Backend& backend, const AttentionSpec& spec, int page_size, DType dtype) {
    const PagedKv kv(backend, {&sequence_}, page_size, dtype);
    return Attend(backend, spec, {&sequence_}, kv, {{.first = kFirst, .count = kTokens - kFirst}});
  }
  // Specs that cover every code path of a row, each over fp16, int8 and fx16 pages.
  std::vector<std::pair<AttentionSpec, DType>> SpecsAndTypes() const {
    std::vector<std::pair<AttentionSpec, DType>> all;
    std::vector<AttentionSpec> specs = DistanceSpecs();
    const std::vector<PowerStep> steps = {{.min_keys = 2285, .p = {3}},
                                          {.min_keys = 2295, .p = {2.5}}};
    specs.insert(specs.end(), {AttentionSpec{.p = 15},
                               {.p = 15, .steps = steps},
                               {.kind = AttentionKind::kSoftmaxR, .p = 2, .steps = steps},
                               {.p = 2.5},
                               {.kind = AttentionKind::kLssa},
                               {.kind = AttentionKind::kSoftmax},
                               {.kind = AttentionKind::kSoftmaxR},
                               {.kind = AttentionKind::kSigmoidR, .p = 3},
                               {.kind = AttentionKind::kSigmoidN},
                               {.kind = AttentionKind::kPhi, .phi = Phi::kGelu}});
    for (const AttentionSpec& spec : specs) {
      if (!SupportsAttention(*backend_, spec)) continue;
      for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
        if (CheckKvType(spec, dtype).ok()) all.emplace_back(spec, dtype);
      }
    }
    return all;
  }

  std::vector<int64_t> TailShape() const { return {kTokens - kFirst, kHeads, kDim}; }

  SequenceVectors sequence_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(AttentionBitsTest, PageSizes) {
  for (DType dtype : {MostExact(), DType::kF16, DType::kI8, DType::kFx16}) {
    const std::vector<float> expected = Tail(*backend_, {}, 64, dtype);
    for (int page_size : {16, 32, 128, 256}) {
      EXPECT_TRUE(SameBits(Tail(*backend_, {}, page_size, dtype), expected, TailShape()))
          << page_size;
    }
  }
}

// The bits do not depend on the number of threads or of blocks in a cluster.
TEST_P(AttentionBitsTest, Twins) {
  const SequenceVectors one_head(kTokens, 1, kDim, 2, Content::kTopical);
  for (const auto& [spec, dtype] : SpecsAndTypes()) {
    const std::vector<float> expected = Tail(*backend_, spec, 64, dtype);
    const PagedKv kv(*backend_, {&one_head}, 64, dtype);
    const std::vector<RowRange> last{{.first = kTokens - 1, .count = 1}};
    const std::vector<float> expected_last = Attend(*backend_, spec, {&one_head}, kv, last);
    for (const std::unique_ptr<Backend>& twin : Twins()) {
      EXPECT_TRUE(SameBits(Tail(*twin, spec, 64, dtype), expected, TailShape()));
      // One row of one head: its splits are shared.
      const PagedKv twin_kv(*twin, {&one_head}, 64, dtype);
      EXPECT_TRUE(
          SameBits(Attend(*twin, spec, {&one_head}, twin_kv, last), expected_last, {1, kDim}));
    }
  }
}

// The re-weighted softplus of lssar has the same bits on every instruction set with fused
// multiply-add.
TEST_P(AttentionBitsTest, InstructionSets) {
  if (!GetParam().starts_with("AVX")) return;
  const std::unique_ptr<Backend> avx2 = MakeCpu(1, "AVX2");
  ASSERT_NE(avx2, nullptr);
  for (const double p : {15.0, 3.0, 1.0, 2.5}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      const AttentionSpec spec{.p = p};
      EXPECT_TRUE(
          SameBits(Tail(*backend_, spec, 64, dtype), Tail(*avx2, spec, 64, dtype), TailShape()))
          << NameOf(dtype) << ", p " << p;
    }
  }
  for (const Content content : {Content::kRandom, Content::kNearlyEqualK}) {  // flat rows too
    const SequenceVectors sequence(75, 1, 80, 4, content);
    EXPECT_TRUE(SameBits(AttendAll(*backend_, {}, sequence, 64, DType::kF16),
                         AttendAll(*avx2, {}, sequence, 64, DType::kF16), {75, 1, 80}));
  }
}

// A prompt in one call, in random chunks, and one row at a time.
TEST_P(AttentionBitsTest, Chunkings) {
  std::mt19937 random(3);
  for (const auto& [spec, dtype] : SpecsAndTypes()) {
    const PagedKv kv(*backend_, {&sequence_}, 64, dtype);
    const std::vector<float> expected = Tail(*backend_, spec, 64, dtype);
    for (const int largest : {1, 7, 50}) {
      std::vector<float> chunked;
      for (int row = kFirst; row < kTokens;) {
        const int count = std::min(kTokens - row,
                                   1 + static_cast<int>(random() % static_cast<unsigned>(largest)));
        const std::vector<float> out =
            Attend(*backend_, spec, {&sequence_}, kv, {{.first = row, .count = count}});
        chunked.insert(chunked.end(), out.begin(), out.end());
        row += count;
      }
      EXPECT_TRUE(SameBits(chunked, expected, TailShape()))
          << "chunks of at most " << largest << ", " << NameOf(dtype);
    }
  }
}

TEST_P(AttentionBitsTest, ShortPromptsInChunks) {
  for (const Content content : {Content::kRandom, Content::kNearlyEqualK, Content::kZeroQ}) {
    const SequenceVectors sequence(75, 1, 80, 4, content);
    for (const DType dtype : {MostExact(), DType::kI8, DType::kFx16}) {
      const PagedKv kv(*backend_, {&sequence}, 16, dtype);
      const std::vector<float> expected = AttendAll(*backend_, {}, sequence, 64, dtype);
      std::vector<float> rows;
      for (int row = 0; row < 75; ++row) {
        const std::vector<float> out =
            Attend(*backend_, {}, {&sequence}, kv, {{.first = row, .count = 1}});
        rows.insert(rows.end(), out.begin(), out.end());
      }
      EXPECT_TRUE(SameBits(rows, expected, {75, 1, 80}));
    }
  }
}

// Query heads that share a KV head are computed together in a step of one row, and apart in a
// prompt.
TEST_P(AttentionBitsTest, GroupedHeads) {
  if (!backend_->Supports(Feature::kGroupedQuery)) return;
  constexpr int kQueryHeads = 10, kCount = 3;
  const SequenceVectors sequence(kTokens, kQueryHeads, kDim, 7, Content::kTopical);
  auto specs_and_types = SpecsAndTypes();
  const AttentionSpec by_head{
      .steps = {{.min_keys = 1, .p = {15, 3, 2.5, 15, 1, 0.5, 100, 15, 15, 7}},
                {.min_keys = kTokens, .p = {3, 3, 15, 2.5, 1, 15, 15, 15, 30, 1}}}};
  if (SupportsAttention(*backend_, by_head)) {
    for (const DType dtype : {DType::kF16, DType::kFx16}) {
      specs_and_types.emplace_back(by_head, dtype);
    }
  }
  for (const auto& [spec, dtype] : specs_and_types) {
    for (const int num_kv_heads : {1, 5}) {
      const PagedKv kv(*backend_, {&sequence}, 64, dtype, num_kv_heads);
      const std::vector<float> whole =
          Attend(*backend_, spec, {&sequence}, kv, {{.first = kTokens - kCount, .count = kCount}});
      for (int i = 0; i < kCount; ++i) {
        const std::vector<RowRange> row{{.first = kTokens - kCount + i, .count = 1}};
        const size_t size = size_t{kQueryHeads} * kDim;
        const std::vector<float> expected(whole.begin() + ptrdiff_t(size_t(i) * size),
                                          whole.begin() + ptrdiff_t((size_t(i) + 1) * size));
        EXPECT_TRUE(SameBits(Attend(*backend_, spec, {&sequence}, kv, row), expected,
                             {1, kQueryHeads, kDim}))
            << num_kv_heads << " KV heads, " << NameOf(dtype);
        for (const std::unique_ptr<Backend>& twin : Twins()) {
          const PagedKv twin_kv(*twin, {&sequence}, 64, dtype, num_kv_heads);
          EXPECT_TRUE(SameBits(Attend(*twin, spec, {&sequence}, twin_kv, row), expected,
                               {1, kQueryHeads, kDim}))
              << "on other threads";
          break;
        }
      }
    }
  }
}

// Rows enough to fill the device are computed by 128 in a block on CUDA, fewer by 64.
TEST_P(AttentionBitsTest, TilesOfManyRows) {
  if (!IsCuda(GetParam())) return;
  const bool is_emulated = GetParam() != "CUDA";
  const int num_tokens = is_emulated ? 300 : 2300, num_heads = is_emulated ? 4 : 16;
  constexpr int kSkipped = 40, kChunk = 60;
  const SequenceVectors sequence(num_tokens, num_heads, 64, 8, Content::kTopical);
  for (const auto& [p, dtype] : {std::pair{15.0, DType::kF16},
                                 {15.0, DType::kI8},
                                 {3.0, DType::kF16},
                                 {2.5, DType::kF16},
                                 {15.0, DType::kFx16},
                                 {2.5, DType::kFx16}}) {
    const AttentionSpec spec{.p = p};
    const PagedKv kv(*backend_, {&sequence}, 64, dtype);
    const std::vector<float> expected = Attend(
        *backend_, spec, {&sequence}, kv, {{.first = kSkipped, .count = num_tokens - kSkipped}});
    std::vector<float> chunked;
    for (int row = kSkipped; row < num_tokens; row += kChunk) {
      const std::vector<float> out =
          Attend(*backend_, spec, {&sequence}, kv,
                 {{.first = row, .count = std::min(kChunk, num_tokens - row)}});
      chunked.insert(chunked.end(), out.begin(), out.end());
    }
    EXPECT_TRUE(SameBits(chunked, expected, {num_tokens - kSkipped, num_heads, 64}))
        << NameOf(dtype) << ", p " << p;
  }
}

TEST_P(AttentionBitsTest, BatchMates) {
  const SequenceVectors other(700, kHeads, kDim, 5, Content::kRandom);
  const SequenceVectors third(9, kHeads, kDim, 6, Content::kTopical);
  const std::vector<const SequenceVectors*> sequences{&other, &sequence_, &third};
  const std::vector<RowRange> ranges{{.sequence = 0, .first = 660, .count = 40},
                                     {.sequence = 1, .first = kFirst, .count = kTokens - kFirst},
                                     {.sequence = 2, .first = 0, .count = 9},
                                     {.sequence = 0, .first = 5, .count = 1}};
  for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
    const PagedKv kv(*backend_, sequences, 64, dtype);
    const std::vector<float> expected = Tail(*backend_, {}, 64, dtype);
    const std::vector<float> all = Attend(*backend_, {}, sequences, kv, ranges);
    EXPECT_TRUE(
        SameBits({all.data() + 40 * kHeads * kDim, expected.size()}, expected, TailShape()));
  }
}

std::vector<std::string> AllButReference() {
  std::vector<std::string> names = AttentionBackendNames();
  std::erase(names, "reference");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionBitsTest, testing::ValuesIn(AllButReference()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace lssar

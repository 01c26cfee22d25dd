// AttentionWeights returns the weights that Attention multiplies the values by.
#include "kernels/attention_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/two_planes.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

class AttentionWeightsTest : public testing::TestWithParam<std::string> {
 protected:
  AttentionWeightsTest() : backend_(MakeNamed(GetParam())) {}

  bool Supports(DType dtype) const {
    KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .dtype = dtype};
    return backend_->FitLayout(layout).ok();
  }
  double Tolerance() const { return IsCuda(GetParam()) ? 5e-4 : 2e-5; }  // of max |v|; ops.h

  // Rows [first, num_tokens) of the sequence: by row, then by head.
  std::vector<AttentionRow> RowsOf(const SequenceVectors& sequence, const PagedKv& kv, int first,
                                   const AttentionSpec& spec) {
    // The batch starts with rows of another sequence: args.row counts rows of the batch.
    constexpr int kOthers = 3;
    const auto row_floats = std::ptrdiff_t(sequence.RowFloats());
    std::vector<float> q(size_t(kOthers * row_floats), 7);
    q.insert(q.end(), sequence.q.begin() + first * row_floats, sequence.q.end());
    Floats on_backend(*backend_, q);
    const SequenceSlice rows{.first_row = kOthers,
                             .num_rows = sequence.num_tokens - first,
                             .first_position = first,
                             .pages = kv.Pages(0)};
    std::vector<AttentionRow> found;
    for (int r = 0; r < rows.num_rows; ++r) {
      for (int head = 0; head < sequence.num_heads; ++head) {
        auto row = AttentionWeights({.sequence = &rows,
                                     .row = kOthers + r,
                                     .layer = kCaseLayer,
                                     .num_heads = sequence.num_heads,
                                     .head = head,
                                     .spec = spec,
                                     .q = on_backend.Address(),
                                     .kv = kv.Upload()},
                                    backend_.get());
        LSSAR_CHECK(row.ok());
        found.push_back(*std::move(row));
      }
    }
    return found;
  }

  std::vector<std::vector<double>> WeightsOf(const SequenceVectors& sequence, const PagedKv& kv,
                                             int first, const AttentionSpec& spec) {
    std::vector<std::vector<double>> weights;
    for (AttentionRow& row : RowsOf(sequence, kv, first, spec)) {
      weights.push_back(std::move(row.weights));
    }
    return weights;
  }

  const std::unique_ptr<Backend> backend_;
};

int64_t NumNonZero(const std::vector<std::vector<double>>& weights) {
  int64_t count = 0;
  for (const auto& row : weights) {
    count += std::ssize(row) - std::ranges::count(row, 0.0);
  }
  return count;
}

double Largest(const std::vector<float>& values) {
  double largest = 0;
  for (const float x : values) largest = std::max(largest, std::fabs(double{x}));
  return largest;
}

TEST_P(AttentionWeightsTest, WeightedValuesSumToTheOutput) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
    if (!Supports(dtype)) continue;
    std::vector<AttentionSpec> specs = FamilySpecs();
    specs.push_back({.p = 3});
    specs.push_back(
        {.p = 3, .steps = {{.min_keys = 60, .p = {15, 2}}, {.min_keys = 148, .p = {5}}}});
    for (const AttentionSpec& spec : specs) {
      if (!SupportsAttention(*backend_, spec) || !CheckKvType(spec, dtype).ok()) continue;
      const AttentionForm form = spec.Form();
      SequenceVectors sequence(150, 2, 64, 21, Content::kTopical);
      if (!form.is_length_scaled) sequence.LengthenQueries();
      PagedKv kv(*backend_, {&sequence}, 16, dtype);
      for (const int first : {0, 140}) {
        const auto weights = WeightsOf(sequence, kv, first, spec);
        std::vector<float> out;
        for (size_t i = 0; i < weights.size(); ++i) {
          const std::vector<double>& w = weights[i];
          ASSERT_EQ(w.size(), size_t(first) + i / 2 + 1);
          if (form.divisor == Divisor::kRowSum) {
            EXPECT_NEAR(std::accumulate(w.begin(), w.end(), 0.0), 1, 1e-12);
          }
          if (form.phi != Phi::kGelu && form.phi != Phi::kMish) {
            EXPECT_GE(*std::ranges::min_element(w), 0);
          }
          std::array<double, 64> sums{};
          for (int j = 0; j < int(w.size()); ++j) {
            const KvRow value = kv.Value(0, j, int(i % 2));
            for (int dim = 0; dim < 64; ++dim) sums[size_t(dim)] += w[size_t(j)] * value.Load(dim);
          }
          for (const double sum : sums) out.push_back(float(sum));
        }
        const int num_rows = 150 - first;
        EXPECT_TRUE(AllNear(
            Attend(*backend_, spec, {&sequence}, kv, {{.first = first, .count = num_rows}}), out,
            {num_rows, 2, 64}, Tolerance() * std::max(LargestValue(sequence), Largest(out))))
            << NameOf(dtype) << ", " << NameOfSpec(spec);
      }
    }
  }
}

TEST_P(AttentionWeightsTest, AreZeroIfTheValueIsNotRead) {
  const SequenceVectors sequence(1500, 1, 64, 22, Content::kTopical);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF16);
  std::vector<AttentionStats> counters;
  Attend(*backend_, {}, {&sequence}, kv, {{.first = 1480, .count = 20}}, &counters);
  const int64_t num_read = NumNonZero(WeightsOf(sequence, kv, 1480, {}));
  if (GetParam() == "reference") {
    EXPECT_EQ(num_read, counters[0].num_value_rows_read);
  } else {  // a weight next to the threshold may round to either side
    EXPECT_NEAR(double(num_read), double(counters[0].num_value_rows_read), 3);
  }
  EXPECT_LT(num_read, counters[0].num_value_rows / 2);
}

// x_j = max(0, N a_j - 1) in double, from the definition and the stored keys: keys with x_j = 0 are
// zero; those with a small x_j > 0 are negligible and not counted.
TEST_P(AttentionWeightsTest, CountKeysWithoutAWeightApartFromNegligibleOnes) {
  constexpr int kTokens = 700, kFirst = 690, kDim = 64;
  const SequenceVectors sequence(kTokens, 1, kDim, 24, Content::kTopical);
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kFx16}) {
    if (!Supports(dtype)) continue;
    PagedKv kv(*backend_, {&sequence}, 64, dtype);
    const std::vector<AttentionRow> rows = RowsOf(sequence, kv, kFirst, {});
    for (size_t r = 0; r < rows.size(); ++r) {
      const int num_keys = kFirst + int(r) + 1;
      std::vector<double> phi;
      double sum = 0;
      for (int j = 0; j < num_keys; ++j) {
        double dot = 0;
        for (int dim = 0; dim < kDim; ++dim) {
          dot += double{sequence.q[size_t(kFirst + int(r)) * kDim + size_t(dim)]} *
                 kv.Key(0, j, 0).Load(dim);
        }
        phi.push_back(std::log1p(std::exp(std::log(kDim) * std::log(num_keys) * dot)));
        sum += phi.back();
      }
      // Keys next to the threshold may be counted on either side where the sum or q is rounded.
      const double margin = dtype == DType::kFx16 ? 1e-3 : 1e-12;
      const auto count_below = [&](double limit) {
        return std::ranges::count_if(phi, [&](double x) { return num_keys * x / sum <= limit; });
      };
      EXPECT_GE(rows[r].num_zero, count_below(1 - margin));
      EXPECT_LE(rows[r].num_zero, count_below(1 + margin));
      EXPECT_GT(rows[r].num_zero, num_keys / 3);
      EXPECT_LT(rows[r].num_zero, std::ranges::count(rows[r].weights, 0.0));
    }
  }
}

TEST_P(AttentionWeightsTest, SoftmaxHasNoZeros) {
  const SequenceVectors sequence(40, 1, 64, 25, Content::kTopical);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF16);
  const AttentionSpec softmax{.kind = AttentionKind::kSoftmax};
  if (!SupportsAttention(*backend_, softmax)) return;
  for (const AttentionRow& row : RowsOf(sequence, kv, 30, softmax)) EXPECT_EQ(row.num_zero, 0);
}

// All scores are equal: the row keeps its stage-1 weights, 1/N each.
TEST_P(AttentionWeightsTest, AreEqualIfNoKeyStandsOut) {
  const SequenceVectors sequence(70, 1, 64, 23, Content::kZeroQ);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF16);
  for (const auto& row : WeightsOf(sequence, kv, 60, {})) {
    for (const double w : row) EXPECT_NEAR(w, 1 / double(row.size()), 1e-15);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionWeightsTest, testing::ValuesIn(AttentionBackendNames()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace lssar

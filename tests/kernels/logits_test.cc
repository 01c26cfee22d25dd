#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(EmbedTest, GivesTheStoredRows) {
  const int vocab = 71, width = 145;
  const std::vector<float> table = RandomFloats(size_t(vocab * width), 1);
  const std::vector<int32_t> ids = {0, 70, 31, 32, 33, 31, 64, 1};
  for (const DType stored : kStoredTypes) {
    const std::vector<float> kept = KeptAs(stored, table, width);
    std::vector<float> want;
    for (const int32_t id : ids) {
      want.insert(want.end(), kept.begin() + id * width, kept.begin() + (id + 1) * width);
    }
    for (const auto& backend : AllBackends()) {
      const auto packed = Pack(*backend, table, vocab, width, stored);
      Floats out(*backend, std::vector<float>(want.size()));
      backend->Embed({.ids = ids, .table = packed.get(), .out = out.Address()});
      EXPECT_TRUE(SameBits(out.Values(), want)) << backend->Describe() << " " << NameOf(stored);
    }
  }
}

class LogitsTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Stored, LogitsTest, ::testing::ValuesIn(kStoredTypes),
                         [](const auto& param) { return std::string(NameOf(param.param)); });

TEST_P(LogitsTest, AreTheLinearOfTheChosenRows) {
  const int num_rows = 30, width = 100, vocab = 70;
  const std::vector<float> x_values = RandomFloats(size_t(num_rows * width), 1);
  const std::vector<float> w = RandomFloats(size_t(vocab * width), 2);
  for (const auto& backend : AllBackends()) {
    const auto weight = Pack(*backend, w, vocab, width, GetParam());
    Floats x(*backend, x_values);
    Floats norm_weight(*backend, RandomFloats(size_t(width), 3));
    Floats norm_bias(*backend, RandomFloats(size_t(width), 4));
    const LayerNormView norm = {.weight = norm_weight.Address(), .bias = norm_bias.Address()};
    Floats all(*backend, std::vector<float>(size_t(num_rows * vocab)));
    backend->Linear({.num_rows = num_rows,
                     .x = x.Address(),
                     .norm = norm,
                     .weight = weight.get(),
                     .out = all.Address()});
    const std::vector<float> rows = all.Values();
    for (const std::vector<int32_t>& row_ids : {std::vector<int32_t>{29},
                                                {0},
                                                {},
                                                {3, 3, 17},
                                                {28, 2, 7, 9, 11, 1, 0, 5, 6, 8, 4, 29, 3}}) {
      std::vector<float> want;
      for (const int32_t row : row_ids) {
        want.insert(want.end(), rows.begin() + row * vocab, rows.begin() + (row + 1) * vocab);
      }
      Floats logits(*backend, std::vector<float>(want.size()));
      backend->Logits({.x = x.Address(),
                       .row_ids = row_ids,
                       .norm = norm,
                       .weight = weight.get(),
                       .logits = logits.Address()});
      EXPECT_TRUE(SameBits(logits.Values(), want)) << backend->Describe();
    }
  }
}

std::vector<RowLogprobs> RunTop(Backend& backend, const std::vector<float>& logits, int vocab,
                                const std::vector<int32_t>& targets,
                                const std::vector<int32_t>& num_top) {
  Floats on_backend(backend, logits);
  std::vector<RowLogprobs> out(targets.size());
  backend.TopLogprobs({.logits = on_backend.Address(),
                       .vocab = vocab,
                       .targets = targets,
                       .num_top = num_top,
                       .out = out});
  return out;
}

RowLogprobs RunTopOfRow(Backend& backend, const std::vector<float>& logits, int32_t target,
                        int32_t num_top) {
  return RunTop(backend, logits, static_cast<int>(logits.size()), {target}, {num_top})[0];
}

double LogSumExp(const std::vector<float>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  return max + std::log(sum);
}

TEST(TopLogprobsTest, MatchesItsDefinition) {
  for (const auto& backend : AllBackends()) {
    for (const int vocab : {1, 2, 15, 16, 17, 63, 64, 65, 129, 1000, 50257}) {
      const std::vector<float> logits = RandomFloats(size_t(vocab), uint32_t(vocab), 4);
      const double log_sum = LogSumExp(logits);
      const auto expect_close = [&](float got, int32_t id) {
        const double want = double{logits[size_t(id)]} - log_sum;
        EXPECT_LE(std::abs(double{got} - want), 2e-6 * std::max(1.0, std::abs(want)))
            << backend->Describe() << " vocabulary " << vocab << " id " << id;
      };
      std::vector<int32_t> ids(static_cast<size_t>(vocab));
      std::iota(ids.begin(), ids.end(), 0);
      std::sort(ids.begin(), ids.end(),
                [&](int32_t a, int32_t b) { return logits[size_t(a)] > logits[size_t(b)]; });
      for (const int num_top : {0, 1, 5, 20, std::min(vocab, 1000)}) {
        if (num_top > vocab) continue;
        const int32_t target = vocab / 3;
        const RowLogprobs row = RunTopOfRow(*backend, logits, target, num_top);
        EXPECT_TRUE(row.finite);
        expect_close(row.target, target);
        ASSERT_EQ(row.top.size(), size_t(num_top));
        for (size_t i = 0; i < row.top.size(); ++i) {
          expect_close(row.top[i].logprob, row.top[i].id);
          // Distinct logits may round to one logprob, and change places by id then.
          EXPECT_NEAR(logits[size_t(row.top[i].id)], logits[size_t(ids[i])], 2e-6);
          if (row.top[i].id == target) {
            EXPECT_EQ(row.top[i].logprob, row.target);
          }
          if (i == 0) continue;
          EXPECT_TRUE(
              row.top[i - 1].logprob > row.top[i].logprob ||
              (row.top[i - 1].logprob == row.top[i].logprob && row.top[i - 1].id < row.top[i].id));
        }
      }
    }
  }
}

TEST(TopLogprobsTest, EqualOnesComeByRisingId) {
  std::vector<float> logits(200, 1.0f);
  logits[150] = logits[7] = logits[99] = 3.0f;
  for (const auto& backend : AllBackends()) {
    const RowLogprobs row = RunTopOfRow(*backend, logits, 150, 6);
    std::vector<int32_t> ids;
    for (const TokenLogprob& entry : row.top) ids.push_back(entry.id);
    EXPECT_EQ(ids, (std::vector<int32_t>{7, 99, 150, 0, 1, 2})) << backend->Describe();
  }
}

TEST(TopLogprobsTest, LogitsThatRoundToOneLogprobComeByRisingId) {
  // Near 40 below the largest, a step of the logprob is wider than the steps of these logits.
  std::vector<float> logits(80, -1.0f);
  logits[0] = 40.0f;
  logits[70] = 0x1.000002p-1f;
  logits[3] = 0x1p-1f;
  for (const auto& backend : AllBackends()) {
    const RowLogprobs row = RunTopOfRow(*backend, logits, 3, 3);
    ASSERT_EQ(row.top.size(), 3u);
    EXPECT_EQ(row.top[1].logprob, row.top[2].logprob);
    EXPECT_EQ(row.top[1].id, 3) << backend->Describe();
    EXPECT_EQ(row.top[2].id, 70) << backend->Describe();
    EXPECT_EQ(row.target, row.top[1].logprob);
  }
}

TEST(TopLogprobsTest, ExtremeLogitsStayFinite) {
  const std::vector<float> logits = {-3e38f, 3e38f, 0.0f};
  for (const auto& backend : AllBackends()) {
    const RowLogprobs row = RunTopOfRow(*backend, logits, 1, 1);
    EXPECT_TRUE(row.finite) << backend->Describe();
    EXPECT_EQ(row.target, 0.0f) << backend->Describe();
    EXPECT_EQ(row.top[0].id, 1) << backend->Describe();
  }
}

TEST(TopLogprobsTest, ARowThatIsNotFiniteSaysSo) {
  constexpr int kVocab = 90;
  for (const float poison : {kNan, kInfinity, -kInfinity}) {
    for (const size_t place : {size_t{0}, size_t{40}, size_t{89}}) {
      std::vector<float> logits = RandomFloats(3 * kVocab, 1);
      logits[kVocab + place] = poison;
      for (const auto& backend : AllBackends()) {
        const auto rows = RunTop(*backend, logits, kVocab, {1, 2, 3}, {2, 2, 2});
        EXPECT_TRUE(rows[0].finite);
        EXPECT_TRUE(rows[2].finite);
        EXPECT_FALSE(rows[1].finite) << backend->Describe() << " " << poison << " at " << place;
        EXPECT_EQ(rows[1].target, 0.0f);
        EXPECT_TRUE(rows[1].top.empty());
      }
    }
  }
}

TEST(TopLogprobsTest, BitsDependOnTheRowAlone) {
  constexpr int kVocab = 3001, kRows = 9;
  const std::vector<float> logits = RandomFloats(kRows * kVocab, 1, 3);
  const auto best = MakeCpu(1);
  std::vector<RowLogprobs> alone;
  for (int row = 0; row < kRows; ++row) {
    const auto begin = logits.begin() + row * kVocab;
    alone.push_back(RunTopOfRow(*best, {begin, begin + kVocab}, row, 4));
  }
  for (const std::string& name : InstructionSets()) {
    for (const int num_threads : {1, 2, 4}) {
      const auto backend = MakeCpu(num_threads, name);
      const auto together = RunTop(*backend, logits, kVocab, {0, 1, 2, 3, 4, 5, 6, 7, 8},
                                   std::vector<int32_t>(kRows, 4));
      for (size_t row = 0; row < kRows; ++row) {
        EXPECT_EQ(together[row].target, alone[row].target) << name;
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(together[row].top[i].id, alone[row].top[i].id) << name;
          EXPECT_EQ(together[row].top[i].logprob, alone[row].top[i].logprob) << name;
        }
      }
    }
  }
}

TEST(TopLogprobsTest, NoTargetIsZero) {
  const std::vector<float> logits = RandomFloats(50, 1);
  for (const auto& backend : AllBackends()) {
    const RowLogprobs row = RunTopOfRow(*backend, logits, -1, 2);
    EXPECT_EQ(row.target, 0.0f);
    EXPECT_EQ(row.top.size(), 2u);
  }
}

}  // namespace
}  // namespace lssar

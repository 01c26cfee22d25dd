#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

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
    for (const auto& backend : BackendsWith(stored)) {
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

TEST_P(LogitsTest, EqualLinearOverTheSelectedRows) {
  const int num_rows = 30, width = 100, vocab = 70;
  const std::vector<float> x_values = RandomFloats(size_t(num_rows * width), 1);
  const std::vector<float> w = RandomFloats(size_t(vocab * width), 2);
  for (const auto& backend : BackendsWith(GetParam())) {
    const auto weight = Pack(*backend, w, vocab, width, GetParam());
    Floats x(*backend, x_values);
    Floats norm_weight(*backend, RandomFloats(size_t(width), 3));
    Floats norm_bias(*backend, RandomFloats(size_t(width), 4));
    const NormView norm = {
        .kind = NormKind::kLayerNorm, .weight = norm_weight.Address(), .bias = norm_bias.Address()};
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

}  // namespace
}  // namespace lssar

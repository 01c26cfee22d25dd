// RopeWrite against its definition, slot by slot.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kv_rows.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

// Three sequences: rows 0..4 at positions 14..18 on pages 5, 2; row 5 at position 0 on page 3; rows
// 6..39, which are several tasks, at positions 3..36 on pages 0, 6, 4.
constexpr int kRows = 40;
constexpr int kPageSize = 16;
constexpr int kNumPages = 7;
const std::vector<int32_t> kFirstPages{5, 2};
const std::vector<int32_t> kSecondPages{3};
const std::vector<int32_t> kThirdPages{0, 6, 4};
const std::vector<SequenceSlice> kSequences{
    {.num_rows = 5, .first_position = 14, .pages = kFirstPages},
    {.first_row = 5, .num_rows = 1, .first_position = 0, .pages = kSecondPages},
    {.first_row = 6, .num_rows = 34, .first_position = 3, .pages = kThirdPages}};

struct RopeCase {
  int head_dim = 64;
  DType dtype = DType::kF32;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  bool normalize = true;
  float scale = 1;     // of q and k
  int group_size = 1;  // query heads per KV head
  int rotary_dims = 0;
  double rotary_factor = 1;
  NormKind qk_norm = NormKind::kNone;
  bool qk_norm_has_weight = true;
  bool after_rotary = false;
};

struct Written {
  // k and v [layer][page][head][slot][dim], widened. Elements that were not written are kUntouched.
  std::vector<float> q, k, v;
  std::vector<float> k_steps;  // the scale of each element of k; 0 if the type has none
};

constexpr float kUntouched = -127;  // exact in every type; its scale is 1

template <class F>
void ForEachSlot(const KvView& kv, const F& f) {
  for (int layer = 0; layer < kv.layout.num_layers; ++layer) {
    for (int page = 0; page < kv.layout.num_pages; ++page) {
      for (int head = 0; head < kv.layout.num_kv_heads; ++head) {
        const KvBlock block = kv.layout.Block(layer, page, head);
        for (int slot = 0; slot < kv.layout.page_size; ++slot) {
          f(KeyRow(kv, block, slot), ValueRow(kv, block, slot));
        }
      }
    }
  }
}

Written WriteCase(Backend& backend, const RopeCase& c) {
  constexpr int kKvHeads = 3;
  const int num_heads = kKvHeads * c.group_size;
  const size_t q_floats = size_t(num_heads) * size_t(c.head_dim);
  const size_t kv_floats = kKvHeads * size_t(c.head_dim);
  const size_t row_floats = q_floats + 2 * kv_floats;
  KvView kv{.layout = {.num_layers = 2,
                       .num_kv_heads = kKvHeads,
                       .head_dim = c.head_dim,
                       .page_size = kPageSize,
                       .num_pages = kNumPages,
                       .dtype = c.dtype}};
  LSSAR_CHECK(backend.FitLayout(kv.layout).ok());
  std::vector<char> host_k(kv.layout.PoolBytes()), host_v(kv.layout.ValuePoolBytes());
  const KvView host{.layout = kv.layout, .k = host_k.data(), .v = host_v.data()};
  const std::vector<float> untouched(static_cast<size_t>(c.head_dim), kUntouched);
  ForEachSlot(host, [&](const KvRow& key, const KvRow& value) {
    key.Store(untouched);
    value.Store(untouched);
  });
  const std::unique_ptr<Buffer> k = *backend.Allocate(host_k.size());
  const std::unique_ptr<Buffer> v = *backend.Allocate(host_v.size());
  kv.k = k->Address();
  kv.v = v->Address();
  LSSAR_CHECK(backend.CopyIn(kv.k, host.k, host_k.size()).ok());
  LSSAR_CHECK(backend.CopyIn(kv.v, host.v, host_v.size()).ok());

  std::vector<float> qkv = RandomFloats(kRows * row_floats, 1);
  for (size_t i = 0; i < qkv.size(); ++i) {
    if (i % row_floats < q_floats + kv_floats) qkv[i] *= c.scale;
  }
  const int rotary_dims = c.rotary_dims > 0 ? c.rotary_dims : c.head_dim;
  std::vector<float> rope(kRows * static_cast<size_t>(rotary_dims));
  for (size_t i = 0; i < rope.size(); ++i) {
    const size_t half = static_cast<size_t>(rotary_dims) / 2, row = i / (2 * half),
                 at = i % (2 * half);
    const double angle = 0.37 * static_cast<double>(row + 1) / (1.0 + double(at % half));
    rope[i] = float(c.rotary_factor * (at < half ? std::cos(angle) : std::sin(angle)));
  }
  Floats qkv_floats(backend, qkv), rope_floats(backend, rope);
  const size_t width = static_cast<size_t>(c.head_dim);
  Floats q_weight(backend, RandomFloats(width, 5)), k_weight(backend, RandomFloats(width, 6));
  Floats q_bias(backend, RandomFloats(width, 7, 0.1f)),
      k_bias(backend, RandomFloats(width, 8, 0.1f));
  const auto norm = [&](Floats& weight, Floats& bias) -> NormView {
    if (!c.qk_norm_has_weight) return {.kind = c.qk_norm};
    return {.kind = c.qk_norm, .weight = weight.Address(), .bias = bias.Address()};
  };
  Floats q(backend, std::vector<float>(kRows * q_floats, std::numeric_limits<float>::quiet_NaN()));
  const RaggedBatch rows{.num_rows = kRows, .sequences = kSequences};
  backend.RopeWrite({.rows = &rows,
                     .layer = 1,
                     .num_heads = num_heads,
                     .qkv = qkv_floats.Address(),
                     .rope = rope_floats.Address(),
                     .rope_layout = c.rope_layout,
                     .rotary_dims = c.rotary_dims,
                     .scales_rotary = c.rotary_factor != 1,
                     .qk_norm = {.q = norm(q_weight, q_bias),
                                 .k = norm(k_weight, k_bias),
                                 .after_rotary = c.after_rotary},
                     .normalize = c.normalize,
                     .kv = kv,
                     .q = q.Address()});
  EXPECT_TRUE(backend.Synchronize().ok());
  LSSAR_CHECK(backend.CopyOut(host.k, kv.k, host_k.size()).ok());
  LSSAR_CHECK(backend.CopyOut(host.v, kv.v, host_v.size()).ok());
  Written written{.q = q.Values(), .k = {}, .v = {}, .k_steps = {}};
  ForEachSlot(host, [&](const KvRow& key, const KvRow& value) {
    for (int dim = 0; dim < c.head_dim; ++dim) {
      written.k.push_back(static_cast<float>(key.Load(dim)));
      written.v.push_back(static_cast<float>(value.Load(dim)));
      written.k_steps.push_back(key.scale == nullptr ? 0.0f : *key.scale);
    }
  });
  return written;
}

class RopeWriteTest : public testing::TestWithParam<std::string> {
 protected:
  RopeWriteTest()
      : reference_(*MakeBackend({.name = "reference"})), backend_(MakeNamed(GetParam())) {}

  // The case with fp16 pages if the backend has no fp32 pages.
  RopeCase Supported(RopeCase c) const {
    if (IsCuda(GetParam()) && c.dtype == DType::kF32) c.dtype = DType::kF16;
    return c;
  }

  void Check(const RopeCase& wanted) {
    const RopeCase c = Supported(wanted);
    KvLayout layout{.head_dim = c.head_dim, .dtype = c.dtype};
    if (!backend_->FitLayout(layout).ok()) return;  // attention_test checks FitLayout
    SCOPED_TRACE(testing::Message()
                 << "head_dim " << c.head_dim << ", " << NameOf(c.dtype) << ", scale " << c.scale);
    const Written expected = WriteCase(*reference_, c);
    const Written actual = WriteCase(*backend_, c);
    const double unit = c.normalize ? 1.0 : double{c.scale};
    // An element near a tie may round to the other neighbour, one unit in the last place away.
    const double rounding = c.dtype == DType::kF16 ? 0x1p-10 : 0;
    const int64_t num_elements = static_cast<int64_t>(expected.k.size());
    EXPECT_TRUE(AllNear(actual.q, expected.q, {kRows, 3 * c.group_size, c.head_dim}, 2e-6 * unit));
    std::vector<double> bounds;
    for (size_t i = 0; i < expected.k.size(); ++i) {
      const double step = double{expected.k_steps[i]};  // a tie may move the element by one step
      bounds.push_back(2e-6 * unit + rounding * std::fabs(double{expected.k[i]}) + 1.0001 * step);
    }
    EXPECT_TRUE(AllWithin(actual.k, expected.k, {num_elements}, bounds));
    EXPECT_TRUE(SameBits(actual.v, expected.v, {num_elements}));
  }

  std::unique_ptr<Backend> reference_, backend_;
};

TEST_P(RopeWriteTest, MatchesTheReference) {
  for (int head_dim : {2, 8, 32, 64, 80, 128}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      Check({.head_dim = head_dim, .dtype = dtype});
      Check({.head_dim = head_dim, .dtype = dtype, .rope_layout = RopeLayout::kInterleaved});
      Check({.head_dim = head_dim, .dtype = dtype, .normalize = false});
    }
  }
}

TEST_P(RopeWriteTest, GroupedQueryHeads) {
  if (!backend_->Supports(Feature::kGroupedQuery)) return;
  for (const int group_size : {2, 4}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      Check({.dtype = dtype, .group_size = group_size});
    }
  }
}

TEST_P(RopeWriteTest, PartialRotary) {
  if (!backend_->Supports(Feature::kPartialRotary)) return;
  for (const int rotary_dims : {2, 16, 30, 62}) {
    for (const bool normalize : {false, true}) {
      Check({.normalize = normalize, .rotary_dims = rotary_dims});
      Check({.rope_layout = RopeLayout::kInterleaved,
             .normalize = normalize,
             .rotary_dims = rotary_dims});
    }
  }
  // The elements behind rotary_dims stay as they are, to the bit.
  const Written partial = WriteCase(*backend_, Supported({.normalize = false, .rotary_dims = 16}));
  const std::vector<float> qkv = RandomFloats(kRows * 9 * 64, 1);
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t i = 16; i < 64; ++i) ASSERT_EQ(partial.q[row * 192 + i], qkv[row * 576 + i]) << i;
  }
}

// YaRN's attention factor: the norm is that of the vector behind the rotation, which it scales.
TEST_P(RopeWriteTest, ScaledCosinesAndSines) {
  for (const double factor : {1.25, 0.5}) {
    for (const bool normalize : {false, true}) {
      RopeCase c = {.normalize = normalize, .rotary_factor = factor};
      Check(c);
      if (!backend_->Supports(Feature::kPartialRotary)) continue;
      c.rotary_dims = 30;
      Check(c);
      if (!backend_->Supports(Feature::kQkNorm)) continue;
      c.qk_norm = NormKind::kRmsNorm;
      c.scale = normalize ? 1.0f : 6.0f;  // as in QkNorm
      Check(c);
      c.after_rotary = true;
      Check(c);
    }
  }
}

TEST_P(RopeWriteTest, QkNorm) {
  if (!backend_->Supports(Feature::kQkNorm)) return;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (const bool after_rotary : {false, true}) {
      for (const bool normalize : {false, true}) {
        for (const bool has_weight : {false, true}) {
          RopeCase c = {.normalize = normalize,
                        .group_size = 2,
                        .rotary_dims = 48,
                        .qk_norm = kind,
                        .qk_norm_has_weight = has_weight,
                        .after_rotary = after_rotary};
          // The result of a norm is some units large: the tolerance of Check is relative to scale.
          if (!normalize) c.scale = 6;
          Check(c);
          c.dtype = DType::kF16;
          Check(c);
        }
      }
    }
  }
}

TEST_P(RopeWriteTest, NormsWhoseSquareOverflowsOrUnderflows) {
  for (float scale : {1e30f, 1e19f, 1e-10f, 1e-15f}) Check({.scale = scale});
}

// Normalised vectors have length 1; one shorter than kMinNorm is divided by kMinNorm.
TEST_P(RopeWriteTest, Norms) {
  for (const auto& [scale, norm] : {std::pair{1e30f, 1.0}, {1.0f, 1.0}, {0.0f, 0.0}}) {
    const std::vector<float> q = WriteCase(*backend_, Supported({.scale = scale})).q;
    for (size_t head = 0; head < q.size() / 64; ++head) {
      double squares = 0;
      for (size_t i = 0; i < 64; ++i) squares += std::pow(double{q[head * 64 + i]}, 2);
      EXPECT_NEAR(std::sqrt(squares), norm, 1e-6) << scale;
    }
  }
}

TEST_P(RopeWriteTest, WritesItsOwnSlotsOnly) {
  for (const DType dtype : {DType::kF32, DType::kI8, DType::kFx16}) {
    const Written written = WriteCase(*backend_, Supported({.dtype = dtype}));
    // 3 heads of 64 elements.
    const auto count = [](const std::vector<float>& pool) {
      return std::count_if(pool.begin(), pool.end(), [](float x) { return x != kUntouched; });
    };
    EXPECT_EQ(count(written.k), kRows * 3 * 64);
    EXPECT_EQ(count(written.v), kRows * 3 * 64);
  }
}

// Zero keys have the scale 0. Stored values are within half a step of their input.
TEST_P(RopeWriteTest, Int8OfZerosAndOfLargeNumbers) {
  const Written zeros = WriteCase(*backend_, {.dtype = DType::kI8, .scale = 0});
  for (size_t i = 0; i < zeros.k.size(); ++i) {
    if (zeros.k[i] == kUntouched) continue;
    ASSERT_EQ(zeros.k[i], 0.0f) << i;
    ASSERT_EQ(zeros.k_steps[i], 0.0f) << i;
  }
  for (float scale : {1e30f, 1e-15f}) Check({.dtype = DType::kI8, .scale = scale});
  const Written exact = WriteCase(*reference_, {});
  const Written rounded = WriteCase(*backend_, {.dtype = DType::kI8});
  for (size_t row = 0; row < exact.v.size(); row += 64) {
    float largest = 0;
    for (size_t i = row; i < row + 64; ++i) largest = std::max(largest, std::fabs(exact.v[i]));
    for (size_t i = row; i < row + 64; ++i) {
      ASSERT_NEAR(rounded.v[i], exact.v[i], largest / 254 * 1.0001f) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RopeWriteTest, testing::ValuesIn(BackendNames()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace lssar

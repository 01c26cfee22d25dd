#include "kernels/philox.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "kernels/sample_math.h"

namespace lssar {
namespace {

// Test vectors of the reference implementation (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// A draw must not change between releases. Values of a second implementation of the generator.
TEST(Philox, KnownDraws) {
  constexpr uint64_t kSeed = (uint64_t{1} << 63) + 1, kPosition = (uint64_t{1} << 32) + 5;
  EXPECT_EQ(DrawFor(kSeed, 3, kPosition), 0x07b4760f60ca5b78u);
  EXPECT_EQ(DrawFor(1, 3, kPosition), 0x93f97f6c857f1b4bu);
  EXPECT_EQ(DrawFor(kSeed, 0, kPosition), 0xcb70b19235d6e07bu);
  EXPECT_EQ(DrawFor(kSeed, 3, 5), 0x214d9800ad9108f1u);
}

TEST(Philox, DrawsAreUniform) {
  double sum = 0;
  for (uint64_t position = 0; position < 100000; ++position) {
    const double u = double(DrawFor(9, 2, position)) * 0x1p-64;
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

// Compares with a 128-bit product.
TEST(Philox, ScaledDrawIsTheProductsUpperHalf) {
  const uint64_t largest_total = uint64_t{1} << 62;
  EXPECT_EQ(ScaledDraw(0, largest_total), 0u);
  EXPECT_EQ(ScaledDraw(~uint64_t{0}, largest_total), largest_total - 1);
  EXPECT_EQ(ScaledDraw(~uint64_t{0}, 1), 0u);
  for (uint64_t i = 0; i < 10000; ++i) {
    const uint64_t draw = DrawFor(1, 1, i), total = DrawFor(1, 2, i) >> (i % 64);
    const auto product = static_cast<unsigned __int128>(draw) * total;
    ASSERT_EQ(ScaledDraw(draw, total), static_cast<uint64_t>(product >> 64));
  }
}

}  // namespace
}  // namespace lssar

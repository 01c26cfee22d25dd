// Comparison of float arrays. NaN never passes, not even against NaN.
#ifndef LSSAR_TESTS_SUPPORT_COMPARE_H_
#define LSSAR_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lssar {

// Each succeeds if the arrays have the sizes of `shape` and every element passes. A failure names
// the coordinate of the worst element in `shape` (a non-finite element counts as the worst), both
// values, and the number of failed elements.

// |actual - expected| <= tolerance.
testing::AssertionResult AllNear(std::span<const float> actual, std::span<const float> expected,
                                 const std::vector<int64_t>& shape, double tolerance);

// |actual - expected| <= bounds[i]. The worst element has the largest |difference| / bound.
testing::AssertionResult AllWithin(std::span<const float> actual, std::span<const float> expected,
                                   const std::vector<int64_t>& shape,
                                   std::span<const double> bounds);

// Equal bits. NaN fails even against itself.
testing::AssertionResult SameBits(std::span<const float> actual, std::span<const float> expected,
                                  const std::vector<int64_t>& shape);

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_COMPARE_H_

// Comparison of arrays of floats. A NaN equals nothing and is within no tolerance.
#ifndef LSSAR_TESTS_SUPPORT_COMPARE_H_
#define LSSAR_TESTS_SUPPORT_COMPARE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

namespace lssar {

// Each succeeds when the arrays have the sizes of `shape` and every element passes. A failure names
// the worst element's coordinate in `shape` (one that is not finite is worse than any other), both
// values, and how many elements failed.

// |actual - expected| <= tolerance.
testing::AssertionResult AllNear(std::span<const float> actual, std::span<const float> expected,
                                 const std::vector<int64_t>& shape, double tolerance);

// |actual - expected| <= bounds[i]. The worst is the largest in units of its bound.
testing::AssertionResult AllWithin(std::span<const float> actual, std::span<const float> expected,
                                   const std::vector<int64_t>& shape,
                                   std::span<const double> bounds);

// The same bits. A NaN fails even against itself.
testing::AssertionResult SameBits(std::span<const float> actual, std::span<const float> expected,
                                  const std::vector<int64_t>& shape);

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_COMPARE_H_

#include "tests/support/compare.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>

namespace lssar {
namespace {

std::string Coordinate(size_t idx, const std::vector<int64_t>& shape) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0;) {
    const size_t size = static_cast<size_t>(shape[axis]);
    text = std::to_string(idx % size) + (text.empty() ? "" : ", ") + text;
    idx /= size;
  }
  return "[" + text + "]";
}

// `badness` of an element: at most 1 if it passes, infinite if a value is not finite.
template <class Badness>
testing::AssertionResult Compare(std::span<const float> actual, std::span<const float> expected,
                                 const std::vector<int64_t>& shape, const Badness& badness) {
  size_t count = 1;
  for (int64_t size : shape) count *= static_cast<size_t>(size);
  if (actual.size() != count || expected.size() != count) {
    return testing::AssertionFailure() << "shape has " << count << " elements, actual "
                                       << actual.size() << ", expected " << expected.size();
  }
  size_t num_failed = 0, worst_idx = 0;
  double worst = -1;
  for (size_t i = 0; i < count; ++i) {
    const bool finite = std::isfinite(actual[i]) && std::isfinite(expected[i]);
    const double bad = finite ? badness(i) : std::numeric_limits<double>::infinity();
    num_failed += bad <= 1 ? 0 : 1;
    if (bad > worst) {
      worst = bad;
      worst_idx = i;
    }
  }
  if (num_failed == 0) return testing::AssertionSuccess();
  const double difference = std::fabs(double{actual[worst_idx]} - double{expected[worst_idx]});
  return testing::AssertionFailure()
         << num_failed << " of " << count << " elements differ; worst at "
         << Coordinate(worst_idx, shape) << ": actual " << testing::PrintToString(actual[worst_idx])
         << ", expected " << testing::PrintToString(expected[worst_idx]) << ", |difference| "
         << difference << ", " << worst << " times its tolerance";
}

// 0 / 0 (no difference, no tolerance) passes.
double InUnitsOf(double bound, float actual, float expected) {
  const double difference = std::fabs(double{actual} - double{expected});
  return difference == 0 ? 0 : difference / bound;
}

}  // namespace

testing::AssertionResult AllNear(std::span<const float> actual, std::span<const float> expected,
                                 const std::vector<int64_t>& shape, double tolerance) {
  return Compare(actual, expected, shape,
                 [&](size_t i) { return InUnitsOf(tolerance, actual[i], expected[i]); });
}

testing::AssertionResult AllWithin(std::span<const float> actual, std::span<const float> expected,
                                   const std::vector<int64_t>& shape,
                                   std::span<const double> bounds) {
  if (bounds.size() != actual.size()) {
    return testing::AssertionFailure() << bounds.size() << " bounds for " << actual.size();
  }
  return Compare(actual, expected, shape,
                 [&](size_t i) { return InUnitsOf(bounds[i], actual[i], expected[i]); });
}

testing::AssertionResult SameBits(std::span<const float> actual, std::span<const float> expected,
                                  const std::vector<int64_t>& shape) {
  return Compare(actual, expected, shape, [&](size_t i) {
    const bool same = std::bit_cast<uint32_t>(actual[i]) == std::bit_cast<uint32_t>(expected[i]);
    return same ? 0.0 : 1.0 + std::fabs(double{actual[i]} - double{expected[i]}) + 1e-6;
  });
}

}  // namespace lssar

#include "clients/cli/bench_lengths.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

constexpr int kLongest = 1 << 20;
constexpr double kMostSigma = 4;

absl::Status BadLength(absl::string_view flag, absl::string_view text) {
  return absl::InvalidArgumentError(
      StrCat(flag, ": '", text,
             "' is not fixed:N, uniform:A,B or lognormal:MEAN,SIGMA with lengths from 1 to ",
             kLongest, " and SIGMA from 0 to ", kMostSigma));
}

}  // namespace

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view flag,
                                                             absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  LengthDistribution lengths;
  lengths.text_ = std::string(text);
  if (parts.first == "lognormal") {
    const std::vector<absl::string_view> numbers = absl::StrSplit(parts.second, ',');
    double mean = 0;
    double sigma = 0;
    if (numbers.size() != 2 || !absl::SimpleAtod(numbers[0], &mean) ||
        !absl::SimpleAtod(numbers[1], &sigma) || !(mean >= 1 && mean <= kLongest) ||
        !(sigma >= 0 && sigma <= kMostSigma)) {
      return BadLength(flag, text);
    }
    lengths.mu_ = std::log(mean) - sigma * sigma / 2;
    lengths.sigma_ = sigma;
    return lengths;
  }
  const bool is_plain = text.find(':') == absl::string_view::npos;
  const auto counts = ParseCounts(flag, is_plain ? parts.first : parts.second, 1, kLongest);
  if (!counts.ok()) return BadLength(flag, text);
  const bool is_fixed = (is_plain || parts.first == "fixed") && counts->size() == 1;
  const bool is_uniform =
      parts.first == "uniform" && counts->size() == 2 && counts->front() <= counts->back();
  if (!is_fixed && !is_uniform) return BadLength(flag, text);
  lengths.low_ = counts->front();
  lengths.high_ = counts->back();
  return lengths;
}

int LengthDistribution::Draw(std::mt19937_64* random) const {
  if (!sigma_.has_value()) return std::uniform_int_distribution<int>(low_, high_)(*random);
  const double drawn = std::lognormal_distribution<double>(mu_, *sigma_)(*random);
  return static_cast<int>(std::clamp(std::round(drawn), 1.0, static_cast<double>(kLongest)));
}

std::optional<int> LengthDistribution::Longest() const {
  if (sigma_.has_value()) return std::nullopt;
  return high_;
}

}  // namespace lssar::cli

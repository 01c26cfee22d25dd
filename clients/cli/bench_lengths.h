// How many tokens the prompts and the outputs of a bench have.
#ifndef LSSAR_CLIENTS_CLI_BENCH_LENGTHS_H_
#define LSSAR_CLIENTS_CLI_BENCH_LENGTHS_H_

#include <optional>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lssar::cli {

class LengthDistribution {
 public:
  // "fixed:N" (or N), "uniform:A,B" (both ends may be drawn), "lognormal:MEAN,SIGMA" (MEAN of the
  // lengths, SIGMA of their natural logarithms). Lengths are in [1, 1048576]; SIGMA in [0, 4].
  // Errors  INVALID_ARGUMENT: anything else; names `flag`
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view flag, absl::string_view text);

  // At least 1.
  int Draw(std::mt19937_64* random) const;

  // The longest that can be drawn; nullopt: there is none (lognormal).
  std::optional<int> Longest() const;

  // As it was parsed.
  const std::string& Text() const { return text_; }

 private:
  LengthDistribution() = default;

  std::string text_;
  // uniform and fixed
  int low_ = 1;
  int high_ = 1;
  // lognormal, where sigma is set: of the logarithm
  double mu_ = 0;
  std::optional<double> sigma_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_BENCH_LENGTHS_H_

#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"

namespace lssar {

namespace {

constexpr double kTurn = 2 * std::numbers::pi;

// The pair whose wavelength fits `num_turns` times into the original length.
double PairOfTurns(const RopeScaling& scaling, double num_turns, double base, double num_dims) {
  return num_dims * std::log(scaling.original_length / (num_turns * kTurn)) / (2 * std::log(base));
}

void ScaleByYarn(const RopeScaling& scaling, double base, std::span<double> frequencies) {
  const double num_dims = 2 * double(frequencies.size());
  double low = PairOfTurns(scaling, scaling.beta_fast, base, num_dims);
  double high = PairOfTurns(scaling, scaling.beta_slow, base, num_dims);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, num_dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= (1 - ramp) + ramp / scaling.factor;
  }
}

void ScaleByLlama3(const RopeScaling& scaling, std::span<double> frequencies) {
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  for (double& frequency : frequencies) {
    const double num_turns = scaling.original_length * frequency / kTurn;
    const double smooth = std::clamp((num_turns - low) / (high - low), 0.0, 1.0);
    frequency *= (1 - smooth) / scaling.factor + smooth;
  }
}

}  // namespace

void FillRopeFrequencies(const ModelConfig& config, double base, std::span<double> frequencies) {
  const RopeScaling& scaling = config.rope_scaling;
  const size_t num_pairs = frequencies.size();
  for (size_t i = 0; i < num_pairs; ++i) {
    frequencies[i] = std::pow(std::fabs(base), -double(i) / double(num_pairs));
  }
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone: break;
    case RopeScaling::Kind::kLinear:
      for (double& frequency : frequencies) frequency /= scaling.factor;
      break;
    case RopeScaling::Kind::kYarn: ScaleByYarn(scaling, base, frequencies); break;
    case RopeScaling::Kind::kLlama3: ScaleByLlama3(scaling, frequencies); break;
    case RopeScaling::Kind::kLongRope: {
      const std::vector<double>& factors = base < 0 ? scaling.long_factors : scaling.short_factors;
      for (size_t i = 0; i < num_pairs; ++i) frequencies[i] /= factors[i];
      break;
    }
  }
}

void FillRopeAngles(const ModelConfig& config, const RaggedBatch& rows,
                    std::span<const double> bases, std::span<double> frequencies,
                    std::span<float> angles) {
  const size_t half = frequencies.size();
  const double factor = config.rope_scaling.attention_factor;
  LSSAR_CHECK(bases.size() == rows.sequences.size());
  LSSAR_CHECK(angles.size() >= size_t(rows.num_rows) * 2 * half);
  for (size_t s = 0; s < rows.sequences.size(); ++s) {
    FillRopeFrequencies(config, bases[s], frequencies);
    const SequenceSlice& sequence = rows.sequences[s];
    for (int r = 0; r < sequence.num_rows; ++r) {
      const std::span<float> row =
          angles.subspan(size_t(sequence.first_row + r) * 2 * half, 2 * half);
      const double position = double(sequence.first_position + r);
      for (size_t i = 0; i < half; ++i) {
        row[i] = float(factor * std::cos(position * frequencies[i]));
        row[half + i] = float(factor * std::sin(position * frequencies[i]));
      }
    }
  }
}

}  // namespace lssar

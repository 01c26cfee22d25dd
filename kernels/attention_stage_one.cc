#include "kernels/attention_stage_one.h"

#include <algorithm>
#include <cmath>

namespace lssar {
namespace {

// ln(1 + e^s), in the form that overflows nowhere.
double Softplus(double s) { return std::max(s, 0.0) + std::log1p(std::exp(-std::fabs(s))); }

double Sigmoid(double s) {
  const double t = std::exp(-std::fabs(s));
  return (s < 0 ? t : 1.0) / (1.0 + t);
}

}  // namespace

double ScaleOf(const AttentionSpec& spec, int head_dim, int num_keys) {
  const double dim = head_dim;
  return spec.Form().is_length_scaled ? std::log(dim) * std::log(static_cast<double>(num_keys))
                                      : 1.0 / std::sqrt(dim);
}

double ShiftOf(const AttentionSpec& spec, int num_keys) {
  switch (spec.Form().shift) {
    case ScoreShift::kNone: return 0.0;
    case ScoreShift::kMaxPositionEmbeddings:
      return -std::log(static_cast<double>(spec.max_position_embeddings));
    case ScoreShift::kKeys: return -std::log(static_cast<double>(num_keys));
  }
  return 0.0;
}

// NaN stays NaN: comparisons are written so that it is returned.
double PhiOf(Phi phi, double score) {
  const double s = score;
  const double relu = s < 0 ? 0.0 : s;
  switch (phi) {
    case Phi::kRelu: return relu;
    case Phi::kRelu2: return relu * relu;
    case Phi::kRelu6: return relu > 6 ? 6.0 : relu;
    case Phi::kGelu: return 0.5 * s * std::erfc(-s / std::sqrt(2.0));
    case Phi::kSigmoid: return Sigmoid(s);
    case Phi::kSoftplus: return Softplus(s);
    case Phi::kMish: return s * std::tanh(Softplus(s));
    case Phi::kExp: return std::exp(s);
  }
  return 0.0;
}

double DivisorOf(const AttentionSpec& spec, double row_norm) {
  switch (spec.Form().divisor) {
    case Divisor::kRowSum: return row_norm;
    case Divisor::kRowNorm: return row_norm < double{kMinNorm} ? double{kMinNorm} : row_norm;
    case Divisor::kOne: return 1.0;
    case Divisor::kMaxPositionEmbeddings: return spec.max_position_embeddings;
  }
  return 1.0;
}

}  // namespace lssar

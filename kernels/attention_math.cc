#include "kernels/attention_math.h"

#include <algorithm>
#include <cmath>

#include "base/str_cat.h"

namespace lssar {
namespace {

// ln(1 + e^s), in a form that never overflows.
double Softplus(double s) { return std::max(s, 0.0) + std::log1p(std::exp(-std::fabs(s))); }

double Sigmoid(double s) {
  const double t = std::exp(-std::fabs(s));
  return (s < 0 ? t : 1.0) / (1.0 + t);
}

}  // namespace

absl::Status CheckAttentionSpec(const AttentionSpec& spec) {
  const AttentionForm form = spec.Form();
  if (form.reweights && !(spec.p > 0 && std::isfinite(spec.p))) {
    return absl::InvalidArgumentError(
        StrCat("attention p is ", spec.p, ", must be a finite number above 0"));
  }
  const bool needs_length = form.shift == ScoreShift::kMaxPositionEmbeddings ||
                            form.divisor == Divisor::kMaxPositionEmbeddings;
  if (needs_length && spec.max_position_embeddings < 1) {
    return absl::InvalidArgumentError(StrCat("attention kind \"", NameOf(spec.kind),
                                             "\" needs max_position_embeddings; it is ",
                                             spec.max_position_embeddings, ", must be at least 1"));
  }
  return absl::OkStatus();
}

double ScaleOf(const AttentionSpec& spec, int head_dim, int num_keys) {
  const double dim = head_dim;
  return spec.Form().is_length_scaled ? std::log(dim) * std::log(double(num_keys))
                                      : 1.0 / std::sqrt(dim);
}

double ShiftOf(const AttentionSpec& spec, int num_keys) {
  switch (spec.Form().shift) {
    case ScoreShift::kNone: return 0.0;
    case ScoreShift::kMaxPositionEmbeddings: return -std::log(double(spec.max_position_embeddings));
    case ScoreShift::kKeys: return -std::log(double(num_keys));
  }
  return 0.0;
}

// NaN stays NaN: every comparison with NaN is false and then returns the NaN.
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

#include "kernels/attention_math.h"

#include <algorithm>
#include <bit>
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
  const auto is_power = [](double p) { return p > 0 && std::isfinite(p); };
  if (form.reweights && !is_power(spec.p)) {
    return absl::InvalidArgumentError(
        StrCat("attention p is ", spec.p, ", must be a finite number above 0"));
  }
  if (!form.reweights && !spec.steps.empty()) {
    return absl::InvalidArgumentError(StrCat("attention kind \"", NameOf(spec.kind),
                                             "\" is given powers, but does not re-weight"));
  }
  int least = 1;
  for (const PowerStep& step : spec.steps) {
    if (step.p.empty() || !std::ranges::all_of(step.p, is_power)) {
      return absl::InvalidArgumentError(StrCat("attention p from ", step.min_keys, " keys on is ",
                                               StrJoin(step.p),
                                               ", must be finite numbers above 0"));
    }
    if (step.min_keys < least) {
      return absl::InvalidArgumentError(
          StrCat("attention p has a step at ", step.min_keys, " keys, must be at least ", least));
    }
    least = step.min_keys + 1;
  }
  const bool needs_length = form.shift == ScoreShift::kMaxPositionEmbeddings ||
                            form.divisor == Divisor::kMaxPositionEmbeddings;
  if (needs_length && spec.max_position_embeddings < 1) {
    return absl::InvalidArgumentError(StrCat("attention kind \"", NameOf(spec.kind),
                                             "\" needs max_position_embeddings; it is ",
                                             spec.max_position_embeddings, ", must be at least 1"));
  }
  if (spec.window < 0) {
    return absl::InvalidArgumentError(
        StrCat("attention window is ", spec.window, ", must be at least 0 (0: no window)"));
  }
  if (spec.kind != AttentionKind::kSoftmax && (spec.window > 0 || spec.has_alibi)) {
    return absl::InvalidArgumentError(
        StrCat("attention kind \"", NameOf(spec.kind), "\" is given ",
               spec.has_alibi ? std::string("ALiBi") : StrCat("a window of ", spec.window),
               ", which only kind \"softmax\" has"));
  }
  return absl::OkStatus();
}

double AlibiSlope(int head, int num_heads) {
  const int power = int(std::bit_floor(unsigned(num_heads)));
  if (head < power) return std::exp2(-8.0 * (head + 1) / power);
  return std::exp2(-8.0 * (2 * (head - power) + 1) / (2 * power));
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

bool IsExpRow(const AttentionForm& form, double largest) {
  if (form.phi == Phi::kExp) return true;
  return form.phi == Phi::kSigmoid && form.divisor == Divisor::kRowSum && largest < kExpScore;
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

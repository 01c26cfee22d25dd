#include "kernels/attention_check.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lssar {
namespace {

const char* KindName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSoftmax: return "softmax";
    case AttentionKind::kLssa: return "lssa";
    case AttentionKind::kLssar: return "lssar";
    case AttentionKind::kSoftmaxR: return "softmax_r";
    case AttentionKind::kSigmoid: return "sigmoid";
    case AttentionKind::kSigmoidN: return "sigmoid_n";
    case AttentionKind::kSigmoidNL1: return "sigmoid_n_l1";
    case AttentionKind::kSigmoidR: return "sigmoid_r";
    case AttentionKind::kPhi: return "phi";
    case AttentionKind::kReluWortsman: return "relu_wortsman";
  }
  return "?";
}

}  // namespace

absl::Status CheckAttentionSpec(const AttentionSpec& spec) {
  if (spec.Form().sharpens && !(spec.p > 0 && std::isfinite(spec.p))) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention p is ", spec.p, ", must be a finite number above 0"));
  }
  const bool needs_context = spec.Form().shift == ScoreShift::kTrainedContext ||
                             spec.Form().divisor == Divisor::kTrainedContext;
  if (needs_context && spec.trained_context < 1) {
    return absl::InvalidArgumentError(absl::StrCat("attention kind \"", KindName(spec.kind),
                                                   "\" needs the trained context, it is ",
                                                   spec.trained_context, ", must be at least 1"));
  }
  return absl::OkStatus();
}

absl::Status CheckCudaAttention(const AttentionSpec& spec) {
  switch (spec.kind) {
    case AttentionKind::kLssar:
    case AttentionKind::kLssa:
    case AttentionKind::kSoftmax: return CheckAttentionSpec(spec);
    default:
      return absl::UnimplementedError(
          absl::StrCat("attention kind \"", KindName(spec.kind),
                       "\" is not computed on CUDA: lssar, lssa and softmax are; the cpu backend "
                       "computes all kinds"));
  }
}

}  // namespace lssar

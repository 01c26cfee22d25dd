#include "kernels/attention_check.h"

#include <cmath>

#include "kernels/str_cat.h"

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
  if (spec.Form().reweights && !(spec.p > 0 && std::isfinite(spec.p))) {
    return absl::InvalidArgumentError(
        StrCat("attention p is ", spec.p, ", must be a finite number above 0"));
  }
  const bool needs_context = spec.Form().shift == ScoreShift::kMaxPositionEmbeddings ||
                             spec.Form().divisor == Divisor::kMaxPositionEmbeddings;
  if (needs_context && spec.max_position_embeddings < 1) {
    return absl::InvalidArgumentError(StrCat("attention kind \"", KindName(spec.kind),
                                             "\" needs the trained context, it is ",
                                             spec.max_position_embeddings, ", must be at least 1"));
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
          StrCat("attention kind \"", KindName(spec.kind),
                 "\" is not computed on CUDA: lssar, lssa and softmax are; the cpu backend "
                 "computes all kinds"));
  }
}

}  // namespace lssar

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

absl::Status CheckHostAttention(const AttentionSpec& spec) {
  switch (spec.kind) {
    case AttentionKind::kLssar:
      if (!(spec.p > 0 && std::isfinite(spec.p))) {
        return absl::InvalidArgumentError(
            absl::StrCat("attention p is ", spec.p, ", must be a finite number above 0"));
      }
      return absl::OkStatus();
    case AttentionKind::kLssa:
    case AttentionKind::kSoftmax: return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("attention kind \"", KindName(spec.kind),
                       "\" is not computed by this build; it computes lssar, lssa and softmax"));
  }
}

}  // namespace lssar

// Which function of the attention family a model computes (arXiv 2501.13428, Table 1).
#ifndef LSSAR_KERNELS_ATTENTION_SPEC_H_
#define LSSAR_KERNELS_ATTENTION_SPEC_H_

#include <cstdint>

namespace lssar {

// Order and names as in the paper's Table 1; `kinds` of config.json.
enum class AttentionKind : uint8_t {
  kSoftmax,
  kLssa,
  kLssar,
  kSoftmaxR,
  kSigmoid,
  kSigmoidN,
  kSigmoidNL1,
  kSigmoidR,
  kPhi,
  kReluWortsman,
};

enum class Phi : uint8_t { kRelu, kRelu2, kRelu6, kGelu, kSigmoid, kSoftplus, kMish, kExp };

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kLssar;
  double p = 15.0;          // > 0; the sharpening power of the re-weighted kinds
  Phi phi = Phi::kExp;      // only for kPhi
  int trained_context = 0;  // tokens; L of kSigmoid and kReluWortsman

  // l2-normalised q and k, scores scaled by ln(d) ln(N): the length-scaled half of the family.
  constexpr bool IsLengthScaled() const {
    return kind == AttentionKind::kLssa || kind == AttentionKind::kLssar;
  }
};

// A stage-2 weight whose ratio to the row's largest, (x_j / x_m)^p, is below this is zero: the
// sum of 16K such terms moves a row by less than 4e-6 of its largest value, and a V row that is
// not read costs nothing.
inline constexpr float kNegligibleWeight = 0x1p-32f;

// A row whose peak x_m is at or below this has no key that stands out; its weights are stage 1's.
inline constexpr float kDegeneratePeak = 1e-6f;

// Norms are clamped from below at this: a zero vector normalises to zero.
inline constexpr float kMinNorm = 1e-12f;

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_SPEC_H_

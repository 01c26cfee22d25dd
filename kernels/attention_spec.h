// Which function of the attention family a model computes (arXiv 2501.13428, Table 1):
//   a_j = phi(scale <q, k_j> + shift) / divisor                stage 1
//   w_j = x_j^p / sum_m x_m^p,  x_j = max(0, N a_j - o)        stage 2, where there is one
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

// Added to a scaled score: 0, -ln L or -ln N.
enum class ScoreShift : uint8_t { kNone, kMaxPositionEmbeddings, kKeys };

// What stage 1 divides phi by.
enum class Divisor : uint8_t {
  kRowSum,
  kRowNorm,  // the row's sum of |phi|, at least kMinNorm: where phi may be negative, or 0
             // throughout
  kOne,
  kMaxPositionEmbeddings,  // L
};

// What a kind is made of.
struct AttentionForm {
  Phi phi;
  Divisor divisor = Divisor::kRowSum;
  bool reweights = false;  // has a stage 2
  ScoreShift shift = ScoreShift::kNone;
  // q and k of unit length, scores scaled by ln(d) ln(N); the others': by 1/sqrt(d).
  bool is_length_scaled = false;
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kLssar;
  double p = 15.0;                  // > 0; the re-weighting power of the kinds with a stage 2
  Phi phi = Phi::kExp;              // only for kPhi
  int max_position_embeddings = 0;  // L, tokens; of kSigmoid and kReluWortsman

  constexpr AttentionForm Form() const;
};

// Table 1.
constexpr AttentionForm AttentionSpec::Form() const {
  switch (kind) {
    case AttentionKind::kSoftmax: return {.phi = Phi::kExp};
    case AttentionKind::kLssa: return {.phi = Phi::kSoftplus, .is_length_scaled = true};
    case AttentionKind::kLssar:
      return {.phi = Phi::kSoftplus, .reweights = true, .is_length_scaled = true};
    case AttentionKind::kSoftmaxR: return {.phi = Phi::kExp, .reweights = true};
    case AttentionKind::kSigmoid:
      return {.phi = Phi::kSigmoid,
              .divisor = Divisor::kOne,
              .shift = ScoreShift::kMaxPositionEmbeddings};
    case AttentionKind::kSigmoidN:
      return {.phi = Phi::kSigmoid, .divisor = Divisor::kOne, .shift = ScoreShift::kKeys};
    case AttentionKind::kSigmoidNL1: return {.phi = Phi::kSigmoid, .shift = ScoreShift::kKeys};
    case AttentionKind::kSigmoidR:
      return {.phi = Phi::kSigmoid, .reweights = true, .shift = ScoreShift::kKeys};
    case AttentionKind::kPhi:
      return {.phi = phi, .divisor = phi == Phi::kExp ? Divisor::kRowSum : Divisor::kRowNorm};
    case AttentionKind::kReluWortsman:
      return {.phi = Phi::kRelu, .divisor = Divisor::kMaxPositionEmbeddings};
  }
  return {.phi = Phi::kExp};
}

// A stage-2 weight whose ratio to the row's largest, (x_j / x_m)^p, is below this is zero: the
// sum of 16K such terms moves a row by less than 4e-6 of its largest value, and a V row that is
// not read costs nothing.
inline constexpr float kNegligibleWeight = 0x1p-32f;

// A row whose peak x_m is at or below this has no key that stands out; its weights are stage 1's.
inline constexpr float kDegeneratePeak = 1e-6f;

// Norms are clamped from below at this: a zero vector, or a row of zeros, normalises to zero.
inline constexpr float kMinNorm = 1e-12f;

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_SPEC_H_

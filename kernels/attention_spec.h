// Which function of the attention family a model computes (arXiv 2501.13428, Table 1):
//   a_j = phi(scale <q, k_j> + shift) / divisor                stage 1
//   w_j = x_j^p / sum_m x_m^p,  x_j = max(0, N a_j - o)        stage 2 (re-weighting), if any
//
// Kind softmax may have a sliding window, and a bias by distance (ALiBi, arXiv 2108.12409).
//
// A kind whose phi exists already is one enumerator and one row of kAttentionKinds.
#ifndef LSSAR_KERNELS_ATTENTION_SPEC_H_
#define LSSAR_KERNELS_ATTENTION_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lssar {

enum class Phi : uint8_t { kRelu, kRelu2, kRelu6, kGelu, kSigmoid, kSoftplus, kMish, kExp };

struct PhiInfo {
  Phi phi;
  std::string_view name;  // the "phi" of config.json
};

inline constexpr PhiInfo kPhis[] = {
    {Phi::kRelu, "relu"}, {Phi::kRelu2, "relu2"},     {Phi::kRelu6, "relu6"},
    {Phi::kGelu, "gelu"}, {Phi::kSigmoid, "sigmoid"}, {Phi::kSoftplus, "softplus"},
    {Phi::kMish, "mish"}, {Phi::kExp, "exp"},
};

// Added to a scaled score: 0, -ln L or -ln N.
enum class ScoreShift : uint8_t { kNone, kMaxPositionEmbeddings, kKeys };

// What stage 1 divides phi by.
enum class Divisor : uint8_t {
  kRowSum,
  // The row's sum of |phi|, at least kMinNorm: for a phi that may be negative, or 0 in a whole row.
  kRowNorm,
  kOne,
  kMaxPositionEmbeddings,  // L
};

// The parts of a kind.
struct AttentionForm {
  Phi phi;
  Divisor divisor = Divisor::kRowSum;
  bool reweights = false;  // has a stage 2
  ScoreShift shift = ScoreShift::kNone;
  // True: q and k have unit length, and scores are scaled by ln(d) ln(N). False: by 1/sqrt(d).
  bool is_length_scaled = false;
};

// In the order of the paper's Table 1.
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

struct AttentionKindInfo {
  AttentionKind kind;
  std::string_view name;  // the "kind" of config.json
  AttentionForm form;     // kPhi: AttentionSpec sets phi and divisor
};

// Table 1, by AttentionKind.
inline constexpr AttentionKindInfo kAttentionKinds[] = {
    {AttentionKind::kSoftmax, "softmax", {.phi = Phi::kExp}},
    {AttentionKind::kLssa, "lssa", {.phi = Phi::kSoftplus, .is_length_scaled = true}},
    {AttentionKind::kLssar,
     "lssar",
     {.phi = Phi::kSoftplus, .reweights = true, .is_length_scaled = true}},
    {AttentionKind::kSoftmaxR, "softmax_r", {.phi = Phi::kExp, .reweights = true}},
    {AttentionKind::kSigmoid,
     "sigmoid",
     {.phi = Phi::kSigmoid, .divisor = Divisor::kOne, .shift = ScoreShift::kMaxPositionEmbeddings}},
    {AttentionKind::kSigmoidN,
     "sigmoid_n",
     {.phi = Phi::kSigmoid, .divisor = Divisor::kOne, .shift = ScoreShift::kKeys}},
    {AttentionKind::kSigmoidNL1,
     "sigmoid_n_l1",
     {.phi = Phi::kSigmoid, .shift = ScoreShift::kKeys}},
    {AttentionKind::kSigmoidR,
     "sigmoid_r",
     {.phi = Phi::kSigmoid, .reweights = true, .shift = ScoreShift::kKeys}},
    {AttentionKind::kPhi, "phi", {.phi = Phi::kExp}},
    {AttentionKind::kReluWortsman,
     "relu_wortsman",
     {.phi = Phi::kRelu, .divisor = Divisor::kMaxPositionEmbeddings}},
};

constexpr const AttentionKindInfo& InfoOf(AttentionKind kind) {
  return kAttentionKinds[static_cast<int>(kind)];
}

// The index of every row is its kind.
static_assert([] {
  int index = 0;
  for (const AttentionKindInfo& info : kAttentionKinds) {
    if (static_cast<int>(info.kind) != index++) return false;
  }
  return index == static_cast<int>(AttentionKind::kReluWortsman) + 1;
}());

// "lssar", "softmax", ...: the names of config.json.
constexpr std::string_view NameOf(AttentionKind kind) { return InfoOf(kind).name; }

// nullopt: no such name.
constexpr std::optional<AttentionKind> ParseAttentionKind(std::string_view name) {
  for (const AttentionKindInfo& info : kAttentionKinds) {
    if (info.name == name) return info.kind;
  }
  return std::nullopt;
}

// "relu", "gelu", ...: the phi of kind "phi". nullopt: no such name.
constexpr std::optional<Phi> ParsePhi(std::string_view name) {
  for (const PhiInfo& info : kPhis) {
    if (info.name == name) return info.phi;
  }
  return std::nullopt;
}

// The powers of the rows from a number of keys on.
struct PowerStep {
  int min_keys = 1;
  std::vector<double> p;  // > 0; of each query head, or one for all

  bool operator==(const PowerStep&) const = default;
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kLssar;
  double p = 15.0;  // > 0; the re-weighting power of the kinds with a stage 2
  // In place of p, for rows of at least min_keys keys each: min_keys rises. Empty: every row has p.
  std::vector<PowerStep> steps = {};
  Phi phi = Phi::kExp;              // only for kPhi
  int max_position_embeddings = 0;  // L, tokens; only for kSigmoid and kReluWortsman
  // Only for kSoftmax. Keys before a row's last `window` keys, its own included, have no weight. 0:
  // no window.
  int window = 0;
  // Only for kSoftmax: AlibiSlope (attention_math.h) times the distance is taken from each score.
  bool has_alibi = false;

  // Equal fields, also those that the kind does not use.
  bool operator==(const AttentionSpec&) const = default;

  constexpr AttentionForm Form() const {
    AttentionForm form = InfoOf(kind).form;
    if (kind == AttentionKind::kPhi) {
      form.phi = phi;
      form.divisor = phi == Phi::kExp ? Divisor::kRowSum : Divisor::kRowNorm;
    }
    return form;
  }

  // The power of a row of `num_keys` keys in a query head.
  double PowerOf(int head, int num_keys) const {
    double power = p;
    for (const PowerStep& step : steps) {
      if (step.min_keys > num_keys) break;
      power = step.p[step.p.size() == 1 ? 0 : size_t(head)];
    }
    return power;
  }

  // The first key that a row of `num_keys` keys attends to.
  constexpr int FirstKey(int num_keys) const {
    return window > 0 && num_keys > window ? num_keys - window : 0;
  }
};

// A stage-2 weight whose ratio to the row's largest, (x_j / x_m)^p, is below this is zero: the
// sum of 16K such terms moves a row by less than 4e-6 of its largest value, and a V row that is
// not read costs nothing.
inline constexpr float kNegligibleWeight = 0x1p-32f;

// A row whose peak x_m is at most this has no key that stands out. It keeps its stage-1 weights.
inline constexpr float kDegeneratePeak = 1e-6f;

// Lower bound of a norm: a zero vector, or a row of zeros, normalises to zero.
inline constexpr float kMinNorm = 1e-12f;

}  // namespace lssar

#endif  // LSSAR_KERNELS_ATTENTION_SPEC_H_

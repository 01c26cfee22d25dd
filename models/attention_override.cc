#include "models/attention_override.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "base/field_error.h"
#include "base/quote.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kMaxNameBytes = 1024;

std::string_view NameOfPhi(Phi phi) { return std::ranges::find(kPhis, phi, &PhiInfo::phi)->name; }

// Gives `spec` the same powers in the fewest steps and numbers.
void Simplify(AttentionSpec* spec) {
  std::vector<PowerStep> steps = {{.min_keys = 1, .p = {spec->p}}};
  for (PowerStep& step : std::exchange(spec->steps, {})) {
    const bool is_one = std::ranges::count(step.p, step.p.front()) == std::ssize(step.p);
    if (is_one) step.p.resize(1);
    if (step.min_keys == 1) steps.clear();
    if (steps.empty() || steps.back().p != step.p) steps.push_back(std::move(step));
  }
  // p is the first step, where it has one number.
  if (steps.front().p.size() == 1) {
    spec->p = steps.front().p.front();
    steps.erase(steps.begin());
  } else {
    spec->p = AttentionSpec().p;
  }
  spec->steps = std::move(steps);
}

// Fields that the kind does not use are reset, so that equal functions are equal specs.
AttentionSpec Normalized(const AttentionSpec& spec) {
  AttentionSpec normalized{.kind = spec.kind, .window = spec.window, .has_alibi = spec.has_alibi};
  const AttentionForm form = spec.Form();
  if (form.reweights) {
    normalized.p = spec.p;
    normalized.steps = spec.steps;
    Simplify(&normalized);
  }
  if (spec.kind == AttentionKind::kPhi) normalized.phi = spec.phi;
  if (form.shift == ScoreShift::kMaxPositionEmbeddings ||
      form.divisor == Divisor::kMaxPositionEmbeddings) {
    normalized.max_position_embeddings = spec.max_position_embeddings;
  }
  return normalized;
}

std::string Describe(const std::vector<double>& powers) {
  std::string text;
  for (const double p : powers) text += StrCat(text.empty() ? "" : "/", p);
  return text;
}

// Requires  spec is Normalized
std::string Describe(const AttentionSpec& spec) {
  std::string text(NameOf(spec.kind));
  const bool has_first = !spec.steps.empty() && spec.steps.front().min_keys == 1;
  if (spec.Form().reweights && !has_first) text += StrCat(" p=", spec.p);
  for (const PowerStep& step : spec.steps) {
    text += step.min_keys == 1 ? std::string(" p=") : StrCat(" N>=", step.min_keys, ":");
    text += Describe(step.p);
  }
  if (spec.kind == AttentionKind::kPhi) text += StrCat(" phi=", NameOfPhi(spec.phi));
  if (spec.window > 0) text += StrCat(" window=", spec.window);
  return text;
}

std::string ReweightingKinds() {
  std::vector<std::string_view> names;
  for (const AttentionKindInfo& info : kAttentionKinds) {
    if (info.form.reweights) names.push_back(info.name);
  }
  return StrJoin(names);
}

// The kind that every layer gets; nullopt: each layer keeps its own.
absl::StatusOr<std::optional<AttentionKind>> ReadKind(std::string_view name) {
  if (name.empty()) return std::nullopt;
  const std::optional<AttentionKind> kind = ParseAttentionKind(name);
  if (kind) return kind;
  return FieldError(
      "attention_override.kind",
      StrCat("is ", Quote(name), "; it must be one of ",
             StrJoin(kAttentionKinds, [](const AttentionKindInfo& info) { return info.name; })));
}

absl::Status CheckPower(const std::string& field, double p) {
  // NaN is in no range.
  if (!(p > 0 && p <= kMaxAttentionP)) {
    return FieldError(field, StrCat("is ", p, "; it must be in (0, ", kMaxAttentionP, "]"));
  }
  if (p < kMinAttentionP) {
    return FieldError(field, StrCat("is ", p, "; it must be at least ", kMinAttentionP,
                                    ", the smallest normal number in fp32"));
  }
  return absl::OkStatus();
}

absl::Status CheckPowers(const std::string& field, std::span<const double> powers) {
  for (size_t i = 0; i < powers.size(); ++i) {
    RETURN_IF_ERROR(CheckPower(StrCat(field, "[", i, "]"), powers[i]));
  }
  return absl::OkStatus();
}

// The numbers of each layer, as in PowerStep::p; empty: no field of `power` is set. prefix: of the
// fields' names.
absl::StatusOr<std::vector<std::vector<double>>> ReadPowers(const std::string& prefix,
                                                            const PowerChange& power,
                                                            const ModelConfig& config) {
  const size_t num_layers = config.attention.size();
  const auto num_heads = size_t(config.num_attention_heads);
  const std::string by_layer = prefix + "p_by_layer", by_head = prefix + "p_by_head";
  if (int(power.p.has_value()) + int(!power.by_layer.empty()) + int(!power.by_head.empty()) > 1) {
    return FieldError(power.by_head.empty() ? by_layer : by_head,
                      "is set beside another power; set one of p, p_by_layer and p_by_head");
  }
  if (power.p) {
    RETURN_IF_ERROR(CheckPower(prefix + "p", *power.p));
    return std::vector(num_layers, std::vector{*power.p});
  }
  std::vector<std::vector<double>> layers;
  if (!power.by_layer.empty()) {
    if (power.by_layer.size() != num_layers) {
      return FieldError(by_layer,
                        StrCat("has ", power.by_layer.size(),
                               " numbers; it must have num_hidden_layers = ", num_layers));
    }
    RETURN_IF_ERROR(CheckPowers(by_layer, power.by_layer));
    for (const double p : power.by_layer) layers.push_back({p});
  }
  if (!power.by_head.empty()) {
    const bool is_of_each_layer = power.by_head.size() == num_layers * num_heads;
    if (!is_of_each_layer && power.by_head.size() != num_heads) {
      return FieldError(by_head,
                        StrCat("has ", power.by_head.size(),
                               " numbers; it must have num_attention_heads = ", num_heads, ", or ",
                               num_layers * num_heads, " for the heads of each layer"));
    }
    RETURN_IF_ERROR(CheckPowers(by_head, power.by_head));
    for (size_t layer = 0; layer < num_layers; ++layer) {
      const auto first =
          power.by_head.begin() + ptrdiff_t(is_of_each_layer ? layer * num_heads : 0);
      layers.emplace_back(first, first + ptrdiff_t(num_heads));
    }
  }
  return layers;
}

// The powers that a request sets.
struct Powers {
  std::vector<std::vector<double>> layers = {};  // as ReadPowers gives them
  std::vector<std::pair<int, std::vector<std::vector<double>>>> steps = {};  // with their min_keys
  std::string field = {};  // the first that is set; empty: none

  // Those of a layer.
  std::vector<PowerStep> StepsOf(size_t layer) const {
    std::vector<PowerStep> of_layer;
    if (!layers.empty()) of_layer.push_back({.min_keys = 1, .p = layers[layer]});
    for (const auto& [min_keys, powers] : steps) {
      of_layer.push_back({.min_keys = min_keys, .p = powers[layer]});
    }
    return of_layer;
  }
};

absl::StatusOr<Powers> ReadAllPowers(const ModelConfig& config, const AttentionChange& change) {
  const std::string prefix = "attention_override.", steps = prefix + "p_by_length";
  Powers powers;
  if (change.p) {
    powers.field = StrCat(prefix, "p");
  } else if (!change.p_by_layer.empty() || !change.p_by_head.empty()) {
    powers.field = StrCat(prefix, change.p_by_layer.empty() ? "p_by_head" : "p_by_layer");
  } else if (!change.p_by_length.empty()) {
    powers.field = steps;
  }
  ASSIGN_OR_RETURN(
      powers.layers,
      ReadPowers(prefix,
                 {.p = change.p, .by_layer = change.p_by_layer, .by_head = change.p_by_head},
                 config));
  if (change.p_by_length.size() > size_t{kMaxPowerSteps}) {
    return FieldError(steps, StrCat("has ", change.p_by_length.size(),
                                    " entries; it may have at most ", kMaxPowerSteps));
  }
  int least = 2;  // rows of one key have what is set beside the steps
  for (size_t i = 0; i < change.p_by_length.size(); ++i) {
    const auto& [min_keys, power] = change.p_by_length[i];
    const std::string field = StrCat(steps, "[", i, "].");
    if (min_keys < least) {
      return FieldError(field + "min_keys",
                        StrCat("is ", min_keys, "; it must be at least ", least,
                               i == 0 ? "" : ", above that of the entry before"));
    }
    least = min_keys + 1;
    ASSIGN_OR_RETURN(auto layers, ReadPowers(field, power, config));
    if (layers.empty()) {
      return FieldError(field + "p", "is missing; set one of p, p_by_layer and p_by_head");
    }
    powers.steps.emplace_back(min_keys, std::move(layers));
  }
  return powers;
}

}  // namespace

absl::StatusOr<std::vector<AttentionSpec>> ChangeAttention(const ModelConfig& config,
                                                           const AttentionChange& change) {
  ASSIGN_OR_RETURN(const Powers powers, ReadAllPowers(config, change));
  if (powers.field.empty() && change.kind.empty() && change.phi.empty()) {
    return FieldError(
        "attention_override.p",
        "and kind are not set; set p, kind, or both, or leave attention_override out");
  }
  ASSIGN_OR_RETURN(const std::optional<AttentionKind> kind, ReadKind(change.kind));
  const bool is_phi = kind == AttentionKind::kPhi;
  const std::optional<Phi> phi = ParsePhi(change.phi);
  if (is_phi && !phi) {
    return FieldError(
        "attention_override.phi",
        StrCat(change.phi.empty() ? std::string("is missing") : StrCat("is ", Quote(change.phi)),
               "; with kind \"phi\" it must be one of ",
               StrJoin(kPhis, [](const PhiInfo& info) { return info.name; })));
  }
  if (!is_phi && !change.phi.empty()) {
    return FieldError("attention_override.phi",
                      StrCat("is ", Quote(change.phi), "; it may be set only with kind \"phi\""));
  }

  const std::optional<double> own_p = config.AttentionP();
  bool uses_p = false;
  std::vector<AttentionSpec> layers;
  for (size_t layer = 0; layer < config.attention.size(); ++layer) {
    const AttentionSpec& own = config.attention[layer];
    AttentionSpec spec = own;
    if (kind) spec.kind = *kind;
    if (is_phi) spec.phi = *phi;
    if (spec.kind != AttentionKind::kSoftmax && (spec.window > 0 || spec.has_alibi)) {
      return FieldError("attention_override.kind",
                        StrCat("is ", Quote(change.kind), ", but the checkpoint has ",
                               spec.has_alibi ? "ALiBi" : "a sliding window",
                               ", which only kind \"softmax\" is computed with"));
    }
    if (spec.Form().reweights) {
      uses_p = true;
      spec.steps = powers.StepsOf(layer);
      if (!powers.layers.empty()) {
        // The first of the steps.
      } else if (!own.Form().reweights && own_p) {
        spec.p = *own_p;
      } else if (!own.Form().reweights) {
        return FieldError("attention_override.p",
                          StrCat("is missing: kind ", Quote(change.kind),
                                 " re-weights with it, and the checkpoint has no single p"));
      }
    }
    spec.max_position_embeddings = config.max_position_embeddings;
    layers.push_back(Normalized(spec));
  }
  if (!powers.field.empty() && !uses_p) {
    return FieldError(powers.field,
                      StrCat(change.p ? StrCat("is ", *change.p) : std::string("is set"), ", but ",
                             DescribeAttention(layers),
                             " does not re-weight; leave it out, or set kind to one that does: ",
                             ReweightingKinds()));
  }
  return layers;
}

std::string DescribeAttention(std::span<const AttentionSpec> layers) {
  std::vector<AttentionSpec> normalized;
  for (const AttentionSpec& spec : layers) normalized.push_back(Normalized(spec));
  std::string text;
  for (size_t first = 0, end = 0; first < normalized.size(); first = end) {
    while (end < normalized.size() && normalized[first] == normalized[end]) ++end;
    text += StrCat(first == 0 ? "" : ", ", Describe(normalized[first]));
    if (first == 0 && end == normalized.size()) break;
    text += StrCat(" (", first, end == first + 1 ? "" : StrCat("-", end - 1), ")");
  }
  if (text.size() <= kMaxNameBytes) return text;
  Sha256 hash;
  hash.Add(text);
  const std::string end = StrCat("... sha256 ", hash.Hex());
  return text.substr(0, kMaxNameBytes - end.size()) + end;
}

bool IsSameAttention(std::span<const AttentionSpec> a, std::span<const AttentionSpec> b) {
  return std::ranges::equal(a, b, {}, Normalized, Normalized);
}

}  // namespace lssar

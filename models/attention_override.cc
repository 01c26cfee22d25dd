#include "models/attention_override.h"

#include <algorithm>

#include "absl/status/status.h"
#include "base/field_error.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

std::string_view NameOfPhi(Phi phi) { return std::ranges::find(kPhis, phi, &PhiInfo::phi)->name; }

// Fields that the kind does not use are reset, so that equal functions are equal specs.
AttentionSpec Normalized(const AttentionSpec& spec) {
  AttentionSpec normalized{.kind = spec.kind, .window = spec.window, .has_alibi = spec.has_alibi};
  const AttentionForm form = spec.Form();
  if (form.reweights) normalized.p = spec.p;
  if (spec.kind == AttentionKind::kPhi) normalized.phi = spec.phi;
  if (form.shift == ScoreShift::kMaxPositionEmbeddings ||
      form.divisor == Divisor::kMaxPositionEmbeddings) {
    normalized.max_position_embeddings = spec.max_position_embeddings;
  }
  return normalized;
}

std::string Describe(const AttentionSpec& spec) {
  std::string text(NameOf(spec.kind));
  if (spec.Form().reweights) text += StrCat(" p=", spec.p);
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

}  // namespace

absl::StatusOr<std::vector<AttentionSpec>> ChangeAttention(const ModelConfig& config,
                                                           const AttentionChange& change) {
  if (!change.p && change.kind.empty() && change.phi.empty()) {
    return FieldError(
        "attention_override.p",
        "and kind are not set; set p, kind, or both, or leave attention_override out");
  }
  // NaN is in no range.
  if (change.p && !(*change.p > 0 && *change.p <= kMaxAttentionP)) {
    return FieldError("attention_override.p",
                      StrCat("is ", *change.p, "; it must be in (0, ", kMaxAttentionP, "]"));
  }
  if (change.p && *change.p < kMinAttentionP) {
    return FieldError("attention_override.p",
                      StrCat("is ", *change.p, "; it must be at least ", kMinAttentionP,
                             ", the smallest normal number in fp32"));
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
  for (const AttentionSpec& own : config.attention) {
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
      if (change.p) {
        spec.p = *change.p;
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
  if (change.p && !uses_p) {
    return FieldError("attention_override.p",
                      StrCat("is ", *change.p, ", but ", DescribeAttention(layers),
                             " does not re-weight; leave p out, or set kind to one that does: ",
                             ReweightingKinds()));
  }
  return layers;
}

std::string DescribeAttention(std::span<const AttentionSpec> layers) {
  const auto is_same = [&](size_t a, size_t b) {
    return Normalized(layers[a]) == Normalized(layers[b]);
  };
  std::string text;
  for (size_t first = 0, end = 0; first < layers.size(); first = end) {
    while (end < layers.size() && is_same(first, end)) ++end;
    if (first == 0 && end == layers.size()) return Describe(layers[0]);
    text += StrCat(first == 0 ? "" : ", ", Describe(layers[first]), " (", first,
                   end == first + 1 ? "" : StrCat("-", end - 1), ")");
  }
  return text;
}

bool IsSameAttention(std::span<const AttentionSpec> a, std::span<const AttentionSpec> b) {
  return std::ranges::equal(a, b, {}, Normalized, Normalized);
}

}  // namespace lssar

#include "models/config.h"

#include <string>
#include <utility>

#include "kernels/str_cat.h"
#include "models/json_fields.h"

namespace lssar {
namespace {

using nlohmann::json;

// Bounds that keep a lying config from asking for absurd memory; far beyond the paper's models.
constexpr int kMaxVocab = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxWidth = 1 << 16;
constexpr int kMaxHeadDim = 512;
constexpr int kMaxIntermediateSize = 1 << 18;
constexpr int kMaxPositions = 1 << 20;
constexpr double kMaxTheta = 1e12;
constexpr double kMaxNtkFactor = 1024;
constexpr double kMaxPower = 1000;

std::string KindNames() {
  return StrJoin(kAttentionKinds, [](const AttentionKindInfo& info) { return info.name; });
}

std::string PhiNames() {
  return StrJoin(kPhis, [](const PhiInfo& info) { return info.name; });
}

// The attention object is closed: an unknown field there would mean another function than the one
// computed.
absl::StatusOr<AttentionSpec> ParseAttention(const json& object, std::string_view source) {
  JsonFields fields(object, StrCat(source, ": attention"));
  fields.RefuseOthers({"kind", "p", "phi"});
  AttentionSpec spec;
  const std::string name = fields.Text("kind");
  if (!fields.status().ok()) return fields.status();
  const std::optional<AttentionKind> kind = ParseAttentionKind(name);
  if (!kind) {
    fields.Fail(StrCat("kind is \"", name, "\", must be one of ", KindNames()));
    return fields.status();
  }
  spec.kind = *kind;
  if (spec.Form().reweights && !fields.Has("p")) {
    fields.Fail(StrCat("p is missing: \"", name, "\" reweights with it; add \"p\": 15"));
  }
  spec.p = fields.Positive("p", kMaxPower, spec.p);
  const std::string phi_name = fields.Text("phi", "");
  if (!phi_name.empty() || *kind == AttentionKind::kPhi) {
    const std::optional<Phi> phi = ParsePhi(phi_name);
    if (!phi) fields.Fail(StrCat("phi is \"", phi_name, "\", must be one of ", PhiNames()));
    spec.phi = phi.value_or(spec.phi);
  }
  if (!fields.status().ok()) return fields.status();
  return spec;
}

// nullopt: none.
absl::StatusOr<std::optional<double>> ParseRopeScaling(const json& object,
                                                       std::string_view source) {
  JsonFields fields(object, StrCat(source, ": rope_scaling"));
  fields.RefuseOthers({"type", "rope_type", "factor"});
  const std::string_view name = fields.Has("type") ? "type" : "rope_type";
  const std::string type = fields.Text(name);
  if (fields.status().ok() && type != "dynamic") {
    fields.Fail(StrCat(name, " is \"", type, "\", must be \"dynamic\" (or rope_scaling null)"));
  }
  const double factor = fields.Number("factor", 1, kMaxNtkFactor);
  if (!fields.status().ok()) return fields.status();
  return factor;
}

// GPT-2 switches that change what is computed: only the value that this build computes is taken.
void RefuseOtherComputation(JsonFields& fields) {
  const std::string activation = fields.Text("activation_function", "gelu_new");
  if (activation != "gelu_new") {
    fields.Fail(StrCat("activation_function is \"", activation,
                       "\", must be \"gelu_new\" (GELU by its tanh form)"));
  }
  for (const std::string_view name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (fields.Bool(name, false)) fields.Fail(StrCat(name, " is true, must be false"));
  }
  if (!fields.Bool("scale_attn_weights", true)) {
    fields.Fail("scale_attn_weights is false, must be true");
  }
}

void CheckHeads(const ModelConfig& config, JsonFields& fields) {
  if (config.hidden_size % config.num_attention_heads != 0) {
    fields.Fail(StrCat("n_embd is ", config.hidden_size, ", must be a multiple of n_head, ",
                       config.num_attention_heads));
    return;
  }
  const int head_dim = config.HeadDim();
  if (head_dim % 2 != 0 || head_dim > kMaxHeadDim) {
    fields.Fail(StrCat("n_embd / n_head is ", head_dim,
                       ", must be even (rotary pairs) and at most ", kMaxHeadDim));
  }
  if (config.dynamic_ntk_factor && head_dim <= 2) {
    fields.Fail("rope_scaling needs n_embd / n_head of at least 4");
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseConfig(std::string_view text, std::string_view source) {
  absl::StatusOr<json> parsed = ParseJson(text, source);
  if (!parsed.ok()) return parsed.status();
  JsonFields fields(*parsed, std::string(source));

  ModelConfig config;
  config.vocab_size = int(fields.Int("vocab_size", 1, kMaxVocab));
  config.num_hidden_layers = int(fields.Int("n_layer", 1, kMaxLayers));
  config.num_attention_heads = int(fields.Int("n_head", 1, kMaxHeads));
  config.hidden_size = int(fields.Int("n_embd", 2, kMaxWidth));
  config.intermediate_size =
      int(fields.Int("n_inner", 1, kMaxIntermediateSize, 4 * config.hidden_size));
  config.max_position_embeddings = int(fields.Int("n_positions", 1, kMaxPositions));
  config.layer_norm_epsilon = float(fields.Positive("layer_norm_epsilon", 1, 1e-5));
  config.rope_theta = fields.Number("rope_theta", 1, kMaxTheta, 10000.0);
  config.rope_layout = fields.Choice("rope_layout", {"half", "interleaved"}) == 0
                           ? RopeLayout::kHalfSplit
                           : RopeLayout::kInterleaved;
  config.tie_word_embeddings = fields.Bool("tie_word_embeddings", true);
  config.conv1d_layout = fields.Choice("linear_layout", {"linear", "conv1d"}) == 1;
  config.bos_id = fields.OptionalInt("bos_token_id", 0, config.vocab_size - 1);
  config.eos_id = fields.OptionalInt("eos_token_id", 0, config.vocab_size - 1);
  RefuseOtherComputation(fields);
  if (const json* scaling = fields.Object("rope_scaling")) {
    absl::StatusOr<std::optional<double>> factor = ParseRopeScaling(*scaling, source);
    if (!factor.ok()) return factor.status();
    config.dynamic_ntk_factor = *factor;
  }
  if (fields.status().ok()) CheckHeads(config, fields);

  const json* attention = fields.Object("attention");
  if (fields.status().ok() && attention == nullptr) {
    fields.Fail(
        "attention is missing: what this model computes in place of softmax must be said; add "
        "\"attention\": {\"kind\": \"lssar\", \"p\": 15} (or {\"kind\": \"softmax\"} for a plain "
        "GPT)");
  }
  if (!fields.status().ok()) return fields.status();
  absl::StatusOr<AttentionSpec> spec = ParseAttention(*attention, source);
  if (!spec.ok()) return spec.status();
  config.attention = *spec;
  config.attention.max_position_embeddings = config.max_position_embeddings;
  return config;
}

}  // namespace lssar

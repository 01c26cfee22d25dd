// The features of the ops that not every backend computes: the table of what models may ask for
// beside the plain GPT-2 block. Attention kinds are in attention_spec.h (Backend::CheckAttention).
#ifndef LSSAR_KERNELS_FEATURE_H_
#define LSSAR_KERNELS_FEATURE_H_

#include <cstdint>
#include <string_view>

namespace lssar {

// A value of an op's argument.
enum class Feature : uint8_t {
  kAttentionOverride,  // sequences of one batch have different AttentionArgs::spec
  kPowerSteps,         // AttentionSpec::steps
  kLayerNorm,
  kRmsNorm,
  kGeluTanh,
  kGeluErf,
  kRelu,
  kRelu2,
  kSilu,
  kPlainMlp,
  kGatedMlp,  // LinearArgs::multiply
  kPreNorm,
  kSandwichNorm,   // Norm
  kEmbeddingNorm,  // Norm
  kResidualScale,  // LinearArgs::scale
  kGroupedQuery,   // num_heads > num_kv_heads
  kQkNorm,         // RopeWriteArgs::qk_norm
  kPartialRotary,  // RopeWriteArgs::rotary_dims < head_dim
  kSoftcap,        // LogitsArgs::softcap
  kPaddedVocab,    // SampleArgs::num_ids < vocab
  kRotaryPositions,
  kNoPositions,
  kLearnedPositions,  // EmbedArgs::position_table
  kAlibi,             // AttentionSpec::has_alibi
  kWindow,            // AttentionSpec::window
};

struct FeatureInfo {
  Feature feature;
  // What config.json says. Rows of one field are the values of one choice.
  std::string_view field;
  std::string_view value;
  bool on_cuda;
  bool on_host = true;  // cpu and reference
};

// By Feature. A backend answers Backend::Supports from its column.
inline constexpr FeatureInfo kFeatures[] = {
    {Feature::kAttentionOverride, "attention_override", "set", false},
    {Feature::kPowerSteps, "p of attention_override", "by head or by number of keys", false},
    {Feature::kLayerNorm, "normalization", "\"layer_norm\"", true},
    {Feature::kRmsNorm, "normalization", "\"rms_norm\"", true},
    {Feature::kGeluTanh, "activation_function", "\"gelu_new\"", true},
    {Feature::kGeluErf, "activation_function", "\"gelu\"", true},
    {Feature::kRelu, "activation_function", "\"relu\"", true},
    {Feature::kRelu2, "activation_function", "\"relu2\"", true},
    {Feature::kSilu, "activation_function", "\"silu\"", true},
    {Feature::kPlainMlp, "mlp_kind", "\"plain\"", true},
    {Feature::kGatedMlp, "mlp_kind", "\"gated\"", true},
    {Feature::kPreNorm, "norm_position", "\"pre\"", true},
    {Feature::kSandwichNorm, "norm_position", "\"sandwich\"", true},
    {Feature::kEmbeddingNorm, "embedding_norm", "true", true},
    {Feature::kResidualScale, "attention_residual_scale or mlp_residual_scale", "not 1", true},
    {Feature::kGroupedQuery, "num_key_value_heads", "below n_head", true},
    {Feature::kQkNorm, "qk_norm", "an object", true},
    {Feature::kPartialRotary, "partial_rotary_factor", "below 1", true},
    {Feature::kSoftcap, "final_logit_softcapping", "a number", true},
    {Feature::kPaddedVocab, "unpadded_vocab_size", "below vocab_size", true},
    {Feature::kRotaryPositions, "positions", "\"rotary\"", true},
    {Feature::kNoPositions, "positions", "\"none\"", true},
    {Feature::kLearnedPositions, "positions", "\"learned\"", false},
    {Feature::kAlibi, "positions", "\"alibi\"", false},
    {Feature::kWindow, "window of attention", "a number", false},
};

constexpr const FeatureInfo& InfoOf(Feature feature) { return kFeatures[int(feature)]; }

// The index of every row is its feature.
static_assert([] {
  int index = 0;
  for (const FeatureInfo& info : kFeatures) {
    if (int(info.feature) != index++) return false;
  }
  return index == int(Feature::kWindow) + 1;
}());

}  // namespace lssar

#endif  // LSSAR_KERNELS_FEATURE_H_

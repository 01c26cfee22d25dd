// The variants of the ops that not every backend computes: the table of what models may ask for
// beside the plain GPT-2 block. Attention kinds are in attention_spec.h (Backend::CheckAttention).
#ifndef LSSAR_KERNELS_VARIANT_H_
#define LSSAR_KERNELS_VARIANT_H_

#include <cstdint>
#include <string_view>

namespace lssar {

// A value of an op's argument.
enum class Variant : uint8_t {
  kAttentionOverride,  // sequences of one batch have different AttentionArgs::spec
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

struct VariantInfo {
  Variant variant;
  // What config.json says. Rows of one field are the values of one choice.
  std::string_view field;
  std::string_view value;
  bool on_cuda;
  bool on_host = true;  // cpu and reference
};

// By Variant. A backend answers Backend::Computes from its column.
inline constexpr VariantInfo kVariants[] = {
    {Variant::kAttentionOverride, "attention_override", "set", false},
    {Variant::kLayerNorm, "normalization", "\"layer_norm\"", true},
    {Variant::kRmsNorm, "normalization", "\"rms_norm\"", true},
    {Variant::kGeluTanh, "activation_function", "\"gelu_new\"", true},
    {Variant::kGeluErf, "activation_function", "\"gelu\"", true},
    {Variant::kRelu, "activation_function", "\"relu\"", true},
    {Variant::kRelu2, "activation_function", "\"relu2\"", true},
    {Variant::kSilu, "activation_function", "\"silu\"", true},
    {Variant::kPlainMlp, "mlp_kind", "\"plain\"", true},
    {Variant::kGatedMlp, "mlp_kind", "\"gated\"", true},
    {Variant::kPreNorm, "norm_position", "\"pre\"", true},
    {Variant::kSandwichNorm, "norm_position", "\"sandwich\"", true},
    {Variant::kEmbeddingNorm, "embedding_norm", "true", true},
    {Variant::kResidualScale, "attention_residual_scale or mlp_residual_scale", "not 1", true},
    {Variant::kGroupedQuery, "num_key_value_heads", "below n_head", true},
    {Variant::kQkNorm, "qk_norm", "an object", true},
    {Variant::kPartialRotary, "partial_rotary_factor", "below 1", true},
    {Variant::kSoftcap, "final_logit_softcapping", "a number", true},
    {Variant::kPaddedVocab, "unpadded_vocab_size", "below vocab_size", true},
    {Variant::kRotaryPositions, "positions", "\"rotary\"", true},
    {Variant::kNoPositions, "positions", "\"none\"", true},
    {Variant::kLearnedPositions, "positions", "\"learned\"", false},
    {Variant::kAlibi, "positions", "\"alibi\"", false},
    {Variant::kWindow, "window of attention", "a number", false},
};

constexpr const VariantInfo& InfoOf(Variant variant) { return kVariants[int(variant)]; }

// The index of every row is its variant.
static_assert([] {
  int index = 0;
  for (const VariantInfo& info : kVariants) {
    if (int(info.variant) != index++) return false;
  }
  return index == int(Variant::kWindow) + 1;
}());

}  // namespace lssar

#endif  // LSSAR_KERNELS_VARIANT_H_

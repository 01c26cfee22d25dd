// ParseConfig: a config that is accepted describes a model that can be built.
// Input   config.json
#include <cmath>

#include "kernels/attention_math.h"
#include "models/config.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr size_t kFaultySum = 3;

}  // namespace

LSSAR_FUZZ_TARGET(config_json) {
  auto config = ParseConfig(TextOf(bytes), "config.json");
  if (!config.ok()) {
    LSSAR_CHECK(config.status().message().substr(0, 11) == "config.json");
    return;
  }
  if (FaultIsPlanted()) {  // a quarter of all files, and none of the corpus
    size_t sum = 0;
    for (const uint8_t byte : bytes) sum += byte;
    if (sum % 4 == kFaultySum) config->head_dim += 1;
  }
  LSSAR_CHECK(config->vocab_size > 0 && config->num_hidden_layers > 0);
  LSSAR_CHECK(config->num_attention_heads > 0 && config->hidden_size > 0);
  LSSAR_CHECK(config->intermediate_size > 0 && config->max_position_embeddings > 0);
  LSSAR_CHECK(config->num_attention_heads % config->NumKvHeads() == 0);
  LSSAR_CHECK(config->HeadDim() >= 2 && config->HeadDim() % 2 == 0 && config->QkvSize() > 0);
  LSSAR_CHECK(config->RotaryDims() >= 2 && config->RotaryDims() % 2 == 0);
  LSSAR_CHECK(config->RotaryDims() <= config->HeadDim());
  LSSAR_CHECK(config->layer_norm_epsilon > 0 && config->qk_norm.epsilon > 0);
  LSSAR_CHECK(config->NumTokenIds() >= 1 && config->NumTokenIds() <= config->vocab_size);
  LSSAR_CHECK(config->attention.size() == size_t(config->num_hidden_layers));
  for (const AttentionSpec& spec : config->attention) LSSAR_CHECK(CheckAttentionSpec(spec).ok());
  LSSAR_CHECK(!config->AttentionNames().empty() && !config->Features().empty());
  LSSAR_CHECK(config->AttentionP().value_or(1) > 0);
  for (const int length : {1, config->max_position_embeddings, 1 << 20}) {
    const double base = RopeBase(*config, length);
    LSSAR_CHECK(std::isfinite(base) && base > 0);
  }
}

}  // namespace lssar

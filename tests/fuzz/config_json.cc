// ParseConfig: a config that is accepted describes a model that can be built.
// Input   config.json
#include <cmath>

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
    if (sum % 4 == kFaultySum) config->hidden_size += 1;
  }
  LSSAR_CHECK(config->vocab_size > 0 && config->num_hidden_layers > 0);
  LSSAR_CHECK(config->num_attention_heads > 0 && config->hidden_size > 0);
  LSSAR_CHECK(config->intermediate_size > 0 && config->max_position_embeddings > 0);
  LSSAR_CHECK(config->hidden_size % config->num_attention_heads == 0);
  LSSAR_CHECK(config->num_attention_heads % config->NumKvHeads() == 0);
  LSSAR_CHECK(config->QkvSize() > 0);
  LSSAR_CHECK(config->layer_norm_epsilon > 0);
  for (const int length : {1, config->max_position_embeddings, 1 << 20}) {
    const double base = RopeBase(*config, length);
    LSSAR_CHECK(std::isfinite(base) && base > 0);
  }
}

}  // namespace lssar

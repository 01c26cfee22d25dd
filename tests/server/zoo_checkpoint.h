// The shipped checkpoint's config, tokenizer and chat template, without its weights.
#ifndef LSSAR_TESTS_SERVER_ZOO_CHECKPOINT_H_
#define LSSAR_TESTS_SERVER_ZOO_CHECKPOINT_H_

#include "models/checkpoint.h"

namespace lssar {

inline constexpr char kZooDirectory[] = "models/zoo/lssar-6m";

Checkpoint ZooCheckpointWithoutWeights();

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_ZOO_CHECKPOINT_H_

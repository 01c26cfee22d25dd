// Fixture of the parser tests: the shipped checkpoint without its weights.
#ifndef LSSAR_TESTS_SERVER_PARSE_FIXTURE_H_
#define LSSAR_TESTS_SERVER_PARSE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "server/api/parse_request.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {

inline constexpr int kMaxModelLen = 128;

class ParseRequestTest : public testing::Test {
 protected:
  static const Checkpoint& Zoo() {
    static const Checkpoint checkpoint = ZooCheckpointWithoutWeights();
    return checkpoint;
  }
  static ParseContext Context() {
    return {.checkpoint = &Zoo(), .max_model_len = kMaxModelLen, .default_seed = 77};
  }
  static std::vector<int32_t> Encode(const std::string& text) {
    return Zoo().tokenizer->Encode(text).value();
  }
  static std::vector<int32_t> WithBos(std::vector<int32_t> ids) {
    ids.insert(ids.begin(), *Zoo().config.bos_id);
    return ids;
  }
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_PARSE_FIXTURE_H_

// Runs a model over several sequences in steps of any size, and stores all logits.
#ifndef LSSAR_TESTS_MODELS_MODEL_RUNNER_H_
#define LSSAR_TESTS_MODELS_MODEL_RUNNER_H_

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "models/language_model.h"

namespace lssar::testing {

class ModelRunner {
 public:
  // Pages for `num_tokens` tokens of all sequences; their ids are in random order.
  ModelRunner(LanguageModel* model, Backend* backend, DType kv_cache_dtype, int page_size,
              int num_tokens);

  // Adds a sequence of `tokens` and returns its index.
  int Add(std::vector<int32_t> tokens);
  // Replaces a token that no step has computed yet.
  void Replace(int sequence, int position, int32_t token) {
    sequences_[size_t(sequence)].tokens[size_t(position)] = token;
  }
  // Runs one step with the next `num_tokens[s]` tokens of each sequence s; 0 skips it.
  void Step(const std::vector<int>& num_tokens);
  // Runs steps until every sequence is done. A step has at most `max_tokens` tokens of each
  // sequence: a random number from 0 on, or always the most if `rng` is null.
  void RunAll(int max_tokens, std::mt19937* rng);

  // Logits of every position computed so far, [positions, vocab].
  const std::vector<float>& Logits(int sequence) const {
    return sequences_[size_t(sequence)].logits;
  }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<int32_t> pages;
    int num_done = 0;
    std::vector<float> logits;
  };

  LanguageModel* model_;
  std::unique_ptr<Buffer> k_, v_;
  KvView kv_;
  std::vector<int32_t> free_pages_;
  std::vector<Sequence> sequences_;
};

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_MODELS_MODEL_RUNNER_H_

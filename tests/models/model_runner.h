// Runs a model over token rows cut in any way, several sequences at once, and keeps every logit.
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
  // Pages for `num_tokens` tokens over all sequences; their ids are dealt at random.
  ModelRunner(LanguageModel* model, Backend* backend, DType kv_cache_dtype, int page_size,
              int num_tokens);

  // A new sequence of `tokens`; its index.
  int Add(std::vector<int32_t> tokens);
  // A token that no step has taken yet.
  void Replace(int sequence, int position, int32_t token) {
    sequences_[size_t(sequence)].tokens[size_t(position)] = token;
  }
  // One step: the next `num_rows[s]` tokens of each sequence s (0: it sits this one out).
  void Step(const std::vector<int>& num_rows);
  // Steps until every sequence is through: at most `max_rows` rows of each, drawn at random
  // (0 rows too), or always `max_rows` when `rng` is null.
  void RunAll(int max_rows, std::mt19937* rng);

  // Logits of every position so far, [positions, vocab].
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

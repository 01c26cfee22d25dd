// Drafts for tests: what the fake model will sample, with mistakes.
#ifndef LSSAR_TESTS_RUNTIME_ORACLE_PROPOSER_H_
#define LSSAR_TESTS_RUNTIME_ORACLE_PROPOSER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/sample.h"
#include "runtime/engine.h"
#include "runtime/proposer.h"
#include "runtime/sequence.h"
#include "tests/runtime/stepped_engine.h"
#include "tests/support/fake_model.h"

namespace lssar {

// Reads the pages of the sequence and computes the fake model's next tokens with the sampling
// params of the request. A share of the drafted tokens is wrong.
class OracleProposer : public Proposer {
 public:
  // `wrong_percent`: of the tokens. `wrong_id`: the token of every mistake; -1: any other one.
  explicit OracleProposer(int wrong_percent, int32_t wrong_id = -1, uint64_t seed = 1)
      : wrong_percent_(wrong_percent), wrong_id_(wrong_id), state_(seed) {}

  // The engine that drafts. Set it before the first step.
  const Engine* engine = nullptr;

  bool Propose(std::span<const DraftRequest> requests) override {
    for (const DraftRequest& request : requests) Draft(request.num_tokens, request.sequence);
    return true;
  }

 private:
  void Draft(int num_draft, Sequence* sequence) {
    const int vocab_size = engine->Model().config.vocab_size;
    const int position = int(sequence->tokens.size()) - 1;
    // Without a page there is no hash yet: then the drafts are wrong.
    uint64_t hash =
        position > 0 ? FakeModel::HashAt(engine->GetKvView(), sequence->pages, position - 1) : 0;
    hash = FakeHash(hash, uint64_t(uint32_t(sequence->tokens.back())));
    for (int i = 0; i < num_draft; ++i) {
      logits_.clear();
      for (int32_t id = 0; id < vocab_size; ++id) logits_.push_back(FakeModel::LogitOf(hash, id));
      const SampleRequest request = sequence->task->MakeSampleRequest(*sequence, position + i);
      SampleResult result;
      ReferenceSample({.logits = logits_.data(),
                       .vocab = vocab_size,
                       .rows = {&request, 1},
                       .out = {&result, 1}});
      int32_t id = result.id;
      state_ = FakeHash(state_, 1);
      if (int(state_ % 100) < wrong_percent_) {
        id = wrong_id_ >= 0 ? wrong_id_ : (id + 1 + int32_t(state_ / 100 % 7)) % vocab_size;
      }
      sequence->draft.push_back(id);
      hash = FakeHash(hash, uint64_t(uint32_t(id)));
    }
  }

  const int wrong_percent_;
  const int32_t wrong_id_;
  uint64_t state_;
  std::vector<float> logits_;
};

// Drafts `num_tokens` a step, however many of them are right.
inline EngineOptions Speculating(Proposer* proposer, int num_tokens = 5) {
  EngineOptions options = SmallOptions();
  options.proposer = proposer;
  options.num_speculative_tokens = num_tokens;
  options.adapts_speculation = false;
  return options;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_ORACLE_PROPOSER_H_

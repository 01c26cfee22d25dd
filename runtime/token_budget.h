// Divides the tokens of one step among sequences, and among the tenants that own them.
#ifndef LSSAR_RUNTIME_TOKEN_BUDGET_H_
#define LSSAR_RUNTIME_TOKEN_BUDGET_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace lssar {

// A prompt token costs one unit, and another one for every kKeysPerTokenCost keys before it. On
// lssar-6m with two cores a token takes 53 us at the start of a prompt, 120 us after 4K keys and
// 460 us after 16K, in chunks of 512; twice that in the chunks of a few tokens that are left to
// prompts beside decodes.
inline constexpr int kKeysPerTokenCost = 1024;

// The cost of a step of several tenants, in chunked_prefill_size: 7 ms with the default of 32.
inline constexpr int kSharedStep = 4;

// The cost of a captured attention weight in the same units: 0.2 us, where a token takes 53.
inline constexpr int kCapturedWeightCost = 4;

// The cost of `num_tokens` from `first_position` on, in units of 1 / kKeysPerTokenCost.
int64_t CostOf(int first_position, int64_t num_tokens);

// What the token budget needs to know of a sequence.
struct RequiredTokens {
  int num_pending = 0;        // tokens still to compute, >= 1
  int first_position = 0;     // of the first of them: the number of keys before it
  bool is_streaming = false;  // a reader waits for each of its tokens
  int rank = 0;               // of its tenant, the one with the least service first
  int64_t credit = 0;         // of its tenant (tenants.h)
  int64_t last_step = 0;      // that computed a token of it
};

// Divides the tokens of one step among sequences.
class TokenBudget {
 public:
  struct Limits {
    int max_num_batched_tokens = 1;
    // In a step in which a reader waits for its next token: prompts that advance, and the cost of
    // all of their tokens together.
    int max_num_partial_prefills = 1;
    int chunked_prefill_size = 1;
  };
  explicit TokenBudget(const Limits& limits) : limits_(limits) {}

  // For one tenant.
  // Sequences with one pending token get it first: these are decodes, and no prompt delays them.
  // The rest of the budget goes to prefill chunks in order, each as large as possible: the first
  // request is done soonest. While a reader waits for a token of the step, chunks share
  // max_num_partial_prefills and chunked_prefill_size. The first one gets a token even where that
  // costs more. Element i of `num_tokens` belongs to sequences[i]; 0: it does not run.
  // Requires  `sequences` in scheduling order, at most max_num_batched_tokens of them: then every
  //           decode gets its token and, while a sequence waits for its prompt, the first prompt
  //           advances
  // Ensures   1 <= sum of num_tokens <= max_num_batched_tokens unless `sequences` is empty
  void Divide(std::span<const RequiredTokens> sequences, std::vector<int>* num_tokens) const;

  // For several tenants. A step costs no more than SharedStep, so that a tenant's next request does
  // not wait for a long one. The parts of the tenants are so that their credits become equal, as
  // far as the step goes: equal parts where they are. A tenant also gets what the others leave, by
  // rank. Its decodes come first, those that have waited longest; then its prompts in order. They
  // have half of its part, or chunked_prefill_size while one of its own readers waits for a token.
  // Requires, Ensures  as Divide, except that a decode may wait. The first sequence advances, and
  //                    so does every tenant as far as max_num_batched_tokens go
  void Share(std::span<const RequiredTokens> sequences, std::vector<int>* num_tokens);

  // The cost of a step of several tenants, in units of 1 / kKeysPerTokenCost.
  int64_t SharedStep() const {
    return int64_t{kKeysPerTokenCost} *
           std::min(limits_.max_num_batched_tokens, kSharedStep * limits_.chunked_prefill_size);
  }

 private:
  // What Share has not given to a sequence yet.
  struct Left {
    int num_tokens = 0;
    int64_t cost = 0;
  };

  // The credit at which tenants are equal after a step: each gets what it has above that.
  // `credits_` are the tenants'.
  int64_t CreditLeft(int64_t step);
  // Gives the sequences of one tenant, in the order of their indices `own`, more tokens that cost
  // at most `budget`. part: the tenant's part of the step, of which its decodes leave half to its
  // prompts; 0: `budget` is what the tenants have left.
  void GiveToTenant(std::span<const RequiredTokens> sequences, std::span<const int> own,
                    int64_t part, int64_t budget, Left* left, std::vector<int>* num_tokens) const;

  const Limits limits_;
  std::vector<int64_t> credits_;  // of Share
  std::vector<int> order_;        // of Share: indices of sequences
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TOKEN_BUDGET_H_

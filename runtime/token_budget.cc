#include "runtime/token_budget.h"

#include <functional>
#include <limits>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace lssar {
namespace {

// The cost of the token at `position`, in units of 1 / kKeysPerTokenCost.
int64_t CostAt(int position) { return int64_t{kKeysPerTokenCost} + position; }

// How many tokens from `first_position` on cost no more than `*budget`, at most `max_tokens` and at
// least `min_tokens`. Subtracts their cost from `*budget`.
int TakeTokens(int first_position, int min_tokens, int max_tokens, int64_t* budget) {
  int num_tokens = 0;
  while (num_tokens < max_tokens &&
         (num_tokens < min_tokens || CostAt(first_position + num_tokens) <= *budget)) {
    *budget -= CostAt(first_position + num_tokens++);
  }
  return num_tokens;
}

}  // namespace

int64_t CostOf(int first_position, int64_t num_tokens) {
  return num_tokens * CostAt(first_position) + num_tokens * (num_tokens - 1) / 2;
}

void TokenBudget::Divide(std::span<const RequiredTokens> sequences,
                         std::vector<int>* num_tokens) const {
  LSSAR_CHECK(sequences.size() <= size_t(limits_.max_num_batched_tokens));
  num_tokens->assign(sequences.size(), 0);
  int num_left = limits_.max_num_batched_tokens;
  bool has_reader = false;  // one waits for a token of this step
  for (const RequiredTokens& sequence : sequences) {
    num_left -= sequence.num_pending == 1;
    has_reader |= sequence.num_pending == 1 && sequence.is_streaming;
  }
  int num_prefills_left =
      has_reader ? limits_.max_num_partial_prefills : limits_.max_num_batched_tokens;
  int64_t budget = has_reader ? int64_t{kKeysPerTokenCost} * limits_.chunked_prefill_size
                              : std::numeric_limits<int64_t>::max();
  bool is_first_prompt = true;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const RequiredTokens& sequence = sequences[i];
    LSSAR_CHECK(sequence.num_pending >= 1);
    if (sequence.num_pending == 1) {
      (*num_tokens)[i] = 1;
      continue;
    }
    if (num_prefills_left == 0) continue;
    const int chunk = TakeTokens(sequence.first_position, is_first_prompt ? 1 : 0,
                                 std::min(sequence.num_pending, num_left), &budget);
    is_first_prompt = false;
    num_prefills_left -= chunk > 0;
    num_left -= chunk;
    (*num_tokens)[i] = chunk;
  }
}

int64_t TokenBudget::CreditLeft(int64_t step) {
  std::ranges::sort(credits_, std::greater());
  int64_t level = 0, sum = 0;
  for (size_t i = 0; i < credits_.size(); ++i) {
    sum += credits_[i];
    level = (sum - step) / int64_t(i + 1);
    if (i + 1 == credits_.size() || level >= credits_[i + 1]) break;
  }
  return level;
}

void TokenBudget::Share(std::span<const RequiredTokens> sequences, std::vector<int>* num_tokens) {
  LSSAR_CHECK(sequences.size() <= size_t(limits_.max_num_batched_tokens));
  num_tokens->assign(sequences.size(), 0);
  if (sequences.empty()) return;
  order_.resize(sequences.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::ranges::sort(order_, {}, [&](int i) {
    const RequiredTokens& sequence = sequences[size_t(i)];
    const bool is_prompt = sequence.num_pending > 1;
    return std::tuple(sequence.rank, is_prompt, is_prompt ? 0 : sequence.last_step, i);
  });
  const auto rank = [&](size_t at) { return sequences[size_t(order_[at])].rank; };
  credits_.clear();
  for (size_t at = 0; at < order_.size(); ++at) {
    if (at == 0 || rank(at) != rank(at - 1)) {
      credits_.push_back(sequences[size_t(order_[at])].credit);
    }
  }
  (*num_tokens)[0] = 1;
  Left left = {.num_tokens = limits_.max_num_batched_tokens - 1, .cost = SharedStep()};
  const int64_t credit_left = CreditLeft(left.cost);
  // The part of each tenant, then what is left.
  for (const bool is_part : {true, false}) {
    for (size_t begin = 0, end = 0; begin < order_.size(); begin = end) {
      while (end < order_.size() && rank(end) == rank(begin)) ++end;
      const std::span own = std::span(order_).subspan(begin, end - begin);
      if (!is_part) {
        GiveToTenant(sequences, own, /*part=*/0, left.cost, &left, num_tokens);
        continue;
      }
      // At least something: each tenant advances.
      const int64_t part =
          std::max(int64_t{1}, sequences[size_t(own.front())].credit - credit_left);
      int64_t budget = part;
      if (rank(begin) == sequences[0].rank) {
        const int64_t first = CostAt(sequences[0].first_position);
        budget -= first;
        left.cost -= first;
      }
      GiveToTenant(sequences, own, part, budget, &left, num_tokens);
    }
  }
}

void TokenBudget::GiveToTenant(std::span<const RequiredTokens> sequences, std::span<const int> own,
                               int64_t part, int64_t budget, Left* left,
                               std::vector<int>* num_tokens) const {
  bool has_prompt = false, has_reader = false;
  int64_t prompt_cost = 0;  // computed so far
  for (const int i : own) {
    const RequiredTokens& sequence = sequences[size_t(i)];
    has_prompt |= sequence.num_pending > 1;
    has_reader |= sequence.num_pending == 1 && sequence.is_streaming;
    if (sequence.num_pending > 1) {
      prompt_cost += CostOf(sequence.first_position, (*num_tokens)[size_t(i)]);
    }
  }
  int num_prefills_left =
      has_reader ? limits_.max_num_partial_prefills : limits_.max_num_batched_tokens;
  int64_t prompt_budget =
      has_reader ? int64_t{limits_.chunked_prefill_size} * kKeysPerTokenCost - prompt_cost
                 : std::numeric_limits<int64_t>::max();
  for (const int i : own) {
    const RequiredTokens& sequence = sequences[size_t(i)];
    int& num_scheduled = (*num_tokens)[size_t(i)];
    const bool is_prompt = sequence.num_pending > 1;
    if (is_prompt && num_prefills_left-- <= 0) break;
    const int64_t limit =
        is_prompt ? std::min(budget, prompt_budget) : budget - (has_prompt ? part / 2 : 0);
    int64_t rest = limit;
    const int chunk =
        TakeTokens(sequence.first_position + num_scheduled, part > 0 && limit > 0 ? 1 : 0,
                   std::min(sequence.num_pending - num_scheduled, left->num_tokens), &rest);
    num_scheduled += chunk;
    left->num_tokens -= chunk;
    budget -= limit - rest;
    left->cost -= limit - rest;
    if (is_prompt) prompt_budget -= limit - rest;
  }
}

}  // namespace lssar

// Logits -> the next token's id.
#ifndef LSSAR_RUNTIME_SAMPLER_H_
#define LSSAR_RUNTIME_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/request.h"
#include "runtime/token_counts.h"

namespace lssar {

// The id of the largest logit, of equal ones the lowest: what greedy means everywhere. nullopt: a
// logit is NaN or infinite.
std::optional<int32_t> BestToken(std::span<const float> logits);

// Whether `params` look at what was said before (then `Draw::counts` is needed).
bool UsesTokenCounts(const SamplingParams& params);

// What a draw depends on beside the logits; nothing else does it depend on.
struct Draw {
  const SamplingParams* params = nullptr;
  const TokenCounts* counts = nullptr;  // may be null when no penalty is set
  int choice = 0;
  int position = 0;  // of the token to draw, in the sequence
};

// Stages, each over what the one before left: bias and allowed/banned ids, penalties, temperature,
// top-k, top-p, min-p, draw. Arithmetic is in double. Equal scores rank by id, lowest first.
//   repetition        a positive score of an id that occurred is divided, another multiplied
//   presence          subtracted once, frequency as many times as the output holds the id
//   temperature 0     the best score; the stages after it change nothing
//   top-k             the k best
//   top-p             the shortest run of best ones whose probabilities sum to at least top_p
//   min-p             those at least min_p times as probable as the best one
// Cost      O(vocabulary); no sort of it: top-k selects, top-p ranks no more than it keeps, doubled
// Threads   one at a time; holds scratch alone
class Sampler {
 public:
  // nullopt: a logit is NaN or infinite.
  // Requires  bias, allowed and banned ids inside [0, logits.size()); an id is left to draw from
  std::optional<int32_t> Sample(std::span<const float> logits, const Draw& draw);

 private:
  struct Candidate {
    double score;
    double weight;  // exp((score - best) / temperature): probability up to a common factor
    int32_t id;
  };
  static bool RanksBefore(const Candidate& a, const Candidate& b);

  void Adjust(std::span<const float> logits, const Draw& draw);
  void ApplyAllowed(std::span<const float> logits, const SamplingParams& params);
  void GatherCandidates();
  void KeepTopK(int k);
  void Weigh(double temperature);
  void KeepTopP(double top_p);
  void KeepMinP(double min_p);
  int32_t Pick(double uniform) const;

  std::vector<double> scores_;  // [vocab]; -inf: not allowed
  std::vector<Candidate> candidates_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SAMPLER_H_

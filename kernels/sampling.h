// The request and the result of sampling one row of logits (Sample in ops.h).
#ifndef LSSAR_KERNELS_SAMPLING_H_
#define LSSAR_KERNELS_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace lssar {

// A mask of a row (SampleRequest) of `num_ids` ids has so many words.
constexpr size_t NumMaskWords(size_t num_ids) { return (num_ids + 31) / 32; }
constexpr bool MaskHas(std::span<const uint32_t> mask, size_t id) {
  return id / 32 < mask.size() && (mask[id / 32] >> (id % 32) & 1) != 0;
}

// A draw has these stages, each over the candidates that the stage before left:
//   bias, allowed   score = logit + bias; removes banned ids and, if allowed_ids is set, all others
//   repetition      the id occurred: a positive score is divided, another score multiplied
//   presence        subtracted once if the output holds the id; frequency once per occurrence
//   temperature 0   the best score; the later stages do not change it
//   weight          e^((score - best) / temperature)
//   top-k           the k best
//   top-p           the shortest list of best ones, not empty, with at least top_p of all weights
//   min-p           those with at least min_p of the best one's weight
//   draw            the first id, in rising order, at which the running sum of weights exceeds
//                   u times their total; u is Philox (philox.h) of seed, choice and position
// Equal scores rank by id, lowest first. Scores are fp32; weights have 42 bits below the best's.
struct SamplingParams {
  float temperature = 1.0f;                                // 0: greedy
  int top_k = 0;                                           // 0: off
  float top_p = 1.0f;                                      // [0, 1]; 0: the best one alone
  float min_p = 0.0f;                                      // [0, 1]
  float repetition_penalty = 1.0f;                         // > 0; over prompt and output
  float presence_penalty = 0.0f;                           // [-2, 2]; over output
  float frequency_penalty = 0.0f;                          // [-2, 2]; over output
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // each id at most once
  std::vector<int32_t> allowed_ids = {};                   // empty: all
  std::vector<int32_t> banned_ids = {};
  uint64_t seed = 0;

  // True if scores depend on earlier tokens.
  bool HasPenalties() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  // True if scores differ from the logits.
  bool AdjustsLogits() const {
    return HasPenalties() || !logit_bias.empty() || !allowed_ids.empty() || !banned_ids.empty();
  }
};

// A token id that occurred, and its number of occurrences in the output. 0: only in the prompt.
struct TokenCount {
  int32_t id = 0;
  int32_t num_in_output = 0;
};

// The upper limit of SampleRequest::num_logprobs.
inline constexpr int kMaxTopLogprobs = 1024;

// The id of a row is either given (`target`) or drawn. A draw depends only on the row's logits and
// on these fields.
struct SampleRequest {
  int32_t target = -1;                     // -1: draw
  const SamplingParams* params = nullptr;  // for a draw; read before Sample returns
  std::span<const TokenCount> counts;      // each id at most once; unused without penalties
  // Bit id % 32 of word id / 32: whether the id may be drawn, besides what `params` says, which is
  // at least one; ids beyond its words may not. Empty: all may be.
  std::span<const uint32_t> mask = {};
  int choice = 0;
  int position = 0;       // of the token to draw, in the sequence
  int num_logprobs = -1;  // -1: none; 0: the id's; N: also those of the N best
};

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural log
};

// Log-probabilities are of the raw distribution, before params.
struct SampleResult {
  int32_t id = 0;
  bool finite = true;             // false: a logit is NaN or infinite; nothing else is set
  bool is_best = false;           // id is the lowest id with the largest logit
  float logprob = 0;              // of id; 0 if num_logprobs is -1
  std::vector<TokenLogprob> top;  // falling logprob; equal ones by rising id
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_SAMPLING_H_

#include "kernels/reference/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/philox.h"

namespace lssar {
namespace {

struct Candidate {
  double score = 0;
  int32_t id = 0;
  double weight = 0;
};

double ToFloatRange(double score) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return double{float(std::clamp(score, -kLargest, kLargest))};
}

// By id; nullopt: it may not be drawn. logits: those of the ids that may be.
std::vector<std::optional<double>> Scores(std::span<const float> logits, const SampleRequest& row) {
  const SamplingParams& params = *row.params;
  std::vector<std::optional<double>> scores(logits.size());
  const auto has = [&scores](int32_t id) {
    return size_t(id) < scores.size() && scores[size_t(id)].has_value();
  };
  if (params.allowed_ids.empty()) {
    for (size_t id = 0; id < logits.size(); ++id) scores[id] = logits[id];
  }
  for (const int32_t id : params.allowed_ids) {
    if (size_t(id) < logits.size()) scores[size_t(id)] = logits[size_t(id)];
  }
  for (const int32_t id : params.banned_ids) {
    if (has(id)) scores[size_t(id)].reset();
  }
  if (!row.mask.empty()) {
    for (size_t id = 0; id < scores.size(); ++id) {
      if (!MaskHas(row.mask, id)) scores[id].reset();
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (has(id)) scores[size_t(id)] = ToFloatRange(*scores[size_t(id)] + double{bias});
  }
  if (!params.HasPenalties()) return scores;
  for (const TokenCount& count : row.counts) {
    if (!has(count.id)) continue;
    const double repetition = params.repetition_penalty;
    double score = *scores[size_t(count.id)];
    score = score > 0 ? score / repetition : score * repetition;
    if (count.num_in_output > 0) {
      score -=
          double{params.presence_penalty} + count.num_in_output * double{params.frequency_penalty};
    }
    scores[size_t(count.id)] = ToFloatRange(score);
  }
  return scores;
}

double TotalWeight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// The number of best candidates whose weights reach `top_p` of the total.
size_t NumInTopP(std::span<const Candidate> ranked, double top_p) {
  const double wanted = top_p * TotalWeight(ranked);
  double sum = 0;
  for (size_t i = 0; i < ranked.size(); ++i) {
    sum += ranked[i].weight;
    if (sum >= wanted) return i + 1;
  }
  return ranked.size();
}

int32_t DrawId(std::span<const float> logits, const SampleRequest& row) {
  const SamplingParams& params = *row.params;
  const std::vector<std::optional<double>> scores = Scores(logits, row);
  std::vector<Candidate> candidates;
  candidates.reserve(scores.size());
  for (size_t id = 0; id < scores.size(); ++id) {
    if (scores[id]) candidates.push_back({.score = *scores[id], .id = int32_t(id)});
  }
  LSSAR_CHECK(!candidates.empty());
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  if (params.temperature == 0) return candidates.front().id;

  const double best = candidates.front().score;
  for (Candidate& candidate : candidates) {
    candidate.weight = std::exp((candidate.score - best) / double{params.temperature});
  }
  if (params.top_k > 0) candidates.resize(std::min(candidates.size(), size_t(params.top_k)));
  if (params.top_p < 1) candidates.resize(NumInTopP(candidates, double{params.top_p}));
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < double{params.min_p}; });

  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const uint64_t draw = DrawFor(params.seed, uint32_t(row.choice), uint64_t(row.position));
  const double target = double(draw >> 11) * 0x1p-53 * TotalWeight(candidates);
  double sum = 0;
  for (const Candidate& candidate : candidates) {
    sum += candidate.weight;
    if (sum > target) return candidate.id;
  }
  return candidates.back().id;  // not reached: target is below the final sum
}

void SetLogprobs(std::span<const float> logits, int num_top, SampleResult& out) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  const double log_sum = max + std::log(sum);

  std::vector<TokenLogprob> all;
  for (size_t id = 0; id < logits.size(); ++id) {
    all.push_back({.id = int32_t(id), .logprob = float(double{logits[id]} - log_sum)});
  }
  out.logprob = all[size_t(out.id)].logprob;
  std::stable_sort(all.begin(), all.end(), [](const TokenLogprob& a, const TokenLogprob& b) {
    return a.logprob > b.logprob;
  });
  out.top.assign(all.begin(), all.begin() + num_top);
}

}  // namespace

void ReferenceSample(const SampleArgs& args) {
  LSSAR_CHECK(args.out.size() == args.rows.size());
  for (size_t i = 0; i < args.rows.size(); ++i) {
    const SampleRequest& row = args.rows[i];
    const size_t vocab = size_t(args.vocab);
    const std::span<const float> logits(args.logits + i * vocab, vocab);
    SampleResult& out = args.out[i];
    out = {};
    out.finite =
        std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
    if (!out.finite) continue;
    out.id = row.target >= 0 ? row.target : DrawId(logits.first(size_t(args.NumIds())), row);
    out.is_best = out.id == std::max_element(logits.begin(), logits.end()) - logits.begin();
    if (row.num_logprobs >= 0) SetLogprobs(logits, row.num_logprobs, out);
  }
}

}  // namespace lssar

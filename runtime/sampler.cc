#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "runtime/philox.h"

namespace lssar {
namespace {

constexpr double kNotAllowed = -std::numeric_limits<double>::infinity();

// One pass without branches: it vectorises.
bool AllFinite(std::span<const float> logits) {
  int num_bad = 0;
  for (const float x : logits) num_bad += !(std::abs(x) <= std::numeric_limits<float>::max());
  return num_bad == 0;
}

}  // namespace

std::optional<int32_t> BestToken(std::span<const float> logits) {
  if (!AllFinite(logits)) return std::nullopt;
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

bool UsesTokenCounts(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

std::optional<int32_t> Sampler::Sample(std::span<const float> logits, const Draw& draw) {
  const SamplingParams& params = *draw.params;
  if (!AllFinite(logits)) return std::nullopt;
  Adjust(logits, draw);
  if (params.temperature == 0.0f) {
    const auto best = std::max_element(scores_.begin(), scores_.end());
    LSSAR_CHECK(*best != kNotAllowed);
    return int32_t(best - scores_.begin());
  }
  GatherCandidates();
  if (params.top_k > 0) KeepTopK(params.top_k);
  Weigh(double(params.temperature));
  if (params.top_p < 1.0f) KeepTopP(double(params.top_p));
  if (params.min_p > 0.0f) KeepMinP(double(params.min_p));
  return Pick(UniformFor(params.seed, uint32_t(draw.choice), uint64_t(draw.position)));
}

bool Sampler::RanksBefore(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

void Sampler::Adjust(std::span<const float> logits, const Draw& draw) {
  const SamplingParams& params = *draw.params;
  ApplyAllowed(logits, params);
  for (const auto& [id, bias] : params.logit_bias) scores_[size_t(id)] += double(bias);
  if (!UsesTokenCounts(params)) return;
  const auto repetition = double(params.repetition_penalty);
  for (const auto& [id, num_in_output] : draw.counts->NumInOutput()) {
    double& score = scores_[size_t(id)];
    score = score > 0 ? score / repetition : score * repetition;
    if (num_in_output > 0) {
      score -= double(params.presence_penalty) + num_in_output * double(params.frequency_penalty);
    }
  }
}

void Sampler::ApplyAllowed(std::span<const float> logits, const SamplingParams& params) {
  if (params.allowed_ids.empty()) {
    scores_.assign(logits.begin(), logits.end());
  } else {
    scores_.assign(logits.size(), kNotAllowed);
    for (const int32_t id : params.allowed_ids) scores_[size_t(id)] = double(logits[size_t(id)]);
  }
  for (const int32_t id : params.banned_ids) scores_[size_t(id)] = kNotAllowed;
}

void Sampler::GatherCandidates() {
  candidates_.clear();
  for (size_t id = 0; id < scores_.size(); ++id) {
    if (scores_[id] != kNotAllowed) candidates_.push_back({scores_[id], 0, int32_t(id)});
  }
  LSSAR_CHECK(!candidates_.empty());
}

// Leaves them in rank order: which order nth_element gives is the library's own affair.
void Sampler::KeepTopK(int k) {
  if (size_t(k) >= candidates_.size()) return;
  std::nth_element(candidates_.begin(), candidates_.begin() + k, candidates_.end(), RanksBefore);
  candidates_.resize(size_t(k));
  std::sort(candidates_.begin(), candidates_.end(), RanksBefore);
}

void Sampler::Weigh(double temperature) {
  double best = kNotAllowed;
  for (const Candidate& c : candidates_) best = std::max(best, c.score);
  for (Candidate& c : candidates_) c.weight = std::exp((c.score - best) / temperature);
}

void Sampler::KeepTopP(double top_p) {
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  // Ranks a beginning, and a longer one only when its sum does not reach.
  constexpr size_t kFirstRun = 64;
  size_t num_ranked = 0;
  double sum = 0;
  for (size_t run = kFirstRun; num_ranked < candidates_.size(); run *= 2) {
    const size_t end = std::min(num_ranked + run, candidates_.size());
    const auto first = candidates_.begin() + std::ptrdiff_t(num_ranked);
    const auto last = candidates_.begin() + std::ptrdiff_t(end);
    if (last != candidates_.end()) std::nth_element(first, last, candidates_.end(), RanksBefore);
    std::sort(first, last, RanksBefore);
    for (; num_ranked < end; ++num_ranked) {
      sum += candidates_[num_ranked].weight;
      if (sum >= top_p * total) {
        candidates_.resize(num_ranked + 1);
        return;
      }
    }
  }
}

void Sampler::KeepMinP(double min_p) {
  // The best one's weight is 1.
  std::erase_if(candidates_, [min_p](const Candidate& c) { return c.weight < min_p; });
}

int32_t Sampler::Pick(double uniform) const {
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double target = uniform * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > target) return c.id;
  }
  // Unreachable but for rounding: target < total, and both sums add the same terms in one order.
  return candidates_.back().id;
}

}  // namespace lssar

#include "tests/kernels/sample_cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {

const std::vector<TokenCount> kCaseCounts = {{1, 0}, {2, 0}, {3, 1}, {4, 0}, {9, 3}, {14, 1}};

std::vector<float> RandomLogits(size_t vocab, uint32_t seed) {
  std::vector<float> logits = RandomFloats(vocab, seed, 3);
  for (size_t i = 0; i + 7 < vocab; i += 5) logits[i + 7] = logits[i];
  return logits;
}

std::vector<SampleResult> RunSample(Backend& backend, const std::vector<float>& logits, int vocab,
                                    const std::vector<SampleRequest>& rows) {
  LSSAR_CHECK(logits.size() == rows.size() * size_t(vocab));
  Floats on_backend(backend, logits);
  std::vector<SampleResult> out(rows.size());
  backend.Sample({.logits = on_backend.Address(), .vocab = vocab, .rows = rows, .out = out});
  LSSAR_CHECK(backend.Synchronize().ok());
  return out;
}

SampleResult RunSampleOfRow(Backend& backend, const std::vector<float>& logits,
                            const SampleRequest& row) {
  return RunSample(backend, logits, int(logits.size()), {row})[0];
}

std::map<int32_t, int> DrawHistogram(Backend& backend, const std::vector<float>& logits,
                                     const SamplingParams& params,
                                     const std::vector<TokenCount>& counts, int num_draws) {
  constexpr int kRowsAtOnce = 100;
  std::vector<float> copies;
  for (int i = 0; i < kRowsAtOnce; ++i) copies.insert(copies.end(), logits.begin(), logits.end());
  std::map<int32_t, int> histogram;
  for (int first = 0; first < num_draws; first += kRowsAtOnce) {
    std::vector<SampleRequest> rows;
    for (int i = 0; i < kRowsAtOnce; ++i) {
      rows.push_back({.params = &params, .counts = counts, .position = first + i});
    }
    for (const SampleResult& row : RunSample(backend, copies, int(logits.size()), rows)) {
      ++histogram[row.id];
    }
  }
  return histogram;
}

// Every stage computed naively: full sorts, maps, double arithmetic.
std::map<int32_t, double> NaiveDistribution(const std::vector<float>& logits,
                                            const SamplingParams& params,
                                            const std::vector<TokenCount>& counts) {
  std::map<int32_t, double> scores;
  for (size_t id = 0; id < logits.size(); ++id) {
    const bool is_allowed =
        params.allowed_ids.empty() || std::ranges::count(params.allowed_ids, int32_t(id)) > 0;
    if (is_allowed && std::ranges::count(params.banned_ids, int32_t(id)) == 0) {
      scores[int32_t(id)] = double(logits[id]);
    }
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (scores.contains(id)) scores[id] += double(bias);
  }
  for (const auto& [id, num_in_output] : counts) {
    if (!scores.contains(id)) continue;
    double& score = scores[id];
    const auto r = double(params.repetition_penalty);
    score = score > 0 ? score / r : score * r;
    if (num_in_output == 0) continue;
    score -= double(params.presence_penalty) + num_in_output * double(params.frequency_penalty);
  }
  std::vector<std::pair<double, int32_t>> ranked;
  for (const auto& [id, score] : scores) ranked.emplace_back(-score, id);
  std::ranges::sort(ranked);
  if (params.temperature == 0.0f) return {{ranked.front().second, 1.0}};
  if (params.top_k > 0) ranked.resize(std::min(ranked.size(), size_t(params.top_k)));

  std::vector<double> weights;
  for (const auto& [score, id] : ranked) {
    weights.push_back(std::exp((ranked.front().first - score) / double(params.temperature)));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t num_kept = 0;
  for (double sum = 0; num_kept < weights.size() && sum < double(params.top_p) * total;) {
    sum += weights[num_kept++];
  }
  num_kept = params.top_p == 1.0f ? weights.size() : std::max<size_t>(num_kept, 1);
  double kept_total = 0;
  std::map<int32_t, double> result;
  for (size_t i = 0; i < num_kept; ++i) {
    if (weights[i] < double(params.min_p) * weights[0]) continue;
    result[ranked[i].second] = weights[i];
    kept_total += weights[i];
  }
  for (auto& [id, weight] : result) weight /= kept_total;
  return result;
}

std::vector<SampleCase> SampleCases() {
  return {
      {"plain", {}},
      {"greedy", {.temperature = 0}},
      {"cold", {.temperature = 0.25f}},
      {"hot", {.temperature = 4}},
      {"top_k", {.top_k = 7}},
      {"top_k_1", {.top_k = 1}},
      {"top_k_over_vocabulary", {.top_k = 100000}},
      {"top_p", {.top_p = 0.8f}},
      {"top_p_wide", {.temperature = 8, .top_p = 0.98f}},
      {"top_p_tiny", {.top_p = 1e-6f}},
      {"top_p_zero", {.top_p = 0}},
      {"min_p", {.min_p = 0.05f}},
      {"min_p_1", {.min_p = 1}},
      {"repetition", {.repetition_penalty = 1.7f}},
      {"presence", {.presence_penalty = 1.5f}},
      {"frequency", {.frequency_penalty = -0.7f}},
      {"bias", {.logit_bias = {{3, 4.0f}, {5, -100.0f}}}},
      {"allowed", {.allowed_ids = {2, 3, 5, 7, 5}}},
      {"banned", {.banned_ids = {0, 1, 2, 3}}},
      {"greedy_allowed", {.temperature = 0, .allowed_ids = {9, 4}, .banned_ids = {4}}},
      {"hottest", {.temperature = 100}},
      {"coldest", {.temperature = std::numeric_limits<float>::denorm_min()}},
      {"repetition_below_1", {.repetition_penalty = 0.6f, .presence_penalty = -1.0f}},
      {"top_k_top_p", {.top_k = 12, .top_p = 0.7f}},
      {"greedy_penalties", {.temperature = 0, .repetition_penalty = 3, .logit_bias = {{6, 2.0f}}}},
      {"all",
       {.temperature = 1.3f,
        .top_k = 40,
        .top_p = 0.9f,
        .min_p = 0.02f,
        .repetition_penalty = 1.2f,
        .presence_penalty = 0.3f,
        .frequency_penalty = 0.2f,
        .logit_bias = {{11, 1.0f}},
        .banned_ids = {12}}},
  };
}

// Pearson's statistic over the ids with an expected count of 5 or more, the others as one group;
// then the Wilson-Hilferty approximation of its normal deviate.
double ChiSquareDeviate(const std::map<int32_t, int>& histogram,
                        const std::map<int32_t, double>& expected, int num_draws) {
  double chi_square = 0, rest_expected = 0, rest_observed = 0;
  int num_cells = 0;
  const auto add = [&](double e, double o) {
    if (e <= 0) return;
    chi_square += (o - e) * (o - e) / e;
    ++num_cells;
  };
  for (const auto& [id, probability] : expected) {
    const double e = probability * num_draws;
    const double o = histogram.contains(id) ? histogram.at(id) : 0;
    if (e >= 5) {
      add(e, o);
    } else {
      rest_expected += e;
      rest_observed += o;
    }
  }
  add(rest_expected, rest_observed);
  if (num_cells < 2) return 0;
  const double k = num_cells - 1;
  return (std::cbrt(chi_square / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k));
}

}  // namespace lssar

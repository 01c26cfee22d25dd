#include "runtime/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/philox.h"

namespace lssar {
namespace {

std::vector<float> RandomLogits(std::mt19937* random, size_t vocab) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(vocab);
  for (float& x : logits) x = normal(*random);
  // Equal ones, so that ties are met.
  for (size_t i = 0; i + 7 < vocab; i += 5) logits[i + 7] = logits[i];
  return logits;
}

// Every stage by the book: full sorts, maps, plain double arithmetic.
std::map<int32_t, double> NaiveDistribution(const std::vector<float>& logits,
                                            const SamplingParams& params,
                                            const std::vector<int32_t>& prompt,
                                            const std::vector<int32_t>& output) {
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
  for (auto& [id, score] : scores) {
    const auto in_output = std::ranges::count(output, id);
    if (in_output > 0 || std::ranges::count(prompt, id) > 0) {
      const auto r = double(params.repetition_penalty);
      score = score > 0 ? score / r : score * r;
    }
    if (in_output > 0) {
      score -=
          double(params.presence_penalty) + double(in_output) * double(params.frequency_penalty);
    }
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
  if (params.top_p == 1.0f) num_kept = weights.size();
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

std::map<int32_t, int> Histogram(Sampler* sampler, const std::vector<float>& logits,
                                 const SamplingParams& params, const TokenCounts& counts,
                                 int num_draws) {
  std::map<int32_t, int> histogram;
  for (int position = 0; position < num_draws; ++position) {
    const auto id = sampler->Sample(
        logits, {.params = &params, .counts = &counts, .choice = 0, .position = position});
    ++histogram[id.value()];
  }
  return histogram;
}

// Pearson's statistic over the ids with an expected count of 5 or more, the others as one; then the
// Wilson-Hilferty approximation of its normal deviate.
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

struct Case {
  const char* name;
  SamplingParams params;
};

std::vector<Case> Cases() {
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
      {"min_p", {.min_p = 0.05f}},
      {"min_p_1", {.min_p = 1}},
      {"repetition", {.repetition_penalty = 1.7f}},
      {"presence", {.presence_penalty = 1.5f}},
      {"frequency", {.frequency_penalty = -0.7f}},
      {"bias", {.logit_bias = {{3, 4.0f}, {5, -100.0f}}}},
      {"allowed", {.allowed_ids = {2, 3, 5, 7, 5}}},
      {"banned", {.banned_ids = {0, 1, 2, 3}}},
      {"greedy_allowed", {.temperature = 0, .allowed_ids = {9, 4}, .banned_ids = {4}}},
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

TEST(Sampler, EveryStageDrawsFromTheNaiveDistribution) {
  std::mt19937 random(3);
  Sampler sampler;
  constexpr int kNumDraws = 20000;
  for (const size_t vocab : {30u, 300u}) {
    for (Case& c : std::vector<Case>(Cases())) {
      SCOPED_TRACE(testing::Message() << c.name << ", vocabulary " << vocab);
      const std::vector<float> logits = RandomLogits(&random, vocab);
      const std::vector<int32_t> prompt = {1, 2, 3, 4}, output = {3, 9, 9, 9, 14};
      TokenCounts counts;
      counts.AddPrompt(prompt);
      for (const int32_t id : output) counts.AddOutput(id);
      c.params.seed = random();
      const auto expected = NaiveDistribution(logits, c.params, prompt, output);
      const auto histogram = Histogram(&sampler, logits, c.params, counts, kNumDraws);
      for (const auto& [id, count] : histogram) {
        EXPECT_TRUE(expected.contains(id)) << "id " << id << " was drawn " << count << " times";
      }
      const double deviate = ChiSquareDeviate(histogram, expected, kNumDraws);
      EXPECT_LT(deviate, 4.0) << "chi-square too large";
      if (expected.size() == 1) {
        EXPECT_EQ(histogram.begin()->first, expected.begin()->first);
      }
    }
  }
}

// The cut itself, exactly: with equal probabilities 1/2^n the sums are exact.
TEST(Sampler, TopPKeepsTheShortestSufficientRunTiesById) {
  const std::vector<float> logits(256, 1.5f);
  Sampler sampler;
  SamplingParams params;
  params.top_p = 0.25f;
  const auto histogram = Histogram(&sampler, logits, params, {}, 20000);
  EXPECT_EQ(histogram.size(), 64u);
  EXPECT_EQ(histogram.rbegin()->first, 63);
}

TEST(Sampler, TopKBreaksTiesById) {
  std::vector<float> logits(100, 0.0f);
  logits[90] = 1.0f;
  Sampler sampler;
  SamplingParams params;
  params.top_k = 3;
  const auto histogram = Histogram(&sampler, logits, params, {}, 5000);
  std::vector<int32_t> ids;
  for (const auto& [id, count] : histogram) ids.push_back(id);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 90}));
}

TEST(Sampler, GreedyTakesTheLowestOfEqualBest) {
  const std::vector<float> logits = {1, 5, 5, 2};
  SamplingParams params;
  params.temperature = 0;
  Sampler sampler;
  EXPECT_EQ(sampler.Sample(logits, {.params = &params}), 1);
  EXPECT_EQ(BestToken(logits), 1);
}

TEST(Sampler, DrawsDependOnSeedChoiceAndPositionAlone) {
  std::mt19937 random(5);
  const std::vector<float> logits = RandomLogits(&random, 500);
  const std::vector<float> others = RandomLogits(&random, 700);
  SamplingParams params;
  params.top_p = 0.95f;
  params.seed = 42;
  Sampler fresh, used;
  std::vector<int32_t> first, second;
  for (int position = 0; position < 200; ++position) {
    first.push_back(*fresh.Sample(logits, {.params = &params, .position = position}));
    used.Sample(others, {.params = &params, .choice = 3, .position = position});
    second.push_back(*used.Sample(logits, {.params = &params, .position = position}));
  }
  EXPECT_EQ(first, second);

  int num_equal_choice = 0, num_equal_seed = 0;
  SamplingParams reseeded = params;
  reseeded.seed = 43;
  for (int position = 0; position < 200; ++position) {
    const auto at = size_t(position);
    num_equal_choice +=
        fresh.Sample(logits, {.params = &params, .choice = 1, .position = position}) == first[at];
    num_equal_seed +=
        fresh.Sample(logits, {.params = &reseeded, .position = position}) == first[at];
  }
  EXPECT_LT(num_equal_choice, 100);
  EXPECT_LT(num_equal_seed, 100);
}

TEST(Sampler, NotFiniteLogitsAreRefused) {
  Sampler sampler;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const size_t at : {size_t(0), size_t(50), size_t(99)}) {
      std::vector<float> logits(100, 1.0f);
      logits[at] = bad;
      for (const float temperature : {0.0f, 1.0f}) {
        SamplingParams params;
        params.temperature = temperature;
        EXPECT_EQ(sampler.Sample(logits, {.params = &params}), std::nullopt);
      }
      EXPECT_EQ(BestToken(logits), std::nullopt);
    }
  }
  const std::vector<float> extreme = {std::numeric_limits<float>::max(),
                                      std::numeric_limits<float>::lowest()};
  EXPECT_EQ(BestToken(extreme), 0);
}

TEST(Sampler, ExtremeTemperaturesStayInRange) {
  const std::vector<float> logits = {std::numeric_limits<float>::lowest(), 3,
                                     std::numeric_limits<float>::max()};
  Sampler sampler;
  SamplingParams params;
  params.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(sampler.Sample(logits, {.params = &params}), 2);
  params.temperature = 100;
  EXPECT_EQ(sampler.Sample(logits, {.params = &params}), 2);
}

// Known answers of the reference implementation (Random123, kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsInItsRange) {
  double sum = 0;
  for (uint64_t position = 0; position < 100000; ++position) {
    const double u = UniformFor(9, 2, position);
    ASSERT_TRUE(u >= 0 && u < 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

}  // namespace
}  // namespace lssar

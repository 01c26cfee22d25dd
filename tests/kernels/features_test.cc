// The features of the ops (kernels/feature.h): each against the reference where the backend
// computes it, and its bits over rows, threads and instruction sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

class FeaturesTest : public ::testing::TestWithParam<std::string> {
 protected:
  FeaturesTest() : reference_(MakeNamed("reference")), backend_(MakeNamed(GetParam())) {}
  bool Supports(Feature feature) const { return backend_->Supports(feature); }

  std::unique_ptr<Backend> reference_, backend_;
};
INSTANTIATE_TEST_SUITE_P(Backends, FeaturesTest, testing::ValuesIn(BackendNames()),
                         [](const auto& param) { return param.param; });

struct ActivationCase {
  Activation activation;
  Feature feature;
  double (*function)(double);
};
const ActivationCase kActivationCases[] = {
    {Activation::kGeluTanh, Feature::kGeluTanh,
     [](double x) {
       return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
     }},
    {Activation::kGeluErf, Feature::kGeluErf,
     [](double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }},
    {Activation::kRelu, Feature::kRelu, [](double x) { return x > 0 ? x : 0.0; }},
    {Activation::kRelu2, Feature::kRelu2, [](double x) { return x > 0 ? x * x : 0.0; }},
    {Activation::kSilu, Feature::kSilu, [](double x) { return x / (1 + std::exp(-x)); }},
};

// Every activation over the whole range, through a GEMM that passes one number on.
TEST_P(FeaturesTest, ActivationsMatchTheirDefinition) {
  std::vector<float> x;
  for (int i = -4000; i <= 4000; ++i) x.push_back(float(i) * 0.005f);
  x.insert(x.end(), {-1e30f, -200.0f, -100.0f, 100.0f, 1e10f, 0.0f, -0.0f, 1e-20f});
  const std::vector<float> one = {1.0f};
  for (const ActivationCase& c : kActivationCases) {
    if (!Supports(c.feature)) continue;
    const auto weight = Pack(*backend_, one, 1, 1, DType::kF32);
    Floats in(*backend_, x), out(*backend_, std::vector<float>(x.size()));
    backend_->Linear({.num_rows = int(x.size()),
                      .x = in.Address(),
                      .norm = {},
                      .weight = weight.get(),
                      .activation = c.activation,
                      .out = out.Address()});
    ASSERT_TRUE(backend_->Synchronize().ok());
    const std::vector<float> got = out.Values();
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = c.function(double{x[i]});
      const double size = std::max(std::fabs(want), std::fabs(double{x[i]}));
      EXPECT_NEAR(double{got[i]}, want, 1e-5 * std::min(size, 1e20) + 1e-30)
          << int(c.activation) << " of " << x[i];
    }
  }
}

struct LinearCase {
  NormKind norm = NormKind::kNone;
  bool norm_weight = false, norm_bias = false;
  Activation activation = Activation::kNone;
  bool multiply = false, residual = false;
  float scale = 1;
};

// [num_rows, 70] of 100 inputs.
std::vector<float> RunLinear(Backend& backend, const LinearCase& c, DType stored, int first_row,
                             int num_rows) {
  constexpr int kRows = 40, kIn = 100, kOut = 70;
  const auto slice = [&](const std::vector<float>& from, int width) {
    return std::vector<float>(from.begin() + first_row * width,
                              from.begin() + (first_row + num_rows) * width);
  };
  const auto weight = Pack(backend, RandomFloats(kOut * kIn, 2, 0.1f), kOut, kIn, stored);
  Floats x(backend, slice(RandomFloats(kRows * kIn, 1), kIn));
  Floats norm_weight(backend, RandomFloats(kIn, 3)), norm_bias(backend, RandomFloats(kIn, 4));
  Floats bias(backend, RandomFloats(kOut, 5));
  Floats multiply(backend, slice(RandomFloats(kRows * kOut, 6), kOut));
  Floats out(backend, slice(RandomFloats(kRows * kOut, 7), kOut));  // and residual
  backend.Linear({.num_rows = num_rows,
                  .x = x.Address(),
                  .norm = {.kind = c.norm,
                           .weight = c.norm_weight ? norm_weight.Address() : nullptr,
                           .bias = c.norm_bias ? norm_bias.Address() : nullptr},
                  .weight = weight.get(),
                  .bias = bias.Address(),
                  .activation = c.activation,
                  .multiply = c.multiply ? multiply.Address() : nullptr,
                  .scale = c.scale,
                  .residual = c.residual ? out.Address() : nullptr,
                  .out = out.Address()});
  EXPECT_TRUE(backend.Synchronize().ok());
  return out.Values();
}

const LinearCase kLinearCases[] = {
    {.norm = NormKind::kRmsNorm},
    {.norm = NormKind::kRmsNorm, .norm_weight = true, .activation = Activation::kSilu},
    {.norm = NormKind::kRmsNorm, .norm_weight = true, .norm_bias = true, .multiply = true},
    {.norm = NormKind::kLayerNorm, .activation = Activation::kGeluErf},
    {.activation = Activation::kRelu2, .scale = 0.3f},
    {.activation = Activation::kRelu, .residual = true, .scale = 0.35f},
    {.activation = Activation::kSilu, .multiply = true, .residual = true, .scale = 2.5f},
};

bool ComputesCase(const Backend& backend) {
  return backend.Supports(Feature::kRmsNorm) && backend.Supports(Feature::kGatedMlp) &&
         backend.Supports(Feature::kResidualScale) && backend.Supports(Feature::kRelu2) &&
         backend.Supports(Feature::kSilu) && backend.Supports(Feature::kGeluErf);
}

TEST_P(FeaturesTest, LinearMatchesTheReference) {
  if (!ComputesCase(*backend_)) return;
  for (const LinearCase& c : kLinearCases) {
    for (const DType stored : {DType::kF32, DType::kF16, DType::kI8}) {
      const std::vector<float> want = RunLinear(*reference_, c, stored, 0, 40);
      const std::vector<float> got = RunLinear(*backend_, c, stored, 0, 40);
      // Sums of 100 products of 0.1: their terms add up to 10 at most. kRelu2 doubles |sum| < 5.
      const double bound = (stored == DType::kI8 ? 4e-3 : 1e-4) * double{std::max(1.0f, c.scale)} *
                           (c.activation == Activation::kRelu2 ? 10 : 1) * (c.multiply ? 4 : 1);
      EXPECT_TRUE(AllClose(got, {want.begin(), want.end()}, std::vector(want.size(), bound)))
          << &c - kLinearCases << " " << NameOf(stored);
    }
  }
}

TEST_P(FeaturesTest, LinearBitsDependOnlyOnTheRow) {
  if (!ComputesCase(*backend_) || GetParam() == "reference") return;
  for (const LinearCase& c : kLinearCases) {
    for (const DType stored : {DType::kF16, DType::kI8}) {
      const std::vector<float> whole = RunLinear(*backend_, c, stored, 0, 40);
      for (const auto& [first, count] : {std::pair{0, 1}, {39, 1}, {3, 14}, {17, 2}}) {
        const std::vector<float> want(whole.begin() + first * 70,
                                      whole.begin() + (first + count) * 70);
        EXPECT_TRUE(SameBits(RunLinear(*backend_, c, stored, first, count), want))
            << &c - kLinearCases << ", " << count << " rows from " << first;
      }
      if (IsCuda(GetParam())) continue;
      EXPECT_TRUE(SameBits(RunLinear(*MakeCpu(3), c, stored, 0, 40), whole))
          << "another instruction set or number of threads, " << &c - kLinearCases;
    }
  }
}

// The two products of a gated MLP, into one array.
TEST_P(FeaturesTest, MultiplyMayBeTheOutput) {
  if (!Supports(Feature::kGatedMlp)) return;
  const std::vector<float> x_values = RandomFloats(5 * 64, 1);
  const auto gate = Pack(*backend_, RandomFloats(48 * 64, 2, 0.1f), 48, 64, DType::kF32);
  const auto up = Pack(*backend_, RandomFloats(48 * 64, 3, 0.1f), 48, 64, DType::kF32);
  Floats x(*backend_, x_values), both(*backend_, std::vector<float>(5 * 48));
  Floats gate_out(*backend_, std::vector<float>(5 * 48));
  Floats up_out(*backend_, std::vector<float>(5 * 48));
  LinearArgs args = {.num_rows = 5,
                     .x = x.Address(),
                     .norm = {},
                     .weight = gate.get(),
                     .activation = Activation::kGeluTanh,
                     .out = both.Address()};
  backend_->Linear(args);
  args.out = gate_out.Address();
  backend_->Linear(args);
  args.weight = up.get();
  args.activation = Activation::kNone;
  args.out = up_out.Address();
  backend_->Linear(args);
  args.multiply = args.out = both.Address();
  backend_->Linear(args);
  ASSERT_TRUE(backend_->Synchronize().ok());
  std::vector<double> want;
  const std::vector<float> g = gate_out.Values(), u = up_out.Values();
  for (size_t i = 0; i < g.size(); ++i) want.push_back(double{g[i]} * double{u[i]});
  EXPECT_TRUE(AllClose(both.Values(), want, std::vector(want.size(), 1e-5)));
}

TEST_P(FeaturesTest, NormMatchesTheReference) {
  if (!Supports(Feature::kEmbeddingNorm)) return;
  for (const int size : {1, 7, 16, 100, 768}) {
    for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      for (const bool has_weight : {false, true}) {
        for (const bool has_residual : {false, true}) {
          const auto run = [&](Backend& backend) {
            Floats x(backend, RandomFloats(size_t(5 * size), 1, 3.0f));
            Floats weight(backend, RandomFloats(size_t(size), 2));
            Floats bias(backend, RandomFloats(size_t(size), 3));
            Floats out(backend, RandomFloats(size_t(5 * size), 4));
            backend.Norm({.num_rows = 5,
                          .size = size,
                          .x = x.Address(),
                          .norm = {.kind = kind,
                                   .weight = has_weight ? weight.Address() : nullptr,
                                   .bias = has_weight ? bias.Address() : nullptr},
                          .scale = has_residual ? 0.3f : 1.0f,
                          .residual = has_residual ? out.Address() : nullptr,
                          .out = out.Address()});
            EXPECT_TRUE(backend.Synchronize().ok());
            return out.Values();
          };
          const std::vector<float> want = run(*reference_), got = run(*backend_);
          std::vector<double> bound;
          for (const float value : want) bound.push_back(1e-6 * (3 + std::fabs(double{value})));
          EXPECT_TRUE(AllClose(got, {want.begin(), want.end()}, bound)) << size;
          if (GetParam() != "reference" && !IsCuda(GetParam())) {
            EXPECT_TRUE(SameBits(run(*MakeCpu(2)), got)) << "another instruction set, " << size;
          }
        }
      }
    }
  }
}

TEST_P(FeaturesTest, NormInPlace) {
  if (!Supports(Feature::kEmbeddingNorm)) return;
  const std::vector<float> values = RandomFloats(3 * 96, 1);
  Floats x(*backend_, values), out(*backend_, values), ones(*backend_, std::vector(96, 1.0f));
  Floats zeros(*backend_, std::vector(96, 0.0f));
  const NormView norm = {
      .kind = NormKind::kRmsNorm, .weight = ones.Address(), .bias = zeros.Address()};
  backend_->Norm({.num_rows = 3, .size = 96, .x = x.Address(), .norm = norm, .out = out.Address()});
  backend_->Norm({.num_rows = 3, .size = 96, .x = x.Address(), .norm = norm, .out = x.Address()});
  ASSERT_TRUE(backend_->Synchronize().ok());
  EXPECT_TRUE(SameBits(x.Values(), out.Values()));
}

TEST_P(FeaturesTest, SoftcapOfLogits) {
  if (!Supports(Feature::kSoftcap)) return;
  std::vector<float> x;
  for (int i = -400; i <= 400; ++i) x.push_back(float(i) * 0.31f);
  std::vector<int32_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto weight = Pack(*backend_, {1.0f}, 1, 1, DType::kF32);
  Floats in(*backend_, x), out(*backend_, std::vector<float>(x.size()));
  for (const float cap : {0.5f, 15.0f, 30.0f, 1e6f}) {
    backend_->Logits({.x = in.Address(),
                      .row_ids = ids,
                      .norm = {},
                      .weight = weight.get(),
                      .softcap = cap,
                      .logits = out.Address()});
    ASSERT_TRUE(backend_->Synchronize().ok());
    const std::vector<float> got = out.Values();
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = double{cap} * std::tanh(double{x[i]} / double{cap});
      EXPECT_NEAR(double{got[i]}, want, 1e-6 * std::fabs(want)) << cap << " of " << x[i];
    }
  }
}

// Ids from num_ids on are never drawn, whatever their logits; they count in log-probabilities.
TEST_P(FeaturesTest, PaddedIdsAreNeverDrawn) {
  if (!Supports(Feature::kPaddedVocab)) return;
  constexpr int kVocab = 70, kNumIds = 65;
  std::vector<float> row = RandomFloats(kVocab, 1, 0.1f);
  row[3] = 1;
  for (int id = kNumIds; id < kVocab; ++id) row[size_t(id)] = 5;
  std::vector<SamplingParams> params = {{.temperature = 0},
                                        {.temperature = 1},
                                        {.temperature = 1, .top_k = 3},
                                        {.top_p = 0.5f},
                                        {.repetition_penalty = 1.5f},
                                        {.logit_bias = {{66, 50.0f}}},
                                        {.temperature = 0, .allowed_ids = {3, 7, 69}},
                                        {.temperature = 0, .banned_ids = {3, 68}}};
  const std::vector<TokenCount> counts = {{.id = 67, .num_in_output = 1}, {.id = 3}};
  std::vector<SampleRequest> requests;
  for (const SamplingParams& p : params) {
    for (int position = 0; position < 20; ++position) {
      requests.push_back({.params = &p, .counts = counts, .position = position, .num_logprobs = 1});
    }
  }
  requests.push_back({.target = 66, .counts = {}, .num_logprobs = 0});
  std::vector<float> logits;
  for (size_t i = 0; i < requests.size(); ++i) logits.insert(logits.end(), row.begin(), row.end());
  const auto run = [&](Backend& backend) {
    Floats values(backend, logits);
    std::vector<SampleResult> results(requests.size());
    backend.Sample({.logits = values.Address(),
                    .vocab = kVocab,
                    .num_ids = kNumIds,
                    .rows = requests,
                    .out = results});
    EXPECT_TRUE(backend.Synchronize().ok());
    return results;
  };
  const std::vector<SampleResult> want = run(*reference_), got = run(*backend_);
  double sum = 0;
  for (const float x : row) sum += std::exp(double{x});
  for (size_t i = 0; i + 1 < requests.size(); ++i) {
    EXPECT_EQ(got[i].id, want[i].id) << i;
    EXPECT_LT(got[i].id, kNumIds) << i;
    EXPECT_NEAR(double{got[i].logprob}, double{row[size_t(got[i].id)]} - std::log(sum), 1e-5);
    EXPECT_GE(got[i].top[0].id, kNumIds) << "the best of the raw distribution";
  }
  EXPECT_EQ(got[0].id, 3);
  EXPECT_EQ(got.back().id, 66) << "a given id may be padding";
}

// An error names the backend, the field, its value and what the backend computes.
TEST_P(FeaturesTest, RefusalsNameFieldAndValue) {
  for (const FeatureInfo& info : kFeatures) {
    const absl::Status status = CheckFeatures(*backend_, {{info.feature}});
    EXPECT_EQ(status.ok(), Supports(info.feature));
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                ::testing::AllOf(::testing::HasSubstr(std::string(info.field)),
                                 ::testing::HasSubstr(std::string(info.value)),
                                 ::testing::HasSubstr(std::string(backend_->Name()))));
  }
}

}  // namespace
}  // namespace lssar

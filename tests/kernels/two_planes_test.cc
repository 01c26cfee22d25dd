// Attention over K/V of type fx16: candidates, bits and adversarial keys.
#include "kernels/two_planes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/str_cat.h"
#include "kernels/attention_math.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

// ops.h, of the largest |v| and max(1, p / 15). CUDA rounds weights to the input type of its MMAs.
constexpr double kTolerance = 2e-5;
constexpr double kCudaTolerance = 5e-4;

// Only keys very near the peak have a weight: bounds that are too narrow lose them.
constexpr double kHighPower = 1000;

// Keys for which bounds, scales or sums are at their limits.
struct Adversary {
  std::string name;
  std::function<void(SequenceVectors*)> change;
};

float* KeyAt(SequenceVectors* s, int token) { return &s->k[size_t(token) * s->RowFloats()]; }

std::vector<Adversary> Adversaries() {
  return {
      {"all equal",
       [](SequenceVectors* s) {
         for (int t = 1; t < s->num_tokens; ++t) {
           std::copy_n(KeyAt(s, 0), s->RowFloats(), KeyAt(s, t));
         }
       }},
      {"one huge coordinate",  // a coarse scale: the bound is large, the plane nearly empty
       [](SequenceVectors* s) {
         for (int t = 0; t < s->num_tokens; t += 3) {
           std::fill_n(KeyAt(s, t), s->RowFloats(), 1e-3f);
           for (int head = 0; head < s->num_heads; ++head) {
             KeyAt(s, t)[head * s->head_dim + t % s->head_dim] = t % 2 == 0 ? 1.0f : -1.0f;
           }
         }
       }},
      {"zero keys", [](SequenceVectors* s) { std::ranges::fill(s->k, 0.0f); }},
      {"some zero keys",
       [](SequenceVectors* s) {
         for (int t = 0; t < s->num_tokens; t += 2) std::fill_n(KeyAt(s, t), s->RowFloats(), 0.0f);
       }},
      {"denormal keys",
       [](SequenceVectors* s) {
         for (int t = 0; t < s->num_tokens; t += 2) {
           for (size_t i = 0; i < s->RowFloats(); ++i) KeyAt(s, t)[i] *= 1e-39f;
         }
       }},
      // Half of the steps of the low plane: the high plane's error is its bound for every element.
      {"ties at the bound",
       [](SequenceVectors* s) {
         for (int t = 0; t < s->num_tokens; ++t) {
           for (size_t i = 0; i < s->RowFloats(); ++i) {
             const float sign = s->q[i] < 0 ? -1.0f : 1.0f;
             const bool is_first = i % size_t(s->head_dim) == 0;
             KeyAt(s, t)[i] = is_first ? 127.0f / 1024 : sign * float(t % 40) / 1024 + 0.5f / 1024;
           }
         }
       }},
      // The keys of the largest scores from the high plane are half a step of every element too
      // large there; a late key, of the largest score from both planes, is half a step too small.
      {"the high plane misses the peak",
       [](SequenceVectors* s) {
         for (size_t i = 0; i < s->q.size(); ++i) {
           const int token = int(i / s->RowFloats()), dim = int(i) % s->head_dim;
           const float sign = dim % 3 == 0 ? -1.0f : 1.0f;
           s->q[i] = dim == 0 ? 0.0f : sign / std::sqrt(float(s->head_dim - 1));
           const int steps = token % 16 == 3 ? (sign < 0 ? 641 : 640)
                             : token == 249  ? (dim % 10 == 1 ? 895 : 639)
                                             : 0;
           s->k[i] = dim == 0 ? 1.0f : sign * float(steps) / float(kMaxFixed);
         }
       }},
      {"zero queries", [](SequenceVectors* s) { std::ranges::fill(s->q, 0.0f); }},
      {"one huge coordinate of q",
       [](SequenceVectors* s) {
         for (size_t i = 0; i < s->q.size(); ++i) s->q[i] = i % 16 == 3 ? 0.999f : 1e-4f;
       }},
  };
}

// Rows [first, num_tokens) of one sequence, in one call.
std::vector<float> Tail(Backend& backend, const AttentionSpec& spec, const SequenceVectors& s,
                        int first, int page_size = 64) {
  const PagedKv kv(backend, {&s}, page_size, DType::kFx16);
  return Attend(backend, spec, {&s}, kv, {{.first = first, .count = s.num_tokens - first}});
}

// The same, one row a call.
std::vector<float> DecodedTail(Backend& backend, const AttentionSpec& spec,
                               const SequenceVectors& s, int first) {
  const PagedKv kv(backend, {&s}, 64, DType::kFx16);
  std::vector<float> all;
  for (int row = first; row < s.num_tokens; ++row) {
    const std::vector<float> out = Attend(backend, spec, {&s}, kv, {{.first = row, .count = 1}});
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

class TwoPlanesTest : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> reference_ = *MakeBackend({.name = "reference"});
  std::unique_ptr<Backend> backend_ =
      IsCuda(GetParam()) ? MakeNamed(GetParam()) : MakeCpu(1, GetParam());
  // Another backend with the same bits; null: there is none.
  std::unique_ptr<Backend> twin_ = GetParam() == "CUDA_EMULATED" ? MakeEmulatedBackend(80)
                                   : !IsCuda(GetParam())         ? MakeCpu(1, "AVX2")
                                                                 : nullptr;

  // True if the backend computes heads of this size. Only CUDA may refuse one.
  bool Supports(int head_dim) const {
    KvLayout layout{.num_layers = 1, .head_dim = head_dim, .dtype = DType::kFx16};
    const bool is_ok = backend_->FitLayout(layout).ok();
    EXPECT_TRUE(is_ok || IsCuda(GetParam())) << head_dim;
    return is_ok;
  }

  void Check(const SequenceVectors& s, const AttentionSpec& spec, int first) {
    const std::vector<int64_t> shape{s.num_tokens - first, s.num_heads, s.head_dim};
    const std::vector<float> actual = Tail(*backend_, spec, s, first);
    const double tolerance = IsCuda(GetParam()) ? kCudaTolerance : kTolerance;
    EXPECT_TRUE(AllNear(actual, Tail(*reference_, spec, s, first), shape,
                        tolerance * std::max(1.0, spec.p / 15) * LargestValue(s)));
    EXPECT_TRUE(SameBits(DecodedTail(*backend_, spec, s, first), actual, shape)) << "decode";
    if (twin_ != nullptr) {
      EXPECT_TRUE(SameBits(Tail(*twin_, spec, s, first), actual, shape)) << twin_->Describe();
      EXPECT_TRUE(SameBits(DecodedTail(*twin_, spec, s, first), actual, shape))
          << "decode, " << twin_->Describe();
    }
  }
};

TEST_P(TwoPlanesTest, LongRows) {
  for (const Content content :
       {Content::kRandom, Content::kTopical, Content::kNearlyEqualK, Content::kZeroQ}) {
    for (const double p : {15.0, 3.0, 1.0, kHighPower}) {
      SCOPED_TRACE(StrCat("content ", int(content), ", p ", p));
      Check(SequenceVectors(kShortRowKeys + 300, 1, 64, 21, content), {.p = p},
            kShortRowKeys + 293);
    }
  }
  Check(SequenceVectors(2300, 1, 32, 22, Content::kTopical), {}, 2297);  // two splits
}

TEST_P(TwoPlanesTest, RowsAroundTheLengthOfShortRows) {
  const SequenceVectors s(kShortRowKeys + 3, 2, 32, 23, Content::kTopical);
  Check(s, {}, kShortRowKeys - 3);
}

TEST_P(TwoPlanesTest, HeadDimensions) {
  for (const int head_dim : {4, 8, 20, 32, 64, 80, 128, 512}) {
    SCOPED_TRACE(head_dim);
    if (!Supports(head_dim)) continue;
    Check(SequenceVectors(300, 1, head_dim, 24, Content::kTopical), {}, 297);
  }
}

// The integers of a dot product at their limits: every product has the same sign.
TEST_P(TwoPlanesTest, TheLargestDotProductsDoNotOverflow) {
  const int head_dim = Supports(kMaxFixedHeadDim) ? kMaxFixedHeadDim : 128;
  SequenceVectors s(300, 1, head_dim, 25, Content::kRandom);
  const float unit = 1 / std::sqrt(float(head_dim));
  std::ranges::fill(s.q, unit);
  for (int t = 0; t < s.num_tokens; ++t) {
    std::fill_n(KeyAt(&s, t), s.head_dim, t % 7 == 0 ? unit : -unit);
  }
  Check(s, {}, 295);
}

TEST_P(TwoPlanesTest, AdversarialKeys) {
  for (const Adversary& adversary : Adversaries()) {
    SCOPED_TRACE(adversary.name);
    SequenceVectors s(kShortRowKeys + 60, 2, 32, 26, Content::kTopical);
    adversary.change(&s);
    Check(s, {}, kShortRowKeys + 57);
    Check(s, {.p = kHighPower}, kShortRowKeys + 57);
    Check(s, {}, 5);
  }
}

TEST_P(TwoPlanesTest, NanReachesTheOutputOfItsRowsAlone) {
  SequenceVectors s(kShortRowKeys + 20, 1, 32, 27, Content::kTopical);
  KeyAt(&s, kShortRowKeys + 10)[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> out = Tail(*backend_, {}, s, kShortRowKeys);
  for (int row = 0; row < 20; ++row) {
    EXPECT_EQ(std::isnan(out[size_t(row) * 32]), row >= 10) << row;
  }
}

// Threads, or the blocks of a cluster, share the splits of a long row.
TEST_P(TwoPlanesTest, Threads) {
  const SequenceVectors s(5000, 1, 32, 28, Content::kTopical);
  const std::vector<float> expected = Tail(*backend_, {}, s, 4999);
  if (IsCuda(GetParam())) {
    if (twin_ == nullptr) return;
    EXPECT_TRUE(SameBits(Tail(*twin_, {}, s, 4999), expected, {1, 32}));
    return;
  }
  for (const int num_threads : {2, 5}) {
    const std::unique_ptr<Backend> twin = MakeCpu(num_threads, GetParam());
    EXPECT_TRUE(SameBits(Tail(*twin, {}, s, 4999), expected, {1, 32})) << num_threads;
  }
}

TEST_P(TwoPlanesTest, PageSizesAndChunks) {
  const SequenceVectors s(1000, 2, 32, 29, Content::kTopical);
  const std::vector<float> expected = Tail(*backend_, {}, s, 900);
  for (const int page_size : {16, 32, 128, 256}) {
    EXPECT_TRUE(SameBits(Tail(*backend_, {}, s, 900, page_size), expected, {100, 2, 32}));
  }
  const PagedKv kv(*backend_, {&s}, 64, DType::kFx16);
  std::vector<float> chunked;
  for (int row = 900; row < 1000; row += 25) {
    const std::vector<float> out = Attend(
        *backend_, {}, {&s}, kv, {{.first = row, .count = 7}, {.first = row + 7, .count = 18}});
    chunked.insert(chunked.end(), out.begin(), out.end());
  }
  EXPECT_TRUE(SameBits(chunked, expected, {100, 2, 32}));
}

// No key whose weight is not negligible is left out: the number of keys that a row weighs is that
// of a count in double over all keys. LSSAR_TWO_PLANES_ROWS sets the number of rows; 1,000,000 of
// them take a few minutes.
TEST(TwoPlanesCandidatesTest, NoneIsMissing) {
  constexpr int kHeads = 2, kDim = 8, kTokens = kShortRowKeys + 128;
  const char* wanted = std::getenv("LSSAR_TWO_PLANES_ROWS");
  const int num_rows = wanted != nullptr ? std::atoi(wanted) : 10'000;
  const std::unique_ptr<Backend> backend = MakeCpu(1);
  std::mt19937 random(30);
  int64_t num_checked = 0, num_weighed = 0;
  const std::vector<Adversary> adversaries = Adversaries();
  for (uint32_t seed = 0; num_checked < num_rows; ++seed) {
    const double p = std::vector<double>{15, 3, 1, 50}[seed % 4];
    SequenceVectors s(kTokens, kHeads, kDim, seed + 1,
                      seed % 3 == 0 ? Content::kRandom : Content::kTopical);
    // Keys of one in three sequences, at random: duller, or with one large coordinate.
    for (size_t i = 0; seed % 3 == 1 && i < s.k.size(); ++i) {
      if (random() % 8 == 0) s.k[i] *= random() % 2 == 0 ? 0.01f : 20.0f;
    }
    const PagedKv paged(*backend, {&s}, 64, DType::kFx16);
    const PagedKv* const kv = &paged;
    const AttentionSpec spec{.p = p};
    for (int row = kShortRowKeys; row < kTokens; ++row) {
      std::vector<AttentionStats> stats;
      Attend(*backend, spec, {&s}, *kv, {{.first = row, .count = 1}}, &stats);
      int64_t least = 0, most = 0;
      for (int head = 0; head < kHeads; ++head) {
        int16_t q[kDim];
        const double q_scale = double{
            QuantizeFixed({&s.q[size_t(row) * s.RowFloats() + size_t(head) * kDim], kDim}, q)};
        const double scale = ScaleOf(spec, kDim, row + 1);
        double high_sum = 0, sum = 0, low_peak = 0;
        std::vector<double> exact, both;  // phi from all of q, and with q's high byte
        double norm = 0;
        for (const int16_t x : q) norm += std::abs(double((x + 128) >> 8));
        for (int j = 0; j <= row; ++j) {
          const KvRow key = const_cast<PagedKv*>(kv)->Key(0, j, head);
          int64_t high = 0, low = 0, high_low = 0;
          for (int dim = 0; dim < kDim; ++dim) {
            high += int64_t{q[dim]} * key.LoadHigh(dim);
            low += int64_t{q[dim]} * key.LoadLow(dim);
            high_low += int64_t{(q[dim] + 128) >> 8} * key.LoadLow(dim);
          }
          const double unit = scale * q_scale * double{*key.scale};
          high_sum += PhiOf(Phi::kSoftplus, unit * 256 * double(high));
          exact.push_back(PhiOf(Phi::kSoftplus, unit * double(256 * high + low)));
          both.push_back(PhiOf(Phi::kSoftplus, unit * 256 * double(high + high_low)));
          sum += exact.back();
          low_peak =
              std::max(low_peak, PhiOf(Phi::kSoftplus, unit * 256 * (double(high) - 128 * norm)));
        }
        const double num_keys = row + 1;
        const double x_low = num_keys * low_peak / high_sum - 1;
        const bool is_flat = x_low < FlatFixedPeak(p, row + 1);
        const std::vector<double>& phi = is_flat ? exact : both;
        const double largest = *std::ranges::max_element(phi);
        const double gain = num_keys / (is_flat ? sum : high_sum);
        const double peak = gain * largest - 1;
        for (const double phi_j : phi) {
          const double power = std::pow(std::max(0.0, gain * phi_j - 1) / peak, p);
          if (power > double{kNegligibleWeight} * (1 + 1e-3)) ++least;
          if (power > double{kNegligibleWeight} * (1 - 1e-3)) ++most;
        }
        num_weighed += most;
        ++num_checked;
      }
      ASSERT_GE(stats[0].num_value_rows_read, least) << "seed " << seed << ", row " << row;
      ASSERT_LE(stats[0].num_value_rows_read, most) << "seed " << seed << ", row " << row;
    }
  }
  EXPECT_GT(num_weighed, num_checked);
}

TEST(TwoPlanesKindsTest, OnlyKindsOfUnitKeysThatAreReweighted) {
  for (const AttentionSpec& spec : FamilySpecs()) {
    const absl::Status status = CheckKvType(spec, DType::kFx16);
    EXPECT_EQ(status.ok(), spec.kind == AttentionKind::kLssar) << NameOfSpec(spec);
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(StrCat("kind ", NameOf(spec.kind))));
      EXPECT_THAT(std::string(status.message()), HasSubstr("fx16"));
    }
    for (const DType other : {DType::kF32, DType::kF16, DType::kI8}) {
      EXPECT_TRUE(CheckKvType(spec, other).ok());
    }
  }
}

TEST(TwoPlanesKindsTest, HeadDimensionsThatAreRefused) {
  const std::unique_ptr<Backend> backend = MakeCpu(1);
  for (const int head_dim : {2, 6, 66, 516}) {
    KvLayout layout{.num_layers = 1, .head_dim = head_dim, .dtype = DType::kFx16};
    const absl::Status status = backend->FitLayout(layout);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(StrCat("it is ", head_dim)));
  }
}

std::vector<std::string> AllButReference() {
  std::vector<std::string> names = AttentionBackendNames();
  std::erase(names, "reference");
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, TwoPlanesTest, testing::ValuesIn(AllButReference()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace lssar

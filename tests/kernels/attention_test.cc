// Attention against its definition and against values worked out by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention_math.h"
#include "kernels/two_planes.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/support/compare.h"

namespace lssar {
namespace {

// Share of max |v| up to p = 15 (ops.h). CUDA rounds weights to the input type of its GEMMs.
constexpr double kTolerance = 2e-5;
constexpr double kCudaTolerance = 5e-4;
// Where prompts on CUDA round q to fp16, as keys are. Seen: 2.0e-3, in rows of few keys.
constexpr double kRoundedQueryTolerance = 2.5e-3;
constexpr const char* kServedCuda = "CUDA_EMULATED_LIBRARY";

std::string NameOfCase(Content content) {
  switch (content) {
    case Content::kRandom: return "random";
    case Content::kTopical: return "topical";
    case Content::kZeroQ: return "zero q";
    case Content::kZeroK: return "zero k";
    case Content::kEqualK: return "equal k";
    case Content::kNearlyEqualK: return "nearly equal k";
  }
  return "?";
}

// Runs on every backend of this machine: reference, cpu with each instruction set, emulated CUDA.
class AttentionTest : public testing::TestWithParam<std::string> {
 protected:
  AttentionTest()
      : reference_(*MakeBackend({.name = "reference"})), backend_(MakeNamed(GetParam())) {}

  double Tolerance() const { return IsCuda(GetParam()) ? kCudaTolerance : kTolerance; }
  // The same for the rows of a prompt.
  double PromptTolerance(const AttentionSpec& spec, int head_dim, DType dtype) const {
    const bool rounds_q = GetParam() == kServedCuda && spec.kind == AttentionKind::kLssar &&
                          spec.p >= 3 && spec.p <= 15 && spec.p == std::floor(spec.p) &&
                          (head_dim == 64 || head_dim == 128) && dtype != DType::kFx16;
    return rounds_q ? kRoundedQueryTolerance : Tolerance();
  }

  // fp32 if the backend supports such pages, else fp16.
  DType MostExact() const { return IsCuda(GetParam()) ? DType::kF16 : DType::kF32; }

  // True if the backend supports such pages. Expects UNIMPLEMENTED otherwise.
  bool Supports(DType dtype, int head_dim) {
    KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = head_dim, .dtype = dtype};
    const absl::Status status = backend_->FitLayout(layout);
    EXPECT_TRUE(status.ok() || absl::IsUnimplemented(status)) << status;
    EXPECT_TRUE(status.ok() || IsCuda(GetParam())) << status;
    return status.ok();
  }

  // Compares every row of a sequence with the reference over the same pages.
  void Check(const SequenceVectors& sequence, const AttentionSpec& spec, int page_size,
             DType dtype) {
    if (!Supports(dtype, sequence.head_dim)) return;
    const std::vector<float> expected = AttendAll(*reference_, spec, sequence, page_size, dtype);
    const std::vector<float> actual = AttendAll(*backend_, spec, sequence, page_size, dtype);
    const double tolerance = PromptTolerance(spec, sequence.head_dim, dtype) *
                             std::max(1.0, spec.p / 15) * Magnitude(sequence, expected);
    EXPECT_TRUE(AllNear(actual, expected,
                        {sequence.num_tokens, sequence.num_heads, sequence.head_dim}, tolerance))
        << "tokens " << sequence.num_tokens << ", head_dim " << sequence.head_dim << ", page "
        << page_size << ", " << NameOf(dtype) << ", " << NameOfSpec(spec);
  }

  // The last row of a sequence, as a decode step computes it.
  void CheckLast(const SequenceVectors& sequence, const AttentionSpec& spec, int page_size,
                 DType dtype) {
    const PagedKv kv(*backend_, {&sequence}, page_size, dtype);
    const PagedKv reference_kv(*reference_, {&sequence}, page_size, dtype);
    const std::vector<RowRange> last{{.first = sequence.num_tokens - 1, .count = 1}};
    const std::vector<float> expected = Attend(*reference_, spec, {&sequence}, reference_kv, last);
    EXPECT_TRUE(AllNear(Attend(*backend_, spec, {&sequence}, kv, last), expected,
                        {1, sequence.num_heads, sequence.head_dim},
                        Tolerance() * Magnitude(sequence, expected)))
        << sequence.num_tokens << ", " << NameOf(dtype) << ", " << NameOfSpec(spec);
  }

  // The largest |v|, or |out| if that is larger: some kinds have weights that do not sum to 1.
  static double Magnitude(const SequenceVectors& sequence, const std::vector<float>& out) {
    double largest = LargestValue(sequence);
    for (const float x : out) largest = std::max(largest, std::fabs(double{x}));
    return largest;
  }

  std::unique_ptr<Backend> reference_, backend_;
};

TEST_P(AttentionTest, LengthsAroundAPage) {
  for (int page_size : {16, 64, 256}) {
    for (int num_tokens : {1, 2, 3, 4, page_size - 1, page_size, page_size + 1}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
        Check(SequenceVectors(num_tokens, 2, 32, 1, Content::kTopical), {}, page_size, dtype);
      }
    }
  }
}

TEST_P(AttentionTest, HeadDimensions) {
  for (int head_dim : {8, 32, 64, 80, 96, 128, 72}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      Check(SequenceVectors(70, 1, head_dim, 2, Content::kTopical), {}, 16, dtype);
    }
  }
}

TEST_P(AttentionTest, Powers) {
  for (double p : {0.5, 1.0, 2.5, 3.0, 7.0, 8.0, 10.0, 12.0, 13.0, 15.0, 50.0, 100.0}) {
    for (Content content : {Content::kRandom, Content::kTopical}) {
      SCOPED_TRACE(NameOfCase(content));
      for (DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
        Check(SequenceVectors(130, 1, 64, 3, content), {.p = p}, 64, dtype);
      }
    }
  }
}

TEST_P(AttentionTest, PowersByHeadAndLength) {
  const AttentionSpec spec{.steps = {{.min_keys = 1, .p = {15, 1, 2.5}},
                                     {.min_keys = 40, .p = {5}},
                                     {.min_keys = 90, .p = {0.5, 15, 3}}}};
  if (!SupportsAttention(*backend_, spec)) return;
  for (const Content content : {Content::kRandom, Content::kTopical, Content::kNearlyEqualK}) {
    SCOPED_TRACE(NameOfCase(content));
    const SequenceVectors sequence(300, 3, 64, 3, content);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      Check(sequence, spec, 64, dtype);
      CheckLast(sequence, spec, 64, dtype);
    }
  }
}

// Each head of each row is that of an op with its power alone, in a prompt and in decode steps.
TEST_P(AttentionTest, ARowHasTheBitsOfItsOwnPower) {
  constexpr int kTokens = 304, kHeads = 6, kDim = 32, kFirst = 252, kCount = kTokens - kFirst;
  const std::vector<double> first = {15, 3, 15, 0.5, 100, 2.5}, last = {3, 3, 15, 1, 15, 7};
  const auto power_of = [&](int num_keys, int head) {
    return num_keys >= 300 ? last[size_t(head)] : num_keys >= 260 ? 5 : first[size_t(head)];
  };
  for (const AttentionKind kind : {AttentionKind::kLssar, AttentionKind::kSoftmaxR}) {
    const AttentionSpec spec{.kind = kind,
                             .p = 9,  // of no row
                             .steps = {{.min_keys = 1, .p = first},
                                       {.min_keys = 260, .p = {5}},
                                       {.min_keys = 300, .p = last}}};
    if (!SupportsAttention(*backend_, spec)) return;
    const SequenceVectors sequence(kTokens, kHeads, kDim, 4, Content::kTopical);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      if (dtype == DType::kFx16 && kind != AttentionKind::kLssar) continue;
      for (const int num_kv_heads : {2, kHeads}) {
        const PagedKv kv(*backend_, {&sequence}, 16, dtype, num_kv_heads);
        const std::vector<RowRange> rows{{.first = kFirst, .count = kCount}};
        std::map<double, std::vector<float>> uniform;
        std::vector<float> expected;
        for (int row = 0; row < kCount; ++row) {
          for (int head = 0; head < kHeads; ++head) {
            const double p = power_of(kFirst + row + 1, head);
            std::vector<float>& of_p = uniform[p];
            if (of_p.empty()) {
              of_p = Attend(*backend_, {.kind = kind, .p = p}, {&sequence}, kv, rows);
            }
            const auto from = of_p.begin() + (row * kHeads + head) * kDim;
            expected.insert(expected.end(), from, from + kDim);
          }
        }
        EXPECT_EQ(uniform.size(), 8u);
        EXPECT_FALSE(SameBits(uniform[3], uniform[15], {kCount, kHeads, kDim}));
        EXPECT_TRUE(SameBits(Attend(*backend_, spec, {&sequence}, kv, rows), expected,
                             {kCount, kHeads, kDim}))
            << NameOf(kind) << ", " << NameOf(dtype) << ", " << num_kv_heads << " KV heads";
        for (const int row : {0, 6, 7, 46, 47, kCount - 1}) {  // 260 and 300 keys: rows 7 and 47
          const auto from = expected.begin() + row * kHeads * kDim;
          EXPECT_TRUE(SameBits(
              Attend(*backend_, spec, {&sequence}, kv, {{.first = kFirst + row, .count = 1}}),
              std::vector<float>(from, from + kHeads * kDim), {kHeads, kDim}))
              << NameOf(dtype) << ", decode step " << row;
        }
      }
    }
  }
}

TEST_P(AttentionTest, Kinds) {
  for (const AttentionSpec& spec : FamilySpecs()) {
    if (!SupportsAttention(*backend_, spec)) continue;
    for (int num_tokens : {1, 5, 300}) {
      SequenceVectors sequence(num_tokens, 2, 64, 4, Content::kTopical);
      if (!spec.Form().is_length_scaled) sequence.LengthenQueries();
      for (DType dtype : {DType::kF16, DType::kI8}) Check(sequence, spec, 64, dtype);
    }
  }
}

TEST_P(AttentionTest, WindowsAndAlibi) {
  for (const AttentionSpec& spec : DistanceSpecs()) {
    if (!SupportsAttention(*backend_, spec)) continue;
    for (const int num_tokens : {1, 5, 20, 21, 90, 600, 2300}) {
      SequenceVectors sequence(num_tokens, 6, 32, 4, Content::kTopical);
      sequence.LengthenQueries();
      for (DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
        CheckLast(sequence, spec, 64, dtype);
        if (num_tokens <= 90) Check(sequence, spec, 16, dtype);
      }
    }
  }
}

// Rows of one block, some of which still see the key.
TEST_P(AttentionTest, ANanBeforeTheWindowStaysThere) {
  constexpr int kFirst = 40, kPoisoned = 30, kWindow = 20, kDim = 32;
  const AttentionSpec spec{.kind = AttentionKind::kSoftmax, .window = kWindow};
  if (!SupportsAttention(*backend_, spec)) return;
  const SequenceVectors sequence(70, 1, kDim, 12, Content::kZeroQ);
  const std::vector<RowRange> rows{{.first = kFirst, .count = 30}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    for (const bool in_key : {true, false}) {
      PagedKv kv(*backend_, {&sequence}, 16, dtype);
      const std::vector<float> clean = Attend(*backend_, spec, {&sequence}, kv, rows);
      std::vector<float> poisoned(kDim, 0.5f);
      poisoned[3] = std::numeric_limits<float>::quiet_NaN();
      (in_key ? kv.Key(0, kPoisoned, 0) : kv.Value(0, kPoisoned, 0)).Store(poisoned);
      const std::vector<float> out = Attend(*backend_, spec, {&sequence}, kv, rows);
      for (int row = kFirst; row < kFirst + 30; ++row) {
        const size_t at = size_t(row - kFirst) * kDim + 3;
        EXPECT_EQ(std::isnan(out[at]), row < kPoisoned + kWindow) << row;
        if (row < kPoisoned + kWindow) continue;
        EXPECT_EQ(out[at], clean[at]) << row;
      }
    }
  }
}

// A row with a window is the last row of a text that begins with the window.
TEST_P(AttentionTest, AWindowIsAShorterText) {
  const AttentionSpec windowed{.kind = AttentionKind::kSoftmax, .window = 37};
  if (!SupportsAttention(*backend_, windowed)) return;
  SequenceVectors sequence(600, 2, 32, 5, Content::kTopical);
  sequence.LengthenQueries();
  SequenceVectors tail(37, 2, 32, 5, Content::kTopical);
  for (auto member : {&SequenceVectors::q, &SequenceVectors::k, &SequenceVectors::v}) {
    const std::vector<float>& from = sequence.*member;
    std::copy(from.end() - ptrdiff_t((tail.*member).size()), from.end(), (tail.*member).begin());
  }
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF32);
  const PagedKv tail_kv(*backend_, {&tail}, 64, DType::kF32);
  EXPECT_TRUE(AllNear(Attend(*backend_, windowed, {&sequence}, kv, {{.first = 599, .count = 1}}),
                      Attend(*backend_, {.kind = AttentionKind::kSoftmax}, {&tail}, tail_kv,
                             {{.first = 36, .count = 1}}),
                      {1, 2, 32}, Tolerance() * LargestValue(sequence)));
}

// Equal scores: ALiBi alone weighs the keys, by 2^(-8 h / n) for each token of distance.
TEST_P(AttentionTest, AlibiByHand) {
  const AttentionSpec spec{.kind = AttentionKind::kSoftmax, .has_alibi = true};
  if (!SupportsAttention(*backend_, spec)) return;
  constexpr int kTokens = 70, kHeads = 8, kDim = 32;
  const SequenceVectors sequence(kTokens, kHeads, kDim, 6, Content::kZeroQ);
  const std::vector<float> out = AttendAll(*backend_, spec, sequence, 16, DType::kF32);
  for (int head = 0; head < kHeads; ++head) {
    double weights = 0, sum = 0;
    for (int key = 0; key < kTokens; ++key) {
      const double w = std::exp(-std::pow(2.0, -(head + 1)) * (kTokens - 1 - key));
      weights += w;
      sum += w * double{sequence.v[size_t((key * kHeads + head) * kDim)]};
    }
    EXPECT_NEAR(double{out[size_t(((kTokens - 1) * kHeads + head) * kDim)]}, sum / weights, 1e-5)
        << head;
  }
}

// BLOOM's 12 heads, as its authors' code lists them: 8 slopes, then every second one of 16.
TEST(AlibiSlopeTest, TwelveHeads) {
  for (int head = 0; head < 8; ++head) {
    EXPECT_DOUBLE_EQ(AlibiSlope(head, 12), std::pow(2.0, -(head + 1)));
  }
  for (int head = 8; head < 12; ++head) {
    EXPECT_DOUBLE_EQ(AlibiSlope(head, 12), std::pow(2.0, -0.5 * (2 * (head - 8) + 1)));
  }
  EXPECT_DOUBLE_EQ(AlibiSlope(15, 16), 1.0 / 256);
}

TEST(CheckAttentionSpecTest, StepsRiseAndHavePowers) {
  using Steps = std::vector<PowerStep>;
  EXPECT_TRUE(
      CheckAttentionSpec({.steps = Steps{{.min_keys = 1, .p = {3, 5}}, {.min_keys = 2, .p = {1}}}})
          .ok());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Steps& steps :
       {Steps{{.min_keys = 0, .p = {3}}}, Steps{{.min_keys = 5, .p = {}}},
        Steps{{.min_keys = 5, .p = {3, nan}}}, Steps{{.min_keys = 5, .p = {0}}},
        Steps{{.min_keys = 5, .p = {3}}, {.min_keys = 5, .p = {4}}}}) {
    EXPECT_EQ(CheckAttentionSpec({.steps = steps}).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(
      CheckAttentionSpec({.kind = AttentionKind::kLssa, .steps = Steps{{.min_keys = 5, .p = {3}}}})
          .ok());
}

TEST(CheckAttentionSpecTest, WindowsAndAlibiAreOfSoftmaxAlone) {
  EXPECT_FALSE(CheckAttentionSpec({.window = 5}).ok());
  EXPECT_FALSE(CheckAttentionSpec({.kind = AttentionKind::kLssa, .has_alibi = true}).ok());
  EXPECT_FALSE(CheckAttentionSpec({.kind = AttentionKind::kSoftmax, .window = -1}).ok());
  EXPECT_TRUE(CheckAttentionSpec({.kind = AttentionKind::kSoftmax, .window = 5}).ok());
}

// Every phi is zero: the row is zero, not 0/0.
TEST_P(AttentionTest, RowsOfZerosAreZero) {
  for (const Phi phi : {Phi::kRelu, Phi::kRelu2, Phi::kRelu6}) {
    const AttentionSpec spec{.kind = AttentionKind::kPhi, .phi = phi};
    if (!SupportsAttention(*backend_, spec)) continue;
    SequenceVectors sequence(70, 1, 64, 5, Content::kEqualK);
    for (size_t i = 0; i < sequence.q.size(); ++i) sequence.q[i] = -sequence.k[i];
    for (const float x : AttendAll(*backend_, spec, sequence, 16, MostExact())) EXPECT_EQ(x, 0.0f);
  }
}

// Kinds with a stage 2.
const AttentionSpec kReweighted[] = {
    {}, {.kind = AttentionKind::kSoftmaxR}, {.kind = AttentionKind::kSigmoidR}};

TEST_P(AttentionTest, RowsWithoutAPeakKeepStageOne) {
  for (Content content : {Content::kZeroQ, Content::kZeroK, Content::kEqualK}) {
    SCOPED_TRACE(NameOfCase(content));
    const SequenceVectors sequence(300, 1, 64, 5, content);
    // All scores are equal, so the weights are, and a row is the mean of the values so far.
    std::vector<float> means;
    std::vector<double> sums(64);
    for (int row = 0; row < sequence.num_tokens; ++row) {
      for (size_t i = 0; i < 64; ++i) {
        sums[i] += double{sequence.v[size_t(row) * 64 + i]};
        means.push_back(static_cast<float>(sums[i] / (row + 1)));
      }
    }
    for (const AttentionSpec& spec : kReweighted) {
      if (!SupportsAttention(*backend_, spec)) continue;
      Check(sequence, spec, 64, DType::kF16);
      Check(sequence, spec, 64, DType::kI8);
      const std::vector<float> actual = AttendAll(*backend_, spec, sequence, 64, MostExact());
      EXPECT_TRUE(AllNear(actual, means, {300, 64}, Tolerance() * LargestValue(sequence)))
          << NameOfSpec(spec);
    }
  }
}

// Scores where sigmoid is e^s, down to less than fp32's, and double's, smallest number: divided by
// its sum it is softmax.
TEST_P(AttentionTest, SigmoidsOfVeryNegativeScores) {
  constexpr size_t kDim = 64;
  constexpr std::pair<AttentionKind, AttentionKind> kKinds[] = {
      {AttentionKind::kSigmoidNL1, AttentionKind::kSoftmax},
      {AttentionKind::kSigmoidR, AttentionKind::kSoftmaxR}};
  for (const float q : {-5.5f, -12.0f, -15.0f, -125.0f}) {  // scores about 8 q
    for (const int num_tokens : {2, 300}) {
      SequenceVectors sequence(num_tokens, 1, int(kDim), 5, Content::kRandom);
      for (float& x : sequence.k) x = 1 + 0.2f / kDim * x;
      std::ranges::fill(sequence.q, q);
      for (const auto& [sigmoid, softmax] : kKinds) {
        const AttentionSpec spec{.kind = sigmoid, .p = 3};
        if (!SupportsAttention(*backend_, spec)) continue;
        SCOPED_TRACE(testing::Message() << NameOfSpec(spec) << ", q " << q);
        Check(sequence, spec, 64, DType::kF16);
        CheckLast(sequence, spec, 64, DType::kF16);
        const std::vector<float> expected =
            AttendAll(*reference_, {.kind = softmax, .p = 3}, sequence, 64, DType::kF16);
        EXPECT_TRUE(AllNear(AttendAll(*backend_, spec, sequence, 64, DType::kF16), expected,
                            {num_tokens, int(kDim)}, kTolerance * LargestValue(sequence)));
      }
    }
  }
}

// Here x is a small difference of numbers near 1: the power would amplify its fp32 rounding error.
TEST_P(AttentionTest, RowsNearlyWithoutAPeak) {
  for (AttentionSpec spec : kReweighted) {
    if (!SupportsAttention(*backend_, spec)) continue;
    for (double p : {1.0, 3.0, 15.0}) {
      spec.p = p;
      Check(SequenceVectors(600, 1, 64, 6, Content::kNearlyEqualK), spec, 64, MostExact());
      Check(SequenceVectors(600, 1, 64, 6, Content::kNearlyEqualK), spec, 64, DType::kI8);
    }
    // The same in a decode step of several splits.
    CheckLast(SequenceVectors(4200, 1, 32, 6, Content::kNearlyEqualK), spec, 16, MostExact());
  }
}

// Keys a hair below the mean have no weight, however small p is: u^p nearly is a step at u = 0.
TEST_P(AttentionTest, SmallPowersLeaveOutTheKeysBelowTheMean) {
  constexpr int kTokens = 8192, kDim = 64, kLargest = 5000;
  for (AttentionSpec spec : kReweighted) {
    if (!SupportsAttention(*backend_, spec)) continue;
    // Some 4% over the others' phi, in each kind: x of the others is about -5e-6.
    const float largest = spec.kind == AttentionKind::kLssar ? 0.0016f : 0.3f;
    SequenceVectors sequence(kTokens, 1, kDim, 1, Content::kRandom);
    for (int token = 0; token < kTokens; ++token) {
      float* const key = &sequence.k[size_t(token) * kDim];
      std::fill_n(key, kDim, 0.0f);
      key[0] = token == kLargest ? largest : 0.0f;
      key[1] = std::sqrt(1 - key[0] * key[0]);
      sequence.v[size_t(token) * kDim] = token == kLargest ? 1.0f : -1.0f;
    }
    float* const query = &sequence.q[size_t(kTokens - 1) * kDim];
    std::fill_n(query, kDim, 0.0f);
    query[0] = 1;
    for (const double p : {1e-30, 0.01, 0.1, 0.2, 0.45}) {
      spec.p = p;
      for (const DType dtype : {MostExact(), DType::kI8, DType::kFx16}) {
        if (CheckKvType(spec, dtype).ok()) CheckLast(sequence, spec, 64, dtype);
      }
    }
  }
}

// A sequence whose last row has one key of x = peak among keys that are one and the same, of x a
// little below 0. The former has the value 1, the others -1.
SequenceVectors OneAmongEqualKeys(int num_tokens, double peak, uint32_t seed) {
  constexpr int kDim = 64;
  SequenceVectors sequence(num_tokens, 1, kDim, seed, Content::kRandom);
  const float* const q = &sequence.q[size_t(num_tokens - 1) * kDim];
  // A unit vector whose product with q is `cosine`, from the random key `token`.
  const auto vector = [&, random = sequence.k](int token, double cosine) {
    const float* const from = &random[size_t(token) * kDim];
    double dot = 0, norm = 0;
    for (int dim = 0; dim < kDim; ++dim) dot += double{q[dim]} * double{from[dim]};
    std::array<double, kDim> beside;  // orthogonal to q
    for (int dim = 0; dim < kDim; ++dim) {
      beside[size_t(dim)] = double{from[dim]} - dot * double{q[dim]};
      norm += beside[size_t(dim)] * beside[size_t(dim)];
    }
    const double share = std::sqrt((1 - cosine * cosine) / norm);
    std::array<float, kDim> unit;
    for (int dim = 0; dim < kDim; ++dim) {
      unit[size_t(dim)] = float(cosine * double{q[dim]} + share * beside[size_t(dim)]);
    }
    return unit;
  };
  const double scale = std::log(double{kDim}) * std::log(double(num_tokens));
  // The others' phi is ln 2.
  const double cosine = std::log(std::expm1(std::log(2.0) * (1 + peak))) / scale;
  const std::array<float, kDim> others = vector(0, 0), largest = vector(1, cosine);
  for (int token = 0; token < num_tokens; ++token) {
    const bool is_largest = token == num_tokens / 3;
    std::ranges::copy(is_largest ? largest : others, &sequence.k[size_t(token) * kDim]);
    std::fill_n(&sequence.v[size_t(token) * kDim], kDim, is_largest ? 1.0f : -1.0f);
  }
  return sequence;
}

// An error that equal keys have in common would give each a weight. Against the function over exact
// keys.
TEST_P(AttentionTest, OneKeyAmongEqualOnes) {
  constexpr double kFp16Tolerance = 5e-4;
  struct Case {
    int num_tokens, num_rows, num_seeds;  // rows: 1, as a decode step; else the last of a prompt
  };
  for (const auto& [num_tokens, num_rows, num_seeds] :
       {Case{600, 1, 3}, Case{4096, 1, 2}, Case{600, 4, 2}}) {
    for (const double peak : {0.5, 1.0, 5.0}) {
      for (int seed = 1; seed <= num_seeds; ++seed) {
        const SequenceVectors sequence = OneAmongEqualKeys(num_tokens, peak, uint32_t(seed));
        const std::vector<RowRange> rows{{.first = num_tokens - num_rows, .count = num_rows}};
        const PagedKv exact(*reference_, {&sequence}, 64, DType::kF32);
        for (const double p : {0.4, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 15.0}) {
          const AttentionSpec spec{.p = p};
          const float expected = Attend(*reference_, spec, {&sequence}, exact, rows).back();
          for (const DType dtype : {MostExact(), DType::kFx16}) {
            const PagedKv kv(*backend_, {&sequence}, 64, dtype);
            const float actual = Attend(*backend_, spec, {&sequence}, kv, rows).back();
            EXPECT_NEAR(actual, expected, kFp16Tolerance)
                << num_tokens << " keys, " << num_rows << " rows, x_m " << peak << ", p " << p
                << ", " << NameOf(dtype) << ", seed " << seed;
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, LongRowsOfADecodeStep) {
  for (int num_tokens : {2047, 2048, 2049, 6000}) {
    for (const AttentionKind kind : {AttentionKind::kLssar, AttentionKind::kSoftmax,
                                     AttentionKind::kSoftmaxR, AttentionKind::kSigmoidR}) {
      const AttentionSpec spec{.kind = kind};
      if (!SupportsAttention(*backend_, spec)) continue;
      SequenceVectors sequence(num_tokens, 1, 64, 7, Content::kTopical);
      if (!spec.Form().is_length_scaled) sequence.LengthenQueries();
      for (DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
        if (CheckKvType(spec, dtype).ok()) CheckLast(sequence, spec, 64, dtype);
      }
    }
  }
}

// Positions, pages and candidates beyond 2^16 and 2^17.
TEST_P(AttentionTest, ContextsOf128K) {
  const SequenceVectors sequence((1 << 17) + 1, 1, 16, 7, Content::kTopical);
  for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
    if (Supports(dtype, sequence.head_dim)) CheckLast(sequence, {}, 64, dtype);
  }
}

TEST_P(AttentionTest, RaggedBatch) {
  const SequenceVectors a(40, 2, 64, 8, Content::kTopical);
  const SequenceVectors b(2100, 2, 64, 9, Content::kTopical);
  const SequenceVectors c(1, 2, 64, 10, Content::kRandom);
  const std::vector<const SequenceVectors*> sequences{&a, &b, &c};
  const PagedKv kv(*backend_, sequences, 16, DType::kF16);
  const PagedKv reference_kv(*reference_, sequences, 16, DType::kF16);
  const std::vector<RowRange> ranges{{.sequence = 0, .first = 33, .count = 7},
                                     {.sequence = 1, .first = 2099, .count = 1},
                                     {.sequence = 2, .first = 0, .count = 1},
                                     {.sequence = 1, .first = 2040, .count = 37}};
  EXPECT_TRUE(AllNear(Attend(*backend_, {}, sequences, kv, ranges),
                      Attend(*reference_, {}, sequences, reference_kv, ranges), {46, 2, 64},
                      Tolerance() * LargestValue(b)));
}

TEST_P(AttentionTest, Fp16PagesAreCloseToFp32Pages) {
  const SequenceVectors sequence(200, 2, 64, 11, Content::kTopical);
  const std::vector<float> exact = AttendAll(*reference_, {}, sequence, 64, DType::kF32);
  const std::vector<float> actual = AttendAll(*backend_, {}, sequence, 64, DType::kF16);
  EXPECT_TRUE(AllNear(actual, exact, {200, 2, 64}, 1e-3 * LargestValue(sequence)));
}

// Rows of more than 64 keys, some of them near the query, have no near ties. With p = 1 and p = 3
// all rows are compared.
TEST_P(AttentionTest, Int8PagesAreCloseToFp32Pages) {
  constexpr int kTokens = 200, kFirst = 64;
  const SequenceVectors sequence(kTokens, 2, 64, 11, Content::kTopical);
  const PagedKv exact_kv(*reference_, {&sequence}, 64, DType::kF32);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kI8);
  for (const auto& [spec, first] :
       {std::pair<AttentionSpec, int>{{.p = 15}, kFirst}, {{.p = 1}, 0}, {{.p = 3}, 0}}) {
    const std::vector<RowRange> rows{{.first = first, .count = kTokens - first}};
    EXPECT_TRUE(AllNear(Attend(*backend_, spec, {&sequence}, kv, rows),
                        Attend(*reference_, spec, {&sequence}, exact_kv, rows),
                        {kTokens - first, 2, 64}, 1e-2 * LargestValue(sequence)))
        << "p " << spec.p;
  }
}

// A NaN past a row's N must not reach its result. A NaN inside must.
TEST_P(AttentionTest, NanReachesOnlyRowsThatAttendToIt) {
  constexpr int kTokens = 90, kPoisoned = 70, kDim = 32;
  for (const DType dtype : {MostExact(), DType::kI8, DType::kFx16}) {
    for (const bool in_key : {true, false}) {
      // Not the kinds that give equal keys zero weight: they do not read the NaN value.
      for (AttentionKind kind :
           {AttentionKind::kLssar, AttentionKind::kLssa, AttentionKind::kSoftmax,
            AttentionKind::kSoftmaxR, AttentionKind::kSigmoidN, AttentionKind::kSigmoidR}) {
        if (!SupportsAttention(*backend_, {.kind = kind})) continue;
        if (!CheckKvType({.kind = kind}, dtype).ok()) continue;
        const SequenceVectors sequence(kTokens, 1, kDim, 12, Content::kZeroQ);  // all weights count
        PagedKv kv(*backend_, {&sequence}, 16, dtype);
        const std::vector<float> clean = Attend(*backend_, {.kind = kind}, {&sequence}, kv,
                                                {{.first = 60, .count = kPoisoned - 60}});
        std::vector<float> poisoned(kDim, 0.5f);
        poisoned[3] = std::numeric_limits<float>::quiet_NaN();
        (in_key ? kv.Key(0, kPoisoned, 0) : kv.Value(0, kPoisoned, 0)).Store(poisoned);
        const std::vector<float> out =
            Attend(*backend_, {.kind = kind}, {&sequence}, kv, {{.first = 60, .count = 30}});
        EXPECT_TRUE(SameBits({out.data(), clean.size()}, clean, {kPoisoned - 60, kDim}));
        for (int row = kPoisoned; row < kTokens; ++row) {
          EXPECT_TRUE(std::isnan(out[size_t(row - 60) * kDim + 3]))
              << row << ", " << NameOfSpec({.kind = kind}) << (in_key ? ", key" : ", value");
        }
      }
    }
  }
}

// An fp16 page holds a value above 65504 as infinity. It must not reach rows in which its key has
// no weight.
TEST_P(AttentionTest, InfiniteValuesReachOnlyRowsThatWeighThem) {
  constexpr int kTokens = 600, kDim = 64;
  SequenceVectors sequence(kTokens, 1, kDim, 15, Content::kTopical);
  std::copy_n(&sequence.k[3 * kDim], kDim, &sequence.q[310 * kDim]);  // row 310 weighs key 3
  for (const DType dtype : {MostExact(), DType::kFx16}) {
    PagedKv kv(*backend_, {&sequence}, 16, dtype);
    PagedKv reference_kv(*reference_, {&sequence}, 16, dtype);
    std::vector<float> infinite(kDim, std::numeric_limits<float>::infinity());
    for (const int key : {3, 280}) {
      kv.Value(0, key, 0).Store(infinite);
      reference_kv.Value(0, key, 0).Store(infinite);
    }
    const std::vector<RowRange> rows{{.first = 290, .count = kTokens - 290}};
    const std::vector<float> expected = Attend(*reference_, {}, {&sequence}, reference_kv, rows);
    const std::vector<float> actual = Attend(*backend_, {}, {&sequence}, kv, rows);
    const double tolerance = Tolerance() * LargestValue(sequence);
    int num_finite = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::isfinite(actual[i]), std::isfinite(expected[i])) << "row " << i / kDim;
      if (!std::isfinite(expected[i])) continue;
      ++num_finite;
      EXPECT_NEAR(actual[i], expected[i], tolerance) << "row " << i / kDim;
    }
    EXPECT_GT(num_finite, 100 * kDim);
    EXPECT_LT(num_finite, int(expected.size()));  // some row has a weight there
  }
}

// d = 2, four keys: the query is e1; keys are e1, e1, -e1, e2. With N = 4, row 4 has
// s = c, c, -c, 0 where c = ln 2 ln 4, and only the first two keys are above the mean.
TEST_P(AttentionTest, CountsValueRowsByHand) {
  if (!Supports(DType::kF32, 2)) return;
  SequenceVectors sequence(4, 1, 2, 13, Content::kZeroQ);
  sequence.k = {1, 0, 1, 0, -1, 0, 0, 1};
  sequence.q = {1, 0, 1, 0, 1, 0, 1, 0};
  sequence.v = {1, 10, 3, 30, 5, 50, 7, 70};
  const PagedKv kv(*backend_, {&sequence}, 16, DType::kF32);

  std::vector<AttentionStats> counters;
  const std::vector<float> last =
      Attend(*backend_, {.p = 3}, {&sequence}, kv, {{.first = 3, .count = 1}}, &counters);
  EXPECT_TRUE(AllNear(last, std::vector<float>{2, 20}, {1, 2}, 1e-5));
  ASSERT_EQ(counters.size(), 1u);
  EXPECT_EQ(counters[0].num_value_rows, 4);
  EXPECT_EQ(counters[0].num_value_rows_read, 2);

  // Rows 1 to 3 have no offset and p = 3 keeps them all above 2^-32: 1 + 2 + 3, and 2 of row 4.
  // Counters are added to.
  Attend(*backend_, {.p = 3}, {&sequence}, kv, {{.first = 0, .count = 4}}, &counters);
  EXPECT_EQ(counters[0].num_value_rows, 4 + 10);
  EXPECT_EQ(counters[0].num_value_rows_read, 2 + 8);

  // What an interrupted op computes is not said; it must end early where one can.
  const std::atomic<bool> interrupt = true;
  std::vector<AttentionStats> interrupted;
  Attend(*backend_, {.p = 3}, {&sequence}, kv, {{.first = 0, .count = 4}}, &interrupted,
         &interrupt);
  EXPECT_EQ(interrupted[0].num_value_rows, backend_->Name() == "cpu" ? 0 : 10);

  for (AttentionKind kind : {AttentionKind::kLssa, AttentionKind::kSoftmax}) {
    std::vector<AttentionStats> all;
    Attend(*backend_, {.kind = kind}, {&sequence}, kv,
           {{.first = 0, .count = 3}, {.first = 3, .count = 1}}, &all);
    EXPECT_EQ(all[0].num_value_rows, 6);
    EXPECT_EQ(all[0].num_value_rows_read, 6);
    EXPECT_EQ(all[1].num_value_rows, 4);
    EXPECT_EQ(all[1].num_value_rows_read, 4);
  }
}

TEST_P(AttentionTest, CountsLikeTheReference) {
  const SequenceVectors sequence(2500, 1, 64, 14, Content::kTopical);
  const PagedKv kv(*backend_, {&sequence}, 64, DType::kF16);
  const PagedKv reference_kv(*reference_, {&sequence}, 64, DType::kF16);
  const std::vector<RowRange> ranges{{.first = 2490, .count = 9}, {.first = 2499, .count = 1}};
  std::vector<AttentionStats> actual, expected;
  Attend(*backend_, {}, {&sequence}, kv, ranges, &actual);
  Attend(*reference_, {}, {&sequence}, reference_kv, ranges, &expected);
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(actual[i].num_value_rows, expected[i].num_value_rows);
    // A weight next to kNegligibleWeight may round to either side.
    EXPECT_NEAR(static_cast<double>(actual[i].num_value_rows_read),
                static_cast<double>(expected[i].num_value_rows_read), 3);
    EXPECT_LT(actual[i].num_value_rows_read, actual[i].num_value_rows / 2);
  }
}

// Rows in which no key stands out take the slow path of cuda, which says how many. In others nearly
// none does: a fault that made all of them take it gave right results, and was slow.
TEST_P(AttentionTest, CountsFlatRows) {
  for (const DType dtype : {DType::kF16, DType::kI8, DType::kFx16}) {
    const auto flat_rows = [&](Content content, const AttentionSpec& spec) {
      constexpr int kTokens = 300;
      const SequenceVectors sequence(kTokens, 1, 64, 2, content);
      const PagedKv kv(*backend_, {&sequence}, 64, dtype);
      std::vector<AttentionStats> counters;
      Attend(*backend_, spec, {&sequence}, kv,
             {{.first = 0, .count = 200}, {.first = kTokens - 1, .count = 1}}, &counters);
      return std::pair(counters[0].num_flat_rows, counters[1].num_flat_rows);
    };
    const auto [flat_of_prompt, flat_of_decode] = flat_rows(Content::kNearlyEqualK, {});
    EXPECT_EQ(flat_of_decode, IsCuda(GetParam()) ? 1 : 0) << NameOf(dtype);
    if (IsCuda(GetParam())) {
      EXPECT_GT(flat_of_prompt, 150) << NameOf(dtype);
    } else {
      EXPECT_EQ(flat_of_prompt, 0);
    }
    const auto [few, none] = flat_rows(Content::kTopical, {});
    EXPECT_LE(few, 10) << NameOf(dtype);
    EXPECT_EQ(none, 0) << NameOf(dtype);
    if (dtype == DType::kFx16) continue;
    EXPECT_EQ(flat_rows(Content::kNearlyEqualK, {.kind = AttentionKind::kSoftmax}),
              std::pair(int64_t{0}, int64_t{0}));
  }
}

TEST_P(AttentionTest, RejectsBf16Pages) {
  KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .dtype = DType::kBF16};
  const absl::Status status = backend_->FitLayout(layout);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("bf16"), std::string::npos) << status;
}

// Query heads of one group read one stored KV head: the same bits as with a copy of it per query
// head.
TEST_P(AttentionTest, GroupedQueryHeads) {
  if (!backend_->Supports(Feature::kGroupedQuery)) return;
  constexpr int kTokens = 1100, kHeads = 12, kDim = 32;
  for (const int num_kv_heads : {1, 2, 4}) {
    SequenceVectors sequence(kTokens, kHeads, kDim, 15, Content::kTopical);
    const int group_size = kHeads / num_kv_heads;
    for (int i = 0; i < kTokens * kHeads; ++i) {
      const int from = i - i % kHeads % group_size;  // the first head of the group
      std::copy_n(&sequence.k[size_t(from) * kDim], kDim, &sequence.k[size_t(i) * kDim]);
      std::copy_n(&sequence.v[size_t(from) * kDim], kDim, &sequence.v[size_t(i) * kDim]);
    }
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      if (!Supports(dtype, kDim)) continue;
      const PagedKv copies(*backend_, {&sequence}, 64, dtype);
      const PagedKv grouped(*backend_, {&sequence}, 64, dtype, num_kv_heads);
      const std::vector<RowRange> rows{{.first = 1080, .count = 19}, {.first = 1099, .count = 1}};
      std::vector<AttentionStats> expected_counts, counts;
      const std::vector<int64_t> shape = {20, kHeads, kDim};
      const auto actual = Attend(*backend_, {}, {&sequence}, grouped, rows, &counts);
      const auto expected = Attend(*backend_, {}, {&sequence}, copies, rows, &expected_counts);
      EXPECT_TRUE(backend_->IsBatchInvariant()
                      ? SameBits(actual, expected, shape)
                      : AllNear(actual, expected, shape, Tolerance() * LargestValue(sequence)))
          << num_kv_heads << " KV heads, " << NameOf(dtype);
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(counts[i].num_value_rows, expected_counts[i].num_value_rows);
        EXPECT_EQ(counts[i].num_value_rows_read, expected_counts[i].num_value_rows_read);
      }
    }
  }
}

// Two query heads of a group attend to one key each. A NaN in the value of one's key must not reach
// the other.
TEST_P(AttentionTest, ANanStaysInItsHeadOfAGroup) {
  if (!backend_->Supports(Feature::kGroupedQuery)) return;
  constexpr int kTokens = 300, kDim = 64, kKeys[] = {10, 200};
  for (const DType dtype : {MostExact(), DType::kF16, DType::kI8, DType::kFx16}) {
    if (!Supports(dtype, kDim)) continue;
    SequenceVectors sequence(kTokens, 2, kDim, 16, Content::kRandom);
    const size_t row = sequence.RowFloats();
    for (size_t head = 0; head < 2; ++head) {
      std::copy_n(&sequence.k[size_t(kKeys[head]) * row], kDim,
                  &sequence.q[(kTokens - 1) * row + head * kDim]);
    }
    PagedKv kv(*backend_, {&sequence}, 64, dtype, 1);
    const std::vector<RowRange> rows{{.first = kTokens - 1, .count = 1}};
    const std::vector<float> clean = Attend(*backend_, {}, {&sequence}, kv, rows);
    std::vector<float> poisoned(&sequence.v[200 * row], &sequence.v[200 * row] + kDim);
    poisoned[3] = std::numeric_limits<float>::quiet_NaN();
    kv.Value(0, 200, 0).Store(poisoned);
    const std::vector<float> out = Attend(*backend_, {}, {&sequence}, kv, rows);
    EXPECT_TRUE(SameBits(std::span(out).first(kDim), std::span(clean).first(kDim), {kDim}))
        << NameOf(dtype);
    EXPECT_TRUE(std::isnan(out[kDim + 3])) << NameOf(dtype);
  }
}

// All heads of a group are flat, or one of them.
TEST_P(AttentionTest, FlatHeadsOfAGroup) {
  if (!backend_->Supports(Feature::kGroupedQuery)) return;
  constexpr int kTokens = 300, kHeads = 3, kDim = 32;
  SequenceVectors sequence(kTokens, kHeads, kDim, 17, Content::kTopical);
  for (const int num_flat : {1, kHeads}) {
    std::fill_n(&sequence.q[(kTokens - 1) * sequence.RowFloats()], num_flat * kDim, 0.0f);
    const PagedKv kv(*backend_, {&sequence}, 64, MostExact(), 1);
    const PagedKv reference_kv(*reference_, {&sequence}, 64, MostExact(), 1);
    const std::vector<RowRange> rows{{.first = kTokens - 1, .count = 1}};
    EXPECT_TRUE(AllNear(Attend(*backend_, {}, {&sequence}, kv, rows),
                        Attend(*reference_, {}, {&sequence}, reference_kv, rows), {kHeads, kDim},
                        Tolerance() * LargestValue(sequence)))
        << num_flat;
  }
}

TEST_P(AttentionTest, RejectsSpecsItDoesNotCompute) {
  for (const double p : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(backend_->CheckAttention({.p = p}).code(), absl::StatusCode::kInvalidArgument) << p;
  }
  EXPECT_TRUE(backend_->CheckAttention({.p = 0.25}).ok());
  const absl::Status status = backend_->CheckAttention({.kind = AttentionKind::kSigmoid});
  EXPECT_EQ(status.code(), IsCuda(GetParam()) ? absl::StatusCode::kUnimplemented
                                              : absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("\"sigmoid\""), std::string::npos) << status;
}

// The emulated device in both its modes: batch-invariant, and as it is served.
std::vector<std::string> AllBackendNames() {
  std::vector<std::string> names = AttentionBackendNames();
  names.emplace_back(kServedCuda);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(AllBackendNames()),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace lssar

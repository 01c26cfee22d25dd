#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "base/str_cat.h"
#include "clients/cli/bench_report.h"
#include "clients/cli/bench_statistics.h"
#include "clients/cli/bench_workload.h"

namespace lssar::cli {
namespace {

using ::testing::AllOf;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;

LengthDistribution Lengths(absl::string_view text) {
  auto lengths = LengthDistribution::Parse("--random-input-len", text);
  EXPECT_TRUE(lengths.ok()) << lengths.status();
  return *lengths;
}

TEST(BenchLengths, FixedAndUniformKeepTheirBounds) {
  std::mt19937_64 random(3);
  EXPECT_EQ(Lengths("fixed:2K").Draw(&random), 2048);
  EXPECT_EQ(Lengths("17").Draw(&random), 17);
  const LengthDistribution uniform = Lengths("uniform:5,8");
  std::set<int> drawn;
  for (int i = 0; i < 200; ++i) drawn.insert(uniform.Draw(&random));
  EXPECT_EQ(drawn, std::set<int>({5, 6, 7, 8}));
  EXPECT_EQ(uniform.Longest(), 8);
  EXPECT_EQ(uniform.Text(), "uniform:5,8");
}

TEST(BenchLengths, LognormalHasItsMeanAndSigma) {
  std::mt19937_64 random(5);
  const LengthDistribution lengths = Lengths("lognormal:300,0.7");
  constexpr int kCount = 40000;
  double sum = 0, log_sum = 0, log_squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const int length = lengths.Draw(&random);
    sum += length;
    log_sum += std::log(length);
    log_squares += std::log(length) * std::log(length);
  }
  const double log_mean = log_sum / kCount;
  EXPECT_THAT(sum / kCount, DoubleNear(300, 6));  // five standard errors
  EXPECT_THAT(std::sqrt(log_squares / kCount - log_mean * log_mean), DoubleNear(0.7, 0.02));
  EXPECT_FALSE(lengths.Longest().has_value());
}

TEST(BenchLengths, NamesFlagAndForms) {
  for (const char* text : {"", "fixed:0", "fixed:1,2", "uniform:8,5", "uniform:5", "lognormal:5",
                           "lognormal:nan,1", "lognormal:100,5", "zipf:1", "12x"}) {
    const auto lengths = LengthDistribution::Parse("--random-output-len", text);
    ASSERT_EQ(lengths.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(lengths.status().message()),
                AllOf(HasSubstr("--random-output-len"), HasSubstr("lognormal:MEAN,SIGMA")));
  }
}

TEST(PoissonArrivals, HaveTheirRateAndRepeatForASeed) {
  PoissonArrivals arrivals(50, 9), again(50, 9), other(50, 10);
  constexpr int kCount = 20000;
  int64_t last_us = 0;
  bool differs = false;
  double squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const int64_t us = arrivals.NextUs();
    ASSERT_GE(us, last_us);
    ASSERT_EQ(us, again.NextUs());
    differs = differs || us != other.NextUs();
    squares += std::pow(static_cast<double>(us - last_us) / 1e6, 2);
    last_us = us;
  }
  EXPECT_TRUE(differs);
  const double mean_s = static_cast<double>(last_us) / 1e6 / kCount;
  EXPECT_THAT(mean_s, DoubleNear(1 / 50.0, 0.001));
  // The deviation of an exponential distribution is its mean.
  EXPECT_THAT(std::sqrt(squares / kCount - mean_s * mean_s), DoubleNear(1 / 50.0, 0.001));
}

v1::GetInfoReply Served() {
  v1::GetInfoReply served;
  served.set_max_model_len(1000);
  served.set_vocab_size(500);
  served.set_bos_id(2);
  served.set_eos_id(3);
  return served;
}

TEST(BenchWorkload, ARequestDependsOnItsIndexOnly) {
  const WorkloadOptions options = {.input = Lengths("uniform:10,20"),
                                   .output = Lengths("lognormal:30,1"),
                                   .num_prefix_tokens = 40,
                                   .prefix_fraction = 0.5};
  const auto workload = BenchWorkload::Make(options, Served());
  ASSERT_TRUE(workload.ok());
  const auto again = BenchWorkload::Make(options, Served());
  v1::GenerateRequest kept;  // the first one with the prefix
  int num_with_prefix = 0;
  for (int i = 299; i >= 0; --i) {
    const v1::GenerateRequest request = workload->Request(i);
    EXPECT_EQ(request.SerializeAsString(), again->Request(i).SerializeAsString());
    const v1::TokenIds& tokens = request.tokens();
    EXPECT_EQ(tokens.ids(0), 2);
    EXPECT_TRUE(std::all_of(tokens.ids().begin() + 1, tokens.ids().end(),
                            [](int id) { return id >= 0 && id < 500 && id != 2 && id != 3; }));
    EXPECT_TRUE(request.ignore_eos());
    if (tokens.ids_size() <= 20) continue;
    ++num_with_prefix;
    EXPECT_THAT(tokens.ids_size(), AllOf(Ge(50), Le(60)));
    if (num_with_prefix == 1) kept.CopyFrom(request);
    EXPECT_TRUE(
        std::equal(tokens.ids().begin(), tokens.ids().begin() + 40, kept.tokens().ids().begin()));
    if (request.sampling().seed() == kept.sampling().seed()) continue;
    EXPECT_FALSE(std::equal(tokens.ids().begin() + 40, tokens.ids().begin() + 50,
                            kept.tokens().ids().begin() + 40));
  }
  EXPECT_THAT(num_with_prefix, AllOf(Ge(110), Le(190)));
}

TEST(BenchWorkload, LengthsFitTheServedContext) {
  const auto fits = BenchWorkload::Make(
      {.input = Lengths("lognormal:900,2"), .output = Lengths("lognormal:900,2")}, Served());
  ASSERT_TRUE(fits.ok());
  for (int i = 0; i < 300; ++i) {
    const v1::GenerateRequest request = fits->Request(i);
    EXPECT_GE(request.tokens().ids_size(), 1);
    EXPECT_GE(request.max_tokens(), 1);
    EXPECT_LE(request.tokens().ids_size() + request.max_tokens(), 1000);
  }
  const auto over = BenchWorkload::Make(
      {.input = Lengths("fixed:900"), .output = Lengths("uniform:1,90"), .num_prefix_tokens = 11},
      Served());
  EXPECT_THAT(std::string(over.status().message()), HasSubstr("the served context of 1000"));
}

TEST(BenchPrompts, AreJsonLines) {
  const auto prompts =
      ParseBenchPrompts("{\"prompt\": \"a b\", \"max_tokens\": 7}\n\n{\"prompt\": \"c\"}\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_EQ((*prompts)[0].max_tokens, 7);
  EXPECT_FALSE((*prompts)[1].max_tokens.has_value());
  const auto workload = BenchWorkload::Make(
      {.input = Lengths("1"), .output = Lengths("fixed:5"), .prompts = *prompts}, Served());
  EXPECT_EQ(workload->Request(2).text(), "a b");
  EXPECT_EQ(workload->Request(3).max_tokens(), 5);
  for (const char* line :
       {"[]", "{\"prompt\": 3}", "{\"max_tokens\": 3}", "{\"prompt\": \"\"}",
        "{\"prompt\": \"a\", \"max_tokens\": 0}", "{\"prompt\": \"a\", \"n\": 1}"}) {
    const auto bad = ParseBenchPrompts(StrCat("{\"prompt\": \"a\"}\n", line));
    EXPECT_THAT(std::string(bad.status().message()), HasSubstr("line 2: ")) << line;
  }
}

TEST(Percentile, IsLinearBetweenTheNearestRanks) {
  // numpy.percentile's values.
  EXPECT_THAT(Percentile({1, 2, 3, 4}, 0.5), DoubleEq(2.5));
  EXPECT_THAT(Percentile({1, 2, 3, 4}, 0.9), DoubleEq(3.7));
  EXPECT_THAT(Percentile({5}, 0.99), DoubleEq(5));
  EXPECT_THAT(Percentile({1, 9}, 0), DoubleEq(1));
  EXPECT_THAT(Percentile({1, 9}, 1), DoubleEq(9));
  const LatencyDistribution latency = Distribute({4, 1, 3, 2});
  EXPECT_EQ(latency.count, 4);
  EXPECT_THAT(latency.mean, DoubleEq(2.5));
  EXPECT_THAT(latency.p99, DoubleEq(3.97));
  EXPECT_THAT(latency.max, DoubleEq(4));
}

TEST(LatencyTargets, AreParsed) {
  const auto targets = ParseLatencyTargets("--goodput", "ttft:200ms,e2e:1.5s");
  ASSERT_TRUE(targets.ok());
  EXPECT_EQ(targets->ttft_ms, 200);
  EXPECT_EQ(targets->e2e_ms, 1500);
  EXPECT_FALSE(targets->tpot_ms.has_value());
  EXPECT_FALSE(ParseLatencyTargets("--goodput", "")->Any());
  // As `vllm bench serve` writes them: milliseconds, and e2el.
  const auto plain = ParseLatencyTargets("--goodput", "tpot:12.5,e2el:900");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->tpot_ms, 12.5);
  EXPECT_EQ(plain->e2e_ms, 900);
  for (const char* list : {"ttft", "ttft:-200", "ttft:-1s", "itl:3ms", "ttft:1s,"}) {
    EXPECT_THAT(std::string(ParseLatencyTargets("--goodput", list).status().message()),
                HasSubstr("--goodput"))
        << list;
  }
}

// Due at 1 s, sent 10 ms late; 2 tokens after 100 ms, 1 after 20 ms more, 3 after 60 ms more.
BenchRecord SixTokens() {
  return {.due_us = 1000000,
          .sent_us = 1010000,
          .first_token_us = 1100000,
          .last_token_us = 1180000,
          .ended_us = 1200000,
          .num_prompt_tokens = 10,
          .num_cached_tokens = 4,
          .num_output_tokens = 6,
          .num_first_tokens = 2,
          .gaps = {{.us = 20000, .num_tokens = 1}, {.us = 60000, .num_tokens = 3}}};
}

TEST(Summarise, CountsFromTheTimeARequestWasDue) {
  const LoadSummary summary = Summarise({SixTokens()}, {});
  EXPECT_THAT(summary.ttft.p50, DoubleEq(100));
  EXPECT_THAT(summary.e2e.p50, DoubleEq(180));
  EXPECT_THAT(summary.tpot.p50,
              DoubleEq(20));  // 80 ms over the four tokens after the first message
  EXPECT_THAT(summary.lag.p50, DoubleEq(10));
  EXPECT_EQ(summary.itl.count, 4);  // 20, and 60 ms shared by three
  EXPECT_THAT(summary.itl.max, DoubleEq(20));
  EXPECT_EQ(summary.gap.count, 2);
  EXPECT_THAT(summary.gap.max, DoubleEq(60));
  EXPECT_THAT(summary.duration_s, DoubleEq(0.2));
  EXPECT_THAT(summary.PerSecond(summary.num_output_tokens), DoubleEq(30));
}

TEST(Summarise, CountsGoodRequestsAndFailuresWithoutTheWarmup) {
  std::vector<BenchRecord> records(5, SixTokens());
  records[0].is_warmup = true;
  records[0].due_us = 0;
  records[1].first_token_us += 50000;
  records[2].gaps.clear();  // all tokens in one message
  records[2].num_output_tokens = records[2].num_first_tokens;
  records[2].last_token_us = records[2].first_token_us;
  records[3].code = absl::StatusCode::kResourceExhausted;
  records[3].first_token_us = -1;
  records[4].code = absl::StatusCode::kDeadlineExceeded;
  records[4].ended_us += 300000;
  const LoadSummary summary = Summarise(records, {.ttft_ms = 120, .tpot_ms = 20, .e2e_ms = 180});
  EXPECT_EQ(summary.num_completed, 2);
  EXPECT_EQ(summary.num_good, 1);
  EXPECT_EQ(summary.tpot.count, 1);
  EXPECT_EQ(summary.NumFailed(), 2);
  EXPECT_THAT(summary.failures.at("RESOURCE_EXHAUSTED").p50, DoubleEq(190));
  EXPECT_THAT(summary.failures.at("DEADLINE_EXCEEDED").p50, DoubleEq(490));
  EXPECT_THAT(summary.duration_s, DoubleEq(0.5));
  EXPECT_EQ(summary.num_cached_tokens, 8);
}

TEST(Summarise, NoRecordsGiveZeros) {
  const LoadSummary summary = Summarise({}, {});
  EXPECT_EQ(summary.ttft.count, 0);
  EXPECT_EQ(summary.PerSecond(3), 0);
}

BenchReport TwoPoints() {
  BenchReport report = {.is_open_loop = true, .has_targets = true};
  BenchRecord slow = SixTokens();
  slow.first_token_us += 10000;
  BenchRecord refused = {.due_us = 1000000, .sent_us = 1000000, .ended_us = 1001000};
  refused.code = absl::StatusCode::kResourceExhausted;
  report.points.push_back({.load = 1, .summary = Summarise({SixTokens()}, {.ttft_ms = 105})});
  report.points.push_back({.load = 2.5, .summary = Summarise({slow, refused}, {.ttft_ms = 105})});
  return report;
}

TEST(BenchReport, JsonHasItsFields) {
  const nlohmann::ordered_json points = PointsToJson(TwoPoints());
  ASSERT_EQ(points.size(), 2u);
  std::vector<std::string> fields;
  for (const auto& [field, value] : points[1].items()) fields.push_back(field);
  EXPECT_THAT(fields,
              ::testing::ElementsAre("rate", "duration_s", "num_completed", "num_failed",
                                     "num_prompt_tokens", "num_cached_tokens", "num_output_tokens",
                                     "requests_per_s", "good_requests_per_s", "output_tokens_per_s",
                                     "all_tokens_per_s", "ttft_ms", "tpot_ms", "itl_ms", "gap_ms",
                                     "e2e_ms", "lag_ms", "failures"));
  EXPECT_EQ(points[1]["rate"], 2.5);
  EXPECT_EQ(points[1]["ttft_ms"]["p99"], 110.0);
  EXPECT_EQ(points[1]["good_requests_per_s"], 0.0);
  EXPECT_EQ(points[1]["failures"]["RESOURCE_EXHAUSTED"]["count"], 1);
  BenchReport empty = {.points = {{.load = 4, .summary = {}}}};
  EXPECT_EQ(PointsToJson(empty)[0]["concurrency"], 4.0);
  EXPECT_TRUE(PointsToJson(empty)[0]["ttft_ms"].is_null());
  EXPECT_TRUE(PointsToJson(empty)[0]["good_requests_per_s"].is_null());
}

TEST(BenchReport, TablesAndBars) {
  const std::string text = RenderReport(TwoPoints());
  EXPECT_THAT(text, HasSubstr("rate  completed  failed  requests/s  good/s"));
  EXPECT_THAT(text, HasSubstr("2.5  1 x RESOURCE_EXHAUSTED"));
  EXPECT_THAT(text, HasSubstr("110.0"));
  EXPECT_EQ(RenderBars(TwoPoints(), {}),
            "First token (TTFT) by rate: # p50, - to p99, milliseconds\n"
            "       1 ############################################# 100.0, 100.0\n"
            "     2.5 ################################################## 110.0, 110.0\n"
            "Between tokens (ITL) by rate: # p50, - to p99, milliseconds\n"
            "       1 ################################################## 20.00, 20.00\n"
            "     2.5 ################################################## 20.00, 20.00\n");
  EXPECT_EQ(RenderBars({.points = {{.load = 1, .summary = {}}}}, {}), "");
}

}  // namespace
}  // namespace lssar::cli

#include "clients/cli/bench_statistics.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

double Millis(int64_t us) { return double(us) / 1e3; }

// Latencies of one completed request.
struct RequestLatency {
  double ttft_ms = 0;
  double e2e_ms = 0;
  std::optional<double> tpot_ms;  // nullopt: all tokens were in one message
};

RequestLatency LatencyOf(const BenchRecord& record) {
  RequestLatency latency = {.ttft_ms = Millis(record.first_token_us - record.due_us),
                            .e2e_ms = Millis(record.last_token_us - record.due_us),
                            .tpot_ms = std::nullopt};
  const int num_later = record.num_output_tokens - record.num_first_tokens;
  if (num_later > 0) {
    latency.tpot_ms = Millis(record.last_token_us - record.first_token_us) / num_later;
  }
  return latency;
}

bool IsGood(const RequestLatency& latency, const LatencyTargets& targets) {
  return (!targets.ttft_ms || latency.ttft_ms <= *targets.ttft_ms) &&
         (!targets.e2e_ms || latency.e2e_ms <= *targets.e2e_ms) &&
         (!targets.tpot_ms || latency.tpot_ms.value_or(0) <= *targets.tpot_ms);
}

struct Samples {
  std::vector<double> ttft, e2e, tpot, itl, gap, lag;
  std::map<std::string, std::vector<double>> failures;
};

void AddCompleted(const BenchRecord& record, const LatencyTargets& targets, Samples* samples,
                  LoadSummary* summary) {
  const RequestLatency latency = LatencyOf(record);
  ++summary->num_completed;
  if (IsGood(latency, targets)) ++summary->num_good;
  summary->num_prompt_tokens += record.num_prompt_tokens;
  summary->num_cached_tokens += record.num_cached_tokens;
  summary->num_output_tokens += record.num_output_tokens;
  samples->ttft.push_back(latency.ttft_ms);
  samples->e2e.push_back(latency.e2e_ms);
  if (latency.tpot_ms) samples->tpot.push_back(*latency.tpot_ms);
  for (const TokenGap& gap : record.gaps) {
    samples->gap.push_back(Millis(gap.us));
    samples->itl.insert(samples->itl.end(), size_t(gap.num_tokens),
                        Millis(gap.us) / gap.num_tokens);
  }
}

}  // namespace

double Percentile(const std::vector<double>& sorted, double share) {
  LSSAR_CHECK(!sorted.empty() && share >= 0 && share <= 1);
  const double rank = share * double(sorted.size() - 1);
  const auto below = size_t(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - double(below));
}

LatencyDistribution Distribute(std::vector<double> samples_ms) {
  if (samples_ms.empty()) return {};
  std::ranges::sort(samples_ms);
  const double sum = std::accumulate(samples_ms.begin(), samples_ms.end(), 0.0);
  return {.count = int64_t(samples_ms.size()),
          .mean = sum / double(samples_ms.size()),
          .p50 = Percentile(samples_ms, 0.5),
          .p90 = Percentile(samples_ms, 0.9),
          .p99 = Percentile(samples_ms, 0.99),
          .max = samples_ms.back()};
}

absl::StatusOr<LatencyTargets> ParseLatencyTargets(absl::string_view flag, absl::string_view list) {
  LatencyTargets targets;
  if (list.empty()) return targets;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    std::optional<double>* const target = parts.first == "ttft"   ? &targets.ttft_ms
                                          : parts.first == "tpot" ? &targets.tpot_ms
                                          : parts.first == "e2e" || parts.first == "e2el"
                                              ? &targets.e2e_ms
                                              : nullptr;
    absl::Duration limit;
    double milliseconds = 0;
    const bool is_plain = absl::SimpleAtod(parts.second, &milliseconds);
    if (is_plain) limit = absl::Milliseconds(milliseconds);
    if (target == nullptr || !(is_plain || absl::ParseDuration(parts.second, &limit)) ||
        limit <= absl::ZeroDuration()) {
      return absl::InvalidArgumentError(StrCat(
          flag, ": '", entry, "' is not ttft:TIME, tpot:TIME or e2e:TIME, as in ttft:200ms"));
    }
    *target = absl::ToDoubleMilliseconds(limit);
  }
  return targets;
}

int64_t LoadSummary::NumFailed() const {
  int64_t num_failed = 0;
  for (const auto& [code, latency] : failures) num_failed += latency.count;
  return num_failed;
}

double LoadSummary::PerSecond(int64_t count) const {
  return duration_s > 0 ? double(count) / duration_s : 0;
}

LoadSummary Summarise(const std::vector<BenchRecord>& records, const LatencyTargets& targets) {
  LoadSummary summary;
  Samples samples;
  int64_t begin_us = std::numeric_limits<int64_t>::max();
  int64_t end_us = 0;
  for (const BenchRecord& record : records) {
    if (record.is_warmup) continue;
    begin_us = std::min(begin_us, record.due_us);
    end_us = std::max(end_us, record.ended_us);
    samples.lag.push_back(Millis(record.sent_us - record.due_us));
    if (record.code == absl::StatusCode::kOk && record.first_token_us >= 0) {
      AddCompleted(record, targets, &samples, &summary);
    } else {
      samples.failures[absl::StatusCodeToString(record.code)].push_back(
          Millis(record.ended_us - record.sent_us));
    }
  }
  if (end_us > begin_us) summary.duration_s = double(end_us - begin_us) / 1e6;
  summary.ttft = Distribute(std::move(samples.ttft));
  summary.e2e = Distribute(std::move(samples.e2e));
  summary.tpot = Distribute(std::move(samples.tpot));
  summary.itl = Distribute(std::move(samples.itl));
  summary.gap = Distribute(std::move(samples.gap));
  summary.lag = Distribute(std::move(samples.lag));
  for (auto& [code, waits] : samples.failures) {
    summary.failures[code] = Distribute(std::move(waits));
  }
  return summary;
}

}  // namespace lssar::cli

#include "clients/cli/evaluation.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/input.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

absl::Status CheckLengths(const LossOptions& options, size_t num_ids, int max_model_len) {
  for (const int length : options.lengths) {
    RETURN_IF_ERROR(CheckServedContext("--lengths", length, max_model_len));
    if (size_t(length) >= num_ids) {
      return absl::InvalidArgumentError(
          StrCat("--lengths: ", length, " needs more ids than the file's ", num_ids));
    }
    const int most = NumDisjointRows(length, int64_t(num_ids));
    if (options.num_rows.value_or(1) > most) {
      return absl::InvalidArgumentError(StrCat(
          "--rows: ", *options.num_rows, " rows of ", length, " tokens overlap in the file's ",
          num_ids, " ids: tokens would count twice, and the standard error be too small; at most ",
          most, most == 1 ? " fits" : " fit"));
    }
  }
  return absl::OkStatus();
}

// Tokens of one call, where each is in the reply: 10 MB of it.
constexpr int kPerTokenCallTokens = 65536;

// Rows [first, end). The first id of a row is its context, the others are the continuation.
v1::ScoreRequest MakeRequest(const std::vector<int32_t>& ids, const LossAtLength& at, int first,
                             int end, const SchedulingFlags& scheduling) {
  v1::ScoreRequest request;
  FillScheduling(scheduling, &request);
  request.set_per_token(!at.buckets.empty());
  for (int row_idx = first; row_idx < end; ++row_idx) {
    const std::vector<int32_t> row = EvaluationRow(ids, at.length, at.num_rows, row_idx);
    v1::ScoreItem* item = request.add_items();
    item->mutable_context()->mutable_tokens()->add_ids(row[0]);
    item->add_continuations()->mutable_tokens()->mutable_ids()->Add(
        row.begin() + 1, row.end() - (at.is_last_left_out ? 1 : 0));
  }
  return request;
}

// Buckets without losses, for rows of `num_scored` tokens.
absl::StatusOr<std::vector<LossInBucket>> MakeBuckets(const std::vector<int>& starts,
                                                      int num_scored) {
  if (starts.empty()) return std::vector<LossInBucket>();
  std::vector<LossInBucket> buckets = {{.first = 1}};
  for (const int start : starts) {
    if (start <= buckets.back().first || start > num_scored) {
      return absl::InvalidArgumentError(StrCat("--buckets: ", start, " must be above ",
                                               buckets.back().first, " and at most ", num_scored,
                                               ", the scored tokens of a row"));
    }
    buckets.back().end = start;
    buckets.push_back({.first = start});
  }
  buckets.back().end = num_scored + 1;
  return buckets;
}

// Adds a row. tokens[i] is predicted from i + 1 tokens.
void AddRow(const std::vector<v1::Token>& tokens, std::vector<LossInBucket>* buckets) {
  for (LossInBucket& bucket : *buckets) {
    double sum = 0;
    for (int i = bucket.first; i < bucket.end; ++i) {
      sum -= double{tokens.at(size_t(i - 1)).token().logprob()};
    }
    bucket.num_tokens += bucket.end - bucket.first;
    bucket.row_losses.push_back(sum / (bucket.end - bucket.first));
  }
}

// Enough to keep the engine's batch full.
constexpr size_t kWindowsPerCall = 32;

v1::ScoreItem MakeItem(const std::vector<int32_t>& ids, const RollingWindow& window) {
  const auto begin = ids.begin();
  v1::ScoreItem item;
  item.mutable_context()->mutable_tokens()->mutable_ids()->Add(begin + window.first,
                                                               begin + window.scored);
  item.add_continuations()->mutable_tokens()->mutable_ids()->Add(begin + window.scored,
                                                                 begin + window.end);
  return item;
}

// Adds the losses of a window's tokens to the ranges of their positions.
void AddTokens(const RollingWindow& window, const std::vector<v1::Token>& tokens,
               std::vector<PositionRange>* ranges) {
  if (ranges->empty()) return;
  const int size = ranges->front().end - ranges->front().first;
  int64_t position = window.scored - window.first;
  for (const v1::Token& token : tokens) {
    PositionRange& range = ranges->at(size_t((position++ - 1) / size));
    const double loss = -double{token.token().logprob()};
    ++range.num_tokens;
    range.sum += loss;
    range.sum_squares += loss * loss;
  }
}

}  // namespace

Mean MeanOf(const std::vector<double>& values) {
  const double count = double(values.size());
  Mean result;
  for (const double value : values) result.mean += value / count;
  if (values.size() < 2) return result;
  double sum = 0;
  for (const double value : values) sum += (value - result.mean) * (value - result.mean);
  result.standard_error = std::sqrt(sum / (count - 1) / count);
  return result;
}

int NumDisjointRows(int length, int64_t num_ids) {
  // EvaluationRow's step must not be below `length`.
  return int(std::clamp<int64_t>((num_ids - 1) / length - 1, 1, INT_MAX));
}

int NumEvaluationRows(int length, int64_t num_ids, int num_tokens) {
  return std::min(std::clamp(num_tokens / length, 1, 8), NumDisjointRows(length, num_ids));
}

std::vector<int32_t> EvaluationRow(const std::vector<int32_t>& ids, int length, int num_rows,
                                   int row_idx) {
  LSSAR_CHECK(int64_t(ids.size()) > length && row_idx < num_rows);
  const int64_t step = (int64_t(ids.size()) - length - 1) / num_rows;
  const auto first = ids.begin() + row_idx * step;
  return {first, first + length + 1};
}

int64_t NumLossTokens(const LossOptions& options, int64_t num_ids) {
  int64_t num_tokens = 0;
  for (const int length : options.lengths) {
    num_tokens +=
        int64_t{options.num_rows.value_or(NumEvaluationRows(length, num_ids, options.num_tokens))} *
        length;
  }
  return num_tokens;
}

absl::StatusOr<std::vector<int32_t>> ReadEvaluationIds(Service* stub,
                                                       const std::optional<std::string>& ids,
                                                       const std::optional<std::string>& text,
                                                       Interrupt* interrupt) {
  if (ids.has_value()) return ReadTokenIds(*ids);
  ASSIGN_OR_RETURN(const std::string content, ReadText(*text));
  return Tokenize(stub, content, /*add_bos=*/std::nullopt, interrupt);
}

absl::StatusOr<LossByLength> MeasureLossByLength(Service* stub, const v1::GetInfoReply& served,
                                                 const std::vector<int32_t>& ids,
                                                 const LossOptions& options,
                                                 const std::string& label, ProgressBar* progress,
                                                 Interrupt* interrupt) {
  RETURN_IF_ERROR(CheckLengths(options, ids.size(), served.max_model_len()));
  LossByLength result;
  for (const int length : options.lengths) {
    LossAtLength at;
    at.length = length;
    at.num_rows =
        options.num_rows.value_or(NumEvaluationRows(length, std::ssize(ids), options.num_tokens));
    at.is_last_left_out = length == served.max_model_len();
    const std::string note = StrCat(label, "length ", length);
    ASSIGN_OR_RETURN(at.buckets,
                     MakeBuckets(options.bucket_starts, at.is_last_left_out ? length - 1 : length));
    const auto on_score = [&](const v1::ContinuationScore&) { progress->Advance(length, note); };
    const int rows_per_call =
        at.buckets.empty() ? at.num_rows : std::max(1, kPerTokenCallTokens / length);
    for (int first = 0; first < at.num_rows; first += rows_per_call) {
      v1::ScoreFinished finished;
      const v1::ScoreRequest request = MakeRequest(
          ids, at, first, std::min(at.num_rows, first + rows_per_call), options.scheduling);
      ASSIGN_OR_RETURN(const ScoredItems scored,
                       RunScore(stub, request, interrupt, on_score, &finished));
      for (const auto& item : scored) {
        at.num_tokens += item[0].score.num_tokens();
        at.row_losses.push_back(-item[0].score.logprob() / item[0].score.num_tokens());
        AddRow(item[0].tokens, &at.buckets);
      }
      result.receipt = std::move(*finished.mutable_receipt());
    }
    const Mean mean = MeanOf(at.row_losses);
    at.loss = mean.mean;
    at.standard_error = mean.standard_error;
    result.lengths.push_back(std::move(at));
  }
  return result;
}

nlohmann::ordered_json ToJson(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

nlohmann::ordered_json ToJson(const std::vector<LossAtLength>& lengths) {
  auto json = nlohmann::ordered_json::array();
  for (const LossAtLength& at : lengths) {
    json.push_back({{"length", at.length},
                    {"num_rows", at.num_rows},
                    {"num_tokens", at.num_tokens},
                    {"loss", at.loss},
                    {"standard_error", ToJson(at.standard_error)},
                    {"row_losses", at.row_losses},
                    {"perplexity", std::exp(at.loss)},
                    {"is_last_left_out", at.is_last_left_out}});
    for (const LossInBucket& bucket : at.buckets) {
      const Mean loss = bucket.Loss();
      json.back()["buckets"].push_back({{"first", bucket.first},
                                        {"end", bucket.end},
                                        {"num_tokens", bucket.num_tokens},
                                        {"loss", loss.mean},
                                        {"standard_error", ToJson(loss.standard_error)},
                                        {"row_losses", bucket.row_losses}});
    }
  }
  return json;
}

double PositionRange::Loss() const { return num_tokens == 0 ? 0 : sum / double(num_tokens); }

double PositionRange::StandardError() const {
  if (num_tokens < 2) return 0;
  const double count = double(num_tokens);
  const double variance = std::max(0.0, (sum_squares - sum * sum / count) / (count - 1));
  return std::sqrt(variance / count);
}

std::vector<PositionRange> MakePositionRanges(int max_position, int max_ranges) {
  LSSAR_CHECK(max_position >= 1 && max_ranges >= 1);
  const int size = (max_position + max_ranges - 1) / max_ranges;
  std::vector<PositionRange> ranges;
  for (int first = 1; first <= max_position; first += size) {
    ranges.push_back({.first = first, .end = std::min(first + size, max_position + 1)});
  }
  return ranges;
}

std::vector<RollingWindow> RollingWindows(int64_t num_ids, int max_length, int stride) {
  LSSAR_CHECK(stride >= 1 && stride <= max_length);
  const int64_t max_ids = int64_t{max_length} + 1;
  std::vector<RollingWindow> windows;
  for (int64_t scored = 1; scored < num_ids;) {
    const int64_t end = std::min(num_ids, windows.empty() ? max_ids : scored + stride);
    windows.push_back({std::max(int64_t{0}, end - max_ids), scored, end});
    scored = end;
  }
  return windows;
}

absl::StatusOr<RollingScore> RunRollingScore(Service* stub, const std::vector<int32_t>& ids,
                                             const RollingOptions& options, Interrupt* interrupt,
                                             const std::function<void(int)>& on_tokens) {
  const std::vector<RollingWindow> windows =
      RollingWindows(int64_t(ids.size()), options.max_length, options.stride);
  RollingScore sum{.num_windows = int64_t(windows.size()), .positions = options.positions};
  for (size_t first = 0; first < windows.size(); first += kWindowsPerCall) {
    v1::ScoreRequest request;
    FillScheduling(options.scheduling, &request);
    request.set_per_token(!options.positions.empty());
    const size_t end = std::min(windows.size(), first + kWindowsPerCall);
    for (size_t i = first; i < end; ++i) *request.add_items() = MakeItem(ids, windows[i]);
    const auto on_score = [&](const v1::ContinuationScore& score) {
      on_tokens(score.num_tokens());
    };
    ASSIGN_OR_RETURN(const ScoredItems scored, RunScore(stub, request, interrupt, on_score));
    // Added in the order of the windows, so that the sum has the same bits in every run.
    for (size_t i = 0; i < scored.size(); ++i) {
      const ScoredContinuation& window = scored[i][0];
      sum.num_tokens += window.score.num_tokens();
      sum.num_bytes += window.score.num_bytes();
      sum.logprob += window.score.logprob();
      AddTokens(windows[first + i], window.tokens, &sum.positions);
    }
  }
  return sum;
}

// Bounds: measured on models with sharp attention, fp16 beside fp32 K/V.
std::string KvCachePrecisionNote(const v1::GetInfoReply& served) {
  if (served.kv_cache_dtype() == "fp32") return "";
  return StrCat(
      "note: the K/V cache is ", served.kv_cache_dtype(),
      ": log-probabilities may differ from those of fp32",
      served.kv_cache_dtype() == "fp16" ? " by up to 0.03 (0.09 with NTK scaling)" : "",
      "; `lssar-server --kv-cache-dtype fp32` (or the same flag beside --model) avoids this");
}

}  // namespace lssar::cli

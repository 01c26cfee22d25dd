// Loss of a model over token files: by row length, and over whole texts in windows.
#ifndef LSSAR_CLIENTS_CLI_EVALUATION_H_
#define LSSAR_CLIENTS_CLI_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "lssar/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

class Service;

// What the rows of one length hold together, at most.
inline constexpr int kEvaluationTokens = 32768;

// The most rows that EvaluationRow takes from the ids without an overlap: a token in two rows would
// count twice, and the standard error would be too small. At least 1.
// Source  models/training/evaluate.py, most_rows
int NumDisjointRows(int length, int64_t num_ids);

// Rows of `length` tokens: 8, or as many as fit in `num_tokens` and, disjoint, in the ids. The
// training code evaluates as many as fit in kEvaluationTokens.
// Source  models/training/evaluate.py, loss_at
int NumEvaluationRows(int length, int64_t num_ids, int num_tokens = kEvaluationTokens);

// Row `row_idx` of `num_rows` rows at equal steps: length + 1 ids, of which `length` are predicted.
// Requires  ids.size() > length
// Source    models/training/evaluate.py, evaluation_rows
std::vector<int32_t> EvaluationRow(const std::vector<int32_t>& ids, int length, int num_rows,
                                   int row_idx);

// The mean of `values`, and its standard error from their spread; none for one value.
struct Mean {
  double mean = 0;
  std::optional<double> standard_error;
};
Mean MeanOf(const std::vector<double>& values);

// Loss of the tokens before which the model reads `first` to `end` - 1 tokens of their row.
struct LossInBucket {
  int first = 0;
  int end = 0;
  int64_t num_tokens = 0;
  std::vector<double> row_losses = {};  // mean of each row, nats per token

  Mean Loss() const { return MeanOf(row_losses); }
};

struct LossAtLength {
  int length = 0;
  int num_rows = 0;
  int64_t num_tokens = 0;  // scored
  double loss = 0;         // mean over rows of the mean negative log-likelihood, nats per token
  std::optional<double> standard_error;  // of loss, from the spread of the rows; none for one row
  std::vector<double> row_losses;        // of each row: two checkpoints are compared row by row
  // The served context is exactly `length` tokens: the last token of each row is not scored.
  bool is_last_left_out = false;
  std::vector<LossInBucket> buckets = {};  // as LossOptions asks for them
};

// The token ids of --ids FILE or --text FILE. Requires one of the two.
// Errors  those of ReadTokenIds, ReadText and Tokenize
absl::StatusOr<std::vector<int32_t>> ReadEvaluationIds(Service* stub,
                                                       const std::optional<std::string>& ids,
                                                       const std::optional<std::string>& text,
                                                       Interrupt* interrupt);

struct LossOptions {
  std::vector<int> lengths;
  std::optional<int> num_rows;  // nullopt: NumEvaluationRows of num_tokens
  int num_tokens = kEvaluationTokens;
  SchedulingFlags scheduling;
  // Loss also by tokens read, in buckets: [1, first of these), ..., [last of these, length]. They
  // rise, and are at most the scored tokens of a row. Empty: none.
  std::vector<int> bucket_starts = {};
};

// Tokens of all rows together, of a file of `num_ids`.
int64_t NumLossTokens(const LossOptions& options, int64_t num_ids);

struct LossByLength {
  std::vector<LossAtLength> lengths;
  v1::Receipt receipt;  // of the last call
};

// `progress` advances by tokens, NumLossTokens in all; `label` begins its note.
// Errors  INVALID_ARGUMENT: a length over the served context or over the file, rows that overlap,
//         or a bucket without tokens; those of Score
absl::StatusOr<LossByLength> MeasureLossByLength(Service* stub, const v1::GetInfoReply& served,
                                                 const std::vector<int32_t>& ids,
                                                 const LossOptions& options,
                                                 const std::string& label, ProgressBar* progress,
                                                 Interrupt* interrupt);

// {"length", "num_rows", "num_tokens", "loss", "standard_error", "row_losses", "perplexity",
// "is_last_left_out"} of each; "buckets", where there are any, with {"first", "end", "num_tokens",
// "loss", "standard_error", "row_losses"} of each.
nlohmann::ordered_json ToJson(const std::vector<LossAtLength>& lengths);
// null: none.
nlohmann::ordered_json ToJson(const std::optional<double>& value);

// Ids [first, scored) are context, [scored, end) are scored.
struct RollingWindow {
  int64_t first = 0;
  int64_t scored = 0;
  int64_t end = 0;

  bool operator==(const RollingWindow&) const = default;
};

// Windows that score each id but the first exactly once. In a window the model reads at most
// `max_length` ids, so a window has at most max_length + 1 ids: the last one is only predicted.
// The first window scores all its ids but the first. Each later window scores the next `stride`
// ids, and the last window what is left, each after as many ids of context as fit.
// `stride` = `max_length` gives the windows of lm-evaluation-harness's loglikelihood_rolling.
// Requires  1 <= stride <= max_length
std::vector<RollingWindow> RollingWindows(int64_t num_ids, int max_length, int stride);

// Loss of the tokens before which the model reads `first` to `end` - 1 tokens of their window.
struct PositionRange {
  int first = 0;
  int end = 0;
  int64_t num_tokens = 0;
  double sum = 0;          // nats
  double sum_squares = 0;  // nats^2

  double Loss() const;  // mean, nats per token
  // Error of the mean, as if tokens were independent; 0 for fewer than two. Neighbours are alike,
  // so another text differs by more.
  double StandardError() const;
};

// [1, max_position] in at most `max_ranges` ranges of equal size, but for the last one.
std::vector<PositionRange> MakePositionRanges(int max_position, int max_ranges);

struct RollingScore {
  int64_t num_windows = 0;
  int64_t num_tokens = 0;  // scored
  int64_t num_bytes = 0;   // of the scored tokens' pieces
  double logprob = 0;      // sum, nats
  std::vector<PositionRange> positions = {};
};

struct RollingOptions {
  int max_length = 0;
  int stride = 0;
  SchedulingFlags scheduling;
  // Ranges to fill, as MakePositionRanges gives them; empty: no loss by position.
  std::vector<PositionRange> positions = {};
};

// Scores all of `ids` but the first. Calls on_tokens(n) when n more tokens are scored.
// Errors  those of Score
absl::StatusOr<RollingScore> RunRollingScore(Service* stub, const std::vector<int32_t>& ids,
                                             const RollingOptions& options, Interrupt* interrupt,
                                             const std::function<void(int)>& on_tokens);

// One line about the precision of log-probabilities if the K/V cache is not fp32; empty otherwise.
std::string KvCachePrecisionNote(const v1::GetInfoReply& served);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_EVALUATION_H_

#include "clients/cli/score_rows.h"

#include <cstddef>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "clients/cli/call_pipeline.h"

namespace lssar::cli {
namespace {

// A batch ends at the first of these.
constexpr size_t kRowsPerBatch = 64;
constexpr size_t kBytesPerBatch = 256 << 10;

struct Row {
  int64_t line_number = 0;
  absl::Status error;  // of the line; OK: its item is the next one of the request
};

struct RowBatch {
  v1::ScoreRequest request;
  std::vector<Row> rows;
};

using ScoredRows = std::vector<ScoredRow>;  // of the request's items

// Returns false at the end of the rows.
absl::StatusOr<bool> FillBatch(const ScoreStreamOptions& options, ScoreFileReader* reader,
                               RowBatch* batch, std::vector<int64_t>* line_numbers) {
  FillScheduling(options.scheduling, &batch->request);
  batch->request.set_per_token(options.per_token);
  if (options.per_token) batch->request.set_top_logprobs(1);
  size_t num_bytes = 0;
  while (batch->rows.size() < kRowsPerBatch && num_bytes < kBytesPerBatch) {
    absl::StatusOr<std::optional<ScoreLine>> line = reader->Next();
    if (line.ok() && !line->has_value()) return false;
    // Only a line's own error leaves the reader at a line that it has not returned before.
    const bool is_row_error = absl::IsInvalidArgument(line.status()) && !reader->IsAtEnd();
    if (!line.ok() && !is_row_error) return line.status();
    batch->rows.push_back({.line_number = reader->LineNumber(), .error = line.status()});
    line_numbers->push_back(reader->LineNumber());
    if (!line.ok()) continue;
    num_bytes += (*line)->item.ByteSizeLong();
    *batch->request.add_items() = std::move((*line)->item);
  }
  return true;
}

}  // namespace

absl::Status RunScoreRows(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                          ScoreFileReader* reader, const OnScoredRow& on_row) {
  const auto score = [&](const v1::ScoreRequest& request) {
    return RunScore(stub, request, interrupt, [](const v1::ContinuationScore&) {});
  };
  using Pipeline = CallPipeline<RowBatch, ScoredRows>;
  Pipeline::Functions functions;
  functions.fill = [&](RowBatch* batch, std::vector<int64_t>* line_numbers) {
    return FillBatch(options, reader, batch, line_numbers);
  };
  functions.call = [&](const RowBatch& batch) -> absl::StatusOr<ScoredRows> {
    ScoredRows results;
    if (batch.request.items().empty()) return results;
    auto all = score(batch.request);
    if (all.ok()) {
      for (auto& scored : *all) results.emplace_back(std::move(scored));
      return results;
    }
    if (!absl::IsInvalidArgument(all.status())) return all.status();
    // One of the items is invalid, which refuses all: score each alone.
    v1::ScoreRequest request = batch.request;
    for (const v1::ScoreItem& item : batch.request.items()) {
      request.clear_items();
      *request.add_items() = item;
      auto one = score(request);
      if (!one.ok() && !absl::IsInvalidArgument(one.status())) return one.status();
      results.push_back(one.ok() ? ScoredRow(std::move(one->front())) : one.status());
    }
    return results;
  };
  functions.on_result = [&](const RowBatch& batch, const ScoredRows& results) {
    size_t item = 0;
    for (const Row& row : batch.rows) {
      if (!row.error.ok()) {
        RETURN_IF_ERROR(on_row(row.line_number, row.error));
        continue;
      }
      const ScoredRow& result = results[item++];
      RETURN_IF_ERROR(
          on_row(row.line_number,
                 result.ok() ? result : NameLine(result.status(), "items", {row.line_number})));
    }
    return absl::OkStatus();
  };
  return Pipeline(options.max_concurrency, "items", std::move(functions), interrupt).Run();
}

}  // namespace lssar::cli

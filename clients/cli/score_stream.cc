#include "clients/cli/score_stream.h"

#include <cstddef>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "clients/cli/call_pipeline.h"

namespace lssar::cli {
namespace {

// A request ends at the first of these.
constexpr size_t kLinesPerRequest = 64;
constexpr size_t kBytesPerRequest = 256 << 10;

struct Batch {
  struct Line {
    int64_t number = 0;
    absl::Status error;  // OK: its item is the next one of the request
  };
  v1::ScoreRequest request;
  std::vector<Line> lines;
  std::vector<int64_t> item_lines;  // of the request's items
};

using Scores = std::vector<ItemScores>;  // of the request's items

// Returns false at the end of the items.
absl::StatusOr<bool> FillBatch(const ScoreStreamOptions& options, const NextScoreLine& next,
                               Batch* batch, std::vector<int64_t>* line_numbers) {
  FillScheduling(options.scheduling, &batch->request);
  batch->request.set_per_token(options.per_token);
  if (options.per_token) batch->request.set_top_logprobs(1);
  size_t num_bytes = 0;
  while (batch->lines.size() < kLinesPerRequest && num_bytes < kBytesPerRequest) {
    ASSIGN_OR_RETURN(std::optional<ScoreLine> line, next());
    if (!line.has_value()) return false;
    batch->lines.push_back({.number = line->line_number, .error = line->error});
    line_numbers->push_back(line->line_number);
    if (!line->error.ok()) continue;
    num_bytes += line->item.ByteSizeLong();
    batch->item_lines.push_back(line->line_number);
    *batch->request.add_items() = std::move(line->item);
  }
  return true;
}

absl::StatusOr<Scores> ScoreBatch(Service* stub, const Batch& batch, Interrupt* interrupt) {
  Scores results;
  if (batch.request.items().empty()) return results;
  std::map<int, absl::Status> errors;  // by item
  const auto score = [&](const v1::ScoreRequest& request) {
    return RunScore(
        stub, request, interrupt, [](const v1::ContinuationScore&) {}, nullptr, &errors);
  };
  auto all = score(batch.request);
  if (all.ok()) {
    for (auto& scored : *all) results.emplace_back(std::move(scored));
    for (const auto& [item, error] : errors) {
      results[size_t(item)] = NameLine(error, "items", batch.item_lines);
    }
    return results;
  }
  if (!absl::IsInvalidArgument(all.status())) return all.status();
  // Either each item is invalid, and the call has only the error of the first, or the engine takes
  // one of them not, or the call itself is invalid: ask for each alone. Where two get the same
  // error, which names no item, it is of the call (its priority, say): there is no need for more.
  const bool names_item = absl::StrContains(all.status().message(), "items[");
  v1::ScoreRequest request = batch.request;
  for (int i = 0; i < batch.request.items_size(); ++i) {
    request.clear_items();
    *request.add_items() = batch.request.items(i);
    auto one = score(request);
    if (!one.ok() && !absl::IsInvalidArgument(one.status())) return one.status();
    const absl::string_view message = all.status().message();
    if (i == 1 && !names_item && one.status().message() == message &&
        results[0].status().message() == message) {
      return all.status();
    }
    results.push_back(one.ok() ? ItemScores(std::move(one->front()))
                               : NameLine(one.status(), "items", {batch.item_lines[size_t(i)]}));
  }
  return results;
}

}  // namespace

absl::Status RunScoreStream(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                            const NextScoreLine& next, const OnScoredLine& on_line) {
  using Pipeline = CallPipeline<Batch, Scores>;
  Pipeline::Functions functions;
  functions.fill = [&](Batch* batch, std::vector<int64_t>* line_numbers) {
    return FillBatch(options, next, batch, line_numbers);
  };
  functions.call = [&](const Batch& batch) { return ScoreBatch(stub, batch, interrupt); };
  functions.on_result = [&](const Batch& batch, const Scores& results) {
    int item = 0;
    for (const Batch::Line& line : batch.lines) {
      if (line.error.ok()) {
        RETURN_IF_ERROR(on_line(line.number, batch.request.items(item), results[size_t(item)]));
        ++item;
      } else {
        RETURN_IF_ERROR(on_line(line.number, v1::ScoreItem(), line.error));
      }
    }
    return absl::OkStatus();
  };
  return Pipeline(options.max_concurrency, "items", std::move(functions), interrupt).Run();
}

}  // namespace lssar::cli

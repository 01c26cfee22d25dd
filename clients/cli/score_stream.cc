#include "clients/cli/score_stream.h"

#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "clients/cli/call_pipeline.h"

namespace lssar::cli {
namespace {

// A request ends at the first of these.
constexpr int kItemsPerRequest = 64;
constexpr size_t kBytesPerRequest = 256 << 10;

// Returns false at the end of the items.
absl::StatusOr<bool> FillRequest(const ScoreStreamOptions& options, const NextScoreLine& next,
                                 v1::ScoreRequest* request, std::vector<int64_t>* line_numbers) {
  FillScheduling(options.scheduling, request);
  request->set_per_token(options.per_token);
  if (options.per_token) request->set_top_logprobs(1);
  size_t num_bytes = 0;
  while (request->items_size() < kItemsPerRequest && num_bytes < kBytesPerRequest) {
    ASSIGN_OR_RETURN(std::optional<ScoreLine> line, next());
    if (!line.has_value()) return false;
    num_bytes += line->item.ByteSizeLong();
    line_numbers->push_back(line->line_number);
    *request->add_items() = std::move(line->item);
  }
  return true;
}

}  // namespace

absl::Status RunScoreStream(Service* stub, const ScoreStreamOptions& options, Interrupt* interrupt,
                            const NextScoreLine& next, const OnScoredItem& on_scored) {
  using Pipeline = CallPipeline<v1::ScoreRequest, ScoredItems>;
  Pipeline::Functions functions;
  functions.fill = [&](v1::ScoreRequest* request, std::vector<int64_t>* line_numbers) {
    return FillRequest(options, next, request, line_numbers);
  };
  functions.call = [&](const v1::ScoreRequest& request) {
    return RunScore(stub, request, interrupt, [](const v1::ContinuationScore&) {});
  };
  functions.on_result = [&](const v1::ScoreRequest& request, const ScoredItems& scored) {
    for (int i = 0; i < request.items_size(); ++i) on_scored(request.items(i), scored[size_t(i)]);
    return absl::OkStatus();
  };
  return Pipeline(options.max_concurrency, "items", std::move(functions), interrupt).Run();
}

}  // namespace lssar::cli

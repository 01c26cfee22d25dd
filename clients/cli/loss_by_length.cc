#include "clients/cli/loss_by_length.h"

#include <algorithm>

#include "clients/cli/connection.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/read_text.h"
#include "clients/cli/score_call.h"
#include "clients/cli/usage.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

absl::Status CheckLengths(const LossOptions& options, size_t num_ids, int max_model_len) {
  for (const int length : options.lengths) {
    const absl::Status status = CheckServedContext("--lengths", length, max_model_len);
    if (!status.ok()) return status;
    if (static_cast<size_t>(length) >= num_ids) {
      return absl::InvalidArgumentError(
          StrCat("--lengths: ", length, " needs more ids than the file's ", num_ids));
    }
  }
  return absl::OkStatus();
}

// Each row's first id is its context, the others are the continuation.
v1::ScoreRequest MakeRequest(const std::vector<int32_t>& ids, const LossAtLength& at,
                             const SharingFlags& sharing) {
  v1::ScoreRequest request;
  FillSharing(sharing, &request);
  for (int row_idx = 0; row_idx < at.num_rows; ++row_idx) {
    const std::vector<int32_t> row = EvaluationRow(ids, at.length, at.num_rows, row_idx);
    v1::ScoreItem* item = request.add_items();
    item->mutable_context()->mutable_tokens()->add_ids(row[0]);
    item->add_continuations()->mutable_tokens()->mutable_ids()->Add(
        row.begin() + 1, row.end() - (at.is_last_left_out ? 1 : 0));
  }
  return request;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ReadIds(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadText(path);
  if (!bytes.ok()) return bytes.status();
  if (bytes->size() % 2 != 0) {
    return absl::InvalidArgumentError(
        StrCat(path, ": ", bytes->size(), " bytes are no whole number of uint16 ids"));
  }
  std::vector<int32_t> ids(bytes->size() / 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto low = static_cast<uint8_t>((*bytes)[2 * i]);
    const auto high = static_cast<uint8_t>((*bytes)[2 * i + 1]);
    ids[i] = low | (high << 8);
  }
  return ids;
}

int NumEvaluationRows(int length) { return std::clamp(32768 / length, 1, 8); }

std::vector<int32_t> EvaluationRow(const std::vector<int32_t>& ids, int length, int num_rows,
                                   int row_idx) {
  LSSAR_CHECK(static_cast<int64_t>(ids.size()) > length && row_idx < num_rows);
  const int64_t step = (static_cast<int64_t>(ids.size()) - length - 1) / num_rows;
  const auto first = ids.begin() + row_idx * step;
  return {first, first + length + 1};
}

absl::StatusOr<std::vector<LossAtLength>> MeasureLossByLength(v1::Inference::StubInterface* stub,
                                                              const std::vector<int32_t>& ids,
                                                              const LossOptions& options,
                                                              Interrupt* interrupt) {
  const absl::StatusOr<v1::GetInfoReply> served = DescribeServer(stub);
  if (!served.ok()) return served.status();
  absl::Status status = CheckLengths(options, ids.size(), served->max_model_len());
  if (!status.ok()) return status;

  std::vector<LossAtLength> results;
  int64_t num_all_tokens = 0;
  for (const int length : options.lengths) {
    LossAtLength at;
    at.length = length;
    at.num_rows = options.num_rows.value_or(NumEvaluationRows(length));
    at.is_last_left_out = length == served->max_model_len();
    num_all_tokens += int64_t{at.num_rows} * length;
    results.push_back(at);
  }
  ProgressBar progress("scoring", num_all_tokens);
  for (LossAtLength& at : results) {
    const std::string note = StrCat("length ", at.length);
    const auto scored =
        RunScore(stub, MakeRequest(ids, at, options.sharing), interrupt,
                 [&](const v1::ContinuationScore&) { progress.Advance(at.length, note); });
    if (!scored.ok()) return scored.status();
    for (const auto& item : *scored) {
      at.num_tokens += item[0].score.num_tokens();
      at.loss -= item[0].score.logprob() / item[0].score.num_tokens() / at.num_rows;
    }
  }
  return results;
}

}  // namespace lssar::cli

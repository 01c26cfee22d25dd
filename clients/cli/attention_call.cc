#include "clients/cli/attention_call.h"

#include <algorithm>

#include "clients/cli/connection.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

bool IsOfPrompt(const v1::RowWeights& row, size_t num_tokens) {
  return row.row() >= 0 && static_cast<size_t>(row.row()) < num_tokens &&
         row.keys_size() == row.weights_size() &&
         std::ranges::all_of(row.keys(), [&](int key) { return key >= 0 && key <= row.row(); });
}

}  // namespace

absl::StatusOr<CapturedAttention> RunCapture(v1::Inference::StubInterface* stub,
                                             const v1::CaptureAttentionRequest& request,
                                             Interrupt* interrupt,
                                             const std::function<void(int)>& on_rows) {
  CapturedAttention captured;
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  const auto reader = stub->CaptureAttention(&context, request);
  v1::CaptureAttentionReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_started()) {
      captured.started = reply.started();
    } else if (reply.has_prompt()) {
      const auto& tokens = reply.prompt().tokens();
      captured.prompt.insert(captured.prompt.end(), tokens.begin(), tokens.end());
    } else if (reply.has_weights()) {
      const auto& rows = reply.weights().rows();
      captured.rows.insert(captured.rows.end(), rows.begin(), rows.end());
      on_rows(rows.size());
    } else if (reply.has_finished()) {
      captured.finished = reply.finished();
    }
  }
  absl::Status status = ToStatus(reader->Finish());
  if (!status.ok()) return status;
  for (const v1::RowWeights& row : captured.rows) {
    if (IsOfPrompt(row, captured.prompt.size())) continue;
    return absl::InternalError(
        StrCat("the server sent keys of row ", row.row(), " that are not of the prompt"));
  }
  return captured;
}

}  // namespace lssar::cli

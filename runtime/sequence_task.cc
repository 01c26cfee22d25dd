#include "runtime/sequence_task.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lssar {

void SequenceTask::TakeCached(int, std::span<const TokenScore>) {}
void SequenceTask::ReadScores(int, std::span<TokenScore>) const {}

TokenResult MakeTokenResult(const RowTarget& target, RowLogprobs* logprobs) {
  return {.id = target.id, .logprob = logprobs->target, .top = std::move(logprobs->top)};
}

absl::Status LogitsNotFinite(int position) {
  return absl::DataLossError(absl::StrCat("the model's logits at position ", position,
                                          " hold a NaN or an infinity: this request cannot go on"));
}

}  // namespace lssar

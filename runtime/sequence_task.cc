#include "runtime/sequence_task.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace lssar {

TokenResult MakeTokenResult(const RowTarget& target, RowLogprobs* logprobs) {
  return {.id = target.id, .logprob = logprobs->target, .top = std::move(logprobs->top)};
}

absl::Status LogitsNotFinite(int position) {
  return absl::DataLossError(absl::StrCat("the model's logits at position ", position,
                                          " hold a NaN or an infinity: this request cannot go on"));
}

}  // namespace lssar

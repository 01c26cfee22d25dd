#include "clients/cli/score_call.h"

#include "clients/cli/connection.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

// nullptr when the server names what was not asked for.
ScoredContinuation* Find(ScoredItems* items, int item, int continuation) {
  if (item < 0 || item >= static_cast<int>(items->size())) return nullptr;
  auto& continuations = (*items)[static_cast<size_t>(item)];
  if (continuation < 0 || continuation >= static_cast<int>(continuations.size())) return nullptr;
  return &continuations[static_cast<size_t>(continuation)];
}

}  // namespace

absl::StatusOr<ScoredItems> RunScore(v1::Inference::StubInterface* stub,
                                     const v1::ScoreRequest& request, Interrupt* interrupt,
                                     const OnScore& on_score) {
  ScoredItems items;
  int num_missing = 0;
  for (const auto& item : request.items()) {
    items.emplace_back(static_cast<size_t>(item.continuations_size()));
    num_missing += item.continuations_size();
  }
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  const auto reader = stub->Score(&context, request);
  v1::ScoreReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_tokens()) {
      const v1::ScoreTokens& block = reply.tokens();
      if (auto* found = Find(&items, block.item(), block.continuation())) {
        found->tokens.insert(found->tokens.end(), block.tokens().begin(), block.tokens().end());
      }
    } else if (reply.has_score()) {
      const v1::ContinuationScore& score = reply.score();
      if (auto* found = Find(&items, score.item(), score.continuation())) {
        found->score = score;
        --num_missing;
        on_score(score);
      }
    }
  }
  absl::Status status = ToStatus(reader->Finish());
  if (!status.ok()) return status;
  if (num_missing != 0) {
    return absl::InternalError(StrCat("the server left out ", num_missing, " scores"));
  }
  return items;
}

}  // namespace lssar::cli

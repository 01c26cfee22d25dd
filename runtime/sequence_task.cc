#include "runtime/sequence_task.h"

#include <utility>

#include "runtime/sequence.h"

namespace lssar {

void SequenceTask::TakeCached(int, std::span<const TokenScore>) {}
void SequenceTask::ReadScores(int, std::span<TokenScore>) const {}
int SequenceTask::MaxRows(const Sequence& sequence) const { return sequence.NumPending(); }

TokenResult MakeTokenResult(SampleResult* row) {
  return {.id = row->id, .logprob = row->logprob, .top = std::move(row->top)};
}

}  // namespace lssar

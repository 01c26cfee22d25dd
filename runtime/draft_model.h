// A draft model: a small checkpoint that drafts tokens for the served one.
#ifndef LSSAR_RUNTIME_DRAFT_MODEL_H_
#define LSSAR_RUNTIME_DRAFT_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/block_manager.h"
#include "runtime/engine_options.h"
#include "runtime/kv_cache.h"
#include "runtime/model_runner.h"
#include "runtime/proposer.h"
#include "runtime/sequence.h"

namespace lssar {

// The K/V type of the draft model: the served model's, or fp16 where the draft model's attention
// does not run on that. It changes what is drafted, never what is served.
DType DraftKvType(const ModelConfig& draft, DType kv_cache_dtype);

// Whether `draft` can draft for `served`: both give their token ids the same meaning.
// Errors  INVALID_ARGUMENT: the vocabularies differ in size, the tokenizers differ by their hash,
//         or one of the two has none; the message has both values
absl::Status CheckDraftCheckpoint(const Checkpoint& served, const Checkpoint& draft);

// Whether a draft model runs on the backend.
// Errors  UNIMPLEMENTED: it has its own memory (cuda); the message has its name
absl::Status CheckDraftBackend(Backend* backend);

// What the draft model keeps of a sequence of the served model.
struct DraftSequence {
  Sequence* target = nullptr;
  Sequence sequence;  // the same tokens, with K and V of the draft model
  int num_reserved_pages = 0;
  int num_unverified = 0;  // computed draft tokens after the sequence's
  bool is_broken = false;  // its logits were not finite: no more drafts
  // Set in each step.
  int num_tokens = 0;  // to compute next
  int num_wanted = 0;  // draft tokens; 0: the sequence only catches up
};

// Drafts for all sequences of a step together: k draft tokens are k forwards of the draft model
// (BlockManager and ModelRunner as the served model has them), each over all sequences. A draft
// token is sampled as the served model samples it: with the request's params, seed and position.
//
// Catching up. The draft model computes the tokens of a sequence when it drafts for it: usually the
// one or two since its last draft. A sequence that lacks more, such as a prompt, catches up in
// chunks of about as much work as EngineOptions::chunked_prefill_size tokens of the served model,
// and is drafted for afterwards. All of that is bounded by what drafts bring: each accepted token
// pays for some tokens of catching up, each decode for a few.
//
// Pages. The pool has as many pages as the served model's. A sequence is drafted for if the pages
// of its whole length can be reserved; otherwise it runs without drafts. Prompts share pages
// through a prefix cache of its own.
//
// Failures. A failed forward ends the drafts of the step, logits that are not finite those of the
// sequence; requests are not affected. After limits::kMaxFailedSteps failed forwards in a row
// nothing is drafted any more.
class DraftModel : public Proposer {
 public:
  // `num_pages`: of the pool. `draft` and `backend` must outlive the result.
  // Errors  those of CheckDraftCheckpoint and CheckDraftBackend; INVALID_ARGUMENT:
  //         max_num_batched_tokens is over the checkpoint's; RESOURCE_EXHAUSTED: the pool takes
  //         over half of the available memory
  static absl::StatusOr<std::unique_ptr<DraftModel>> Create(Checkpoint* draft,
                                                            const Checkpoint& served, int num_pages,
                                                            const EngineOptions& options,
                                                            Backend* backend);

  void BeginStep(int num_decodes) override;
  bool Propose(std::span<const DraftRequest> requests) override;
  void OnVerified(int num_accepted, Sequence* target) override;
  void Free(Sequence* target) override;

  const Checkpoint& Model() const { return checkpoint_; }
  const KvLayout& Layout() const { return blocks_.Layout(); }
  int NumPages() const { return blocks_.Layout().num_pages; }
  // Free and cached pages.
  int NumAvailablePages() const { return blocks_.NumAvailable(); }
  // Since the start.
  int64_t NumBatchedTokens() const { return runner_.Totals().num_batched_tokens; }
  // Forwards that failed, and sequences whose logits were not finite.
  int64_t NumFailures() const { return num_failures_; }
  int64_t NumLayersBegun() const { return runner_.NumLayersBegun(); }  // threads: any

 private:
  DraftModel(Checkpoint* draft, const Checkpoint& served, std::unique_ptr<KvCache> kv_cache,
             const EngineOptions& options);

  // The state of a sequence with all of its tokens. Null: it is not drafted for.
  DraftSequence* Find(const DraftRequest& request);
  DraftSequence* Start(const DraftRequest& request);
  // Chooses the tokens of the first forward, in drafting_. False: sequences catch up.
  bool ScheduleFirst(std::span<const DraftRequest> requests);
  // Adds the first pending tokens of a sequence, at most `max_tokens`. Their number.
  int Schedule(DraftSequence* draft, int max_tokens);
  // One forward: computes and samples num_tokens of each sequence in drafting_. False: it failed.
  bool RunForward();
  // Only tokens of the target are left, and those that it may accept are counted.
  void EndDraft(DraftSequence* draft);
  void FreePages(DraftSequence* draft);

  const Checkpoint& checkpoint_;
  const std::unique_ptr<KvCache> kv_cache_;
  BlockManager blocks_;
  ModelRunner runner_;
  const int max_num_batched_tokens_;
  // Tokens of the served model that take as long as one of this model, by their parameters.
  const double tokens_per_target_token_;
  const int max_catch_up_tokens_;  // in a step
  const double max_credit_;        // a full context
  double credit_;                  // tokens of catching up that drafts have paid for
  int num_reserved_pages_ = 0;
  int num_failed_in_row_ = 0;
  int64_t num_failures_ = 0;

  // State of the step; members to reuse their memory.
  SequenceGroup group_;  // of scheduled_: the draft model's own attention
  std::vector<DraftSequence*> drafting_;
  std::vector<DraftSequence*> touched_;  // in this step
  std::vector<DraftSequence*> behind_;   // sequences that catch up
  std::vector<ScheduledSequence> scheduled_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_DRAFT_MODEL_H_

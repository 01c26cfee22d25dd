#include "runtime/draft_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/page_pool.h"
#include "runtime/limits.h"

namespace lssar {
namespace {

// A sequence that lacks more tokens catches up before it is drafted for. After a step in which
// nothing was drafted, it lacks one token more.
constexpr int kFewTokens = 8;

// A token of catching up takes about 1/8 of the time of a decode of the same model: a prefill reads
// the weights once for many tokens. So an accepted token pays for 2 of them, which is a quarter of
// a decode; a decode pays for 1/32, which is 0.4% of its time. Both times the ratio of the models'
// sizes.
constexpr double kCreditPerAccepted = 2;
constexpr double kCreditPerDecode = 1.0 / 32;
// At first, for drafts to show what they bring: the time of 32 decodes.
constexpr double kFirstCredit = 256;

std::string TokenizerOf(const Checkpoint& checkpoint) {
  return checkpoint.tokenizer == nullptr ? "none" : std::string(checkpoint.tokenizer->Hash());
}

double SizeRatio(const Checkpoint& served, const Checkpoint& draft) {
  if (served.num_parameters == 0 || draft.num_parameters == 0) return 1;
  return double(served.num_parameters) / double(draft.num_parameters);
}

// Samples one token at the end of the draft as the target's task would.
class DraftTask final : public SequenceTask {
 public:
  explicit DraftTask(Sequence* target) : target_(*target) {}

  bool NeedsLogits(const Sequence& sequence, int position) const override {
    return position + 1 == int(sequence.tokens.size());
  }
  int FirstLogitsPosition(const Sequence& sequence) const override {
    return int(sequence.tokens.size()) - 1;
  }
  bool IsStreaming() const override { return false; }

  SampleRequest MakeSampleRequest(const Sequence&, int position) override {
    SampleRequest request = target_.task->MakeSampleRequest(target_, position);
    request.num_logprobs = -1;
    return request;
  }
  void OnSampleResult(int, SampleResult* result) override { sampled_ = result->id; }
  void Advance(Sequence* sequence) override {
    if (!sampled_) return;
    sequence->tokens.push_back(*sampled_);
    target_.draft.push_back(*sampled_);
    sampled_.reset();
  }
  void Publish(OutputSink*) override {}

  bool IsDone() const override { return false; }
  int NumGenerated() const override { return 0; }

 private:
  Sequence& target_;
  std::optional<int32_t> sampled_;
};

// The pool of `num_pages` pages.
absl::StatusOr<std::unique_ptr<KvCache>> MakePool(const ModelConfig& config, int num_pages,
                                                  EngineOptions options, Backend* backend) {
  RETURN_IF_ERROR(CheckDraftBackend(backend));
  options.kv_cache_dtype = DraftKvType(config, options.kv_cache_dtype);
  KvLayout layout = LayoutOf(config, options.kv_cache_dtype, options.page_size);
  RETURN_IF_ERROR(backend->FitLayout(layout));
  options.kv_cache_bytes = num_pages * int64_t(layout.PageBytes());
  const std::optional<int64_t> available = AvailableMemoryBytes();
  if (available && options.kv_cache_bytes > *available / 2) {
    return absl::ResourceExhaustedError(StrCat("the draft model's K and V need ", num_pages,
                                               " pages, as many as the served model's"
                                               ": ",
                                               options.kv_cache_bytes,
                                               " bytes, over half of the available ", *available,
                                               "; lower kv_cache_bytes"));
  }
  return KvCache::Create(config, options, backend);
}

}  // namespace

DType DraftKvType(const ModelConfig& draft, DType kv_cache_dtype) {
  return CheckKvType(draft, kv_cache_dtype).ok() ? kv_cache_dtype : DType::kF16;
}

absl::Status CheckDraftCheckpoint(const Checkpoint& served, const Checkpoint& draft) {
  if (draft.config.vocab_size != served.config.vocab_size) {
    return absl::InvalidArgumentError(StrCat("the draft model has a vocabulary of ",
                                             draft.config.vocab_size, " ids, the served model of ",
                                             served.config.vocab_size, "; they must be equal"));
  }
  if (TokenizerOf(draft) != TokenizerOf(served)) {
    return absl::InvalidArgumentError(StrCat("the draft model's tokenizer has the hash ",
                                             TokenizerOf(draft), ", the served model's ",
                                             TokenizerOf(served), "; they must be equal"));
  }
  return absl::OkStatus();
}

absl::Status CheckDraftBackend(Backend* backend) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> device_bytes, backend->FreeBytes());
  if (!device_bytes) return absl::OkStatus();
  return absl::UnimplementedError(
      StrCat("the device ", backend->Name(), " runs no draft model; cpu and reference do"));
}

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Create(Checkpoint* draft,
                                                               const Checkpoint& served,
                                                               int num_pages,
                                                               const EngineOptions& options,
                                                               Backend* backend) {
  RETURN_IF_ERROR(CheckDraftCheckpoint(served, *draft));
  if (options.max_num_batched_tokens > draft->max_num_batched_tokens) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens = ", options.max_num_batched_tokens, " is over the ",
               draft->max_num_batched_tokens, " tokens that the draft model was loaded for"));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<KvCache> kv_cache,
                   MakePool(draft->config, num_pages, options, backend));
  return std::unique_ptr<DraftModel>(new DraftModel(draft, served, std::move(kv_cache), options));
}

DraftModel::DraftModel(Checkpoint* draft, const Checkpoint& served,
                       std::unique_ptr<KvCache> kv_cache, const EngineOptions& options)
    : checkpoint_(*draft),
      kv_cache_(std::move(kv_cache)),
      blocks_(kv_cache_.get()),
      runner_(draft->model.get(), kv_cache_->View(), /*attention_sample_interval=*/0),
      max_num_batched_tokens_(options.max_num_batched_tokens),
      tokens_per_target_token_(SizeRatio(served, *draft)),
      max_catch_up_tokens_(int(std::clamp(options.chunked_prefill_size * tokens_per_target_token_,
                                          1.0, double(options.max_num_batched_tokens)))),
      max_credit_(std::max(options.max_model_len, max_catch_up_tokens_)),
      credit_(std::min(kFirstCredit * tokens_per_target_token_, max_credit_)) {}

void DraftModel::BeginStep(int num_decodes) {
  credit_ =
      std::min(max_credit_, credit_ + num_decodes * kCreditPerDecode * tokens_per_target_token_);
}

bool DraftModel::Propose(std::span<const DraftRequest> requests) {
  if (num_failed_in_row_ == limits::kMaxFailedSteps) return true;
  const bool only_drafts = ScheduleFirst(requests);
  while (!drafting_.empty() && RunForward()) {
    std::erase_if(drafting_, [](const DraftSequence* draft) {
      return draft->is_broken || int(draft->target->draft.size()) >= draft->num_wanted;
    });
    for (DraftSequence* const draft : drafting_) draft->num_tokens = 1;
  }
  for (DraftSequence* const draft : touched_) EndDraft(draft);
  return only_drafts;
}

DraftSequence* DraftModel::Find(const DraftRequest& request) {
  Sequence& target = *request.sequence;
  DraftSequence* draft = target.draft_state->draft_sequence.get();
  if (draft == nullptr) draft = Start(request);
  if (draft == nullptr || draft->is_broken) return nullptr;
  std::vector<int32_t>& tokens = draft->sequence.tokens;
  tokens.insert(tokens.end(), target.tokens.begin() + std::ssize(tokens), target.tokens.end());
  draft->num_wanted = request.num_tokens;
  draft->num_unverified = 0;
  return draft;
}

DraftSequence* DraftModel::Start(const DraftRequest& request) {
  const int num_tokens = request.group->required.num_tokens;
  const int num_pages = Layout().PagesFor(num_tokens);
  if (num_reserved_pages_ + num_pages > NumPages()) return nullptr;
  num_reserved_pages_ += num_pages;
  Sequence& target = *request.sequence;
  auto draft = std::make_unique<DraftSequence>();
  draft->target = &target;
  draft->num_reserved_pages = num_pages;
  Sequence& sequence = draft->sequence;
  sequence.tokens.reserve(size_t(num_tokens));
  sequence.pages.reserve(size_t(num_pages));
  sequence.rope_base = RopeBase(checkpoint_.config, request.group->required.num_read_tokens);
  if (target.prefix_root) {
    sequence.prefix_root =
        PrefixRoot{.rope_base = sequence.rope_base, .salt = target.prefix_root->salt};
  }
  sequence.task = std::make_unique<DraftTask>(&target);
  return (target.draft_state->draft_sequence = std::move(draft)).get();
}

bool DraftModel::ScheduleFirst(std::span<const DraftRequest> requests) {
  drafting_.clear();
  touched_.clear();
  behind_.clear();
  int num_left = max_num_batched_tokens_;
  for (const DraftRequest& request : requests) {
    DraftSequence* const draft = Find(request);
    if (draft == nullptr) continue;
    Sequence& sequence = draft->sequence;
    if (sequence.NumPendingTokens() > kFewTokens &&
        sequence.num_computed_tokens % Layout().page_size == 0) {
      blocks_.MatchPrefix(&sequence);
    }
    if (sequence.NumPendingTokens() > kFewTokens) {
      behind_.push_back(draft);
    } else {
      num_left -= Schedule(draft, num_left);
    }
  }
  // A forward of a few tokens takes as long as one of many, so the credit is saved for a chunk.
  if (credit_ < max_catch_up_tokens_) return true;
  num_left = std::min(num_left, max_catch_up_tokens_);
  bool catches_up = false;
  for (DraftSequence* const draft : behind_) {
    draft->num_wanted = 0;
    const int num_tokens = Schedule(draft, num_left);
    num_left -= num_tokens;
    credit_ -= num_tokens;
    catches_up |= num_tokens > 0;
  }
  return !catches_up;
}

int DraftModel::Schedule(DraftSequence* draft, int max_tokens) {
  Sequence& sequence = draft->sequence;
  draft->num_tokens = std::min(sequence.NumPendingTokens(), max_tokens);
  if (draft->num_tokens == 0) return 0;
  if (draft->num_tokens < sequence.NumPendingTokens()) draft->num_wanted = 0;
  // The last draft token is sampled and not computed.
  const int num_computed = sequence.num_computed_tokens + draft->num_tokens;
  if (!blocks_.AllocateFor(&sequence, num_computed + std::max(0, draft->num_wanted - 1))) return 0;
  drafting_.push_back(draft);
  touched_.push_back(draft);
  return draft->num_tokens;
}

bool DraftModel::RunForward() {
  scheduled_.clear();
  for (DraftSequence* const draft : drafting_) {
    scheduled_.push_back(
        {.group = &group_, .sequence = &draft->sequence, .num_tokens = draft->num_tokens});
  }
  runner_.PrepareBatch(scheduled_);
  const absl::Status forward = runner_.Forward();
  if (!runner_.Sample(forward, scheduled_).ok()) {
    ++num_failures_;
    ++num_failed_in_row_;
    return false;
  }
  num_failed_in_row_ = 0;
  for (size_t i = 0; i < drafting_.size(); ++i) {
    DraftSequence& draft = *drafting_[i];
    if (scheduled_[i].status.ok()) {
      draft.sequence.num_computed_tokens += draft.num_tokens;
      draft.sequence.task->Advance(&draft.sequence);
    } else {
      ++num_failures_;
      draft.is_broken = true;
      FreePages(&draft);
    }
  }
  return true;
}

void DraftModel::EndDraft(DraftSequence* draft) {
  if (draft->is_broken) return;
  Sequence& sequence = draft->sequence;
  const auto num_tokens = int(draft->target->tokens.size());
  sequence.tokens.resize(size_t(num_tokens));
  draft->num_unverified = std::max(0, sequence.num_computed_tokens - num_tokens);
  sequence.num_computed_tokens = std::min(sequence.num_computed_tokens, num_tokens);
  blocks_.InsertFullPages(&sequence);
}

// The target may have ended with an accepted token, which it then has not appended.
void DraftModel::OnVerified(int num_accepted, Sequence* target) {
  credit_ =
      std::min(max_credit_, credit_ + num_accepted * kCreditPerAccepted * tokens_per_target_token_);
  DraftSequence* const draft = target->draft_state->draft_sequence.get();
  if (draft == nullptr || draft->is_broken) return;
  Sequence& sequence = draft->sequence;
  std::vector<int32_t>& tokens = sequence.tokens;
  tokens.insert(tokens.end(), target->tokens.begin() + std::ssize(tokens), target->tokens.end());
  sequence.num_computed_tokens += std::min(num_accepted, draft->num_unverified);
  sequence.num_computed_tokens = std::min(sequence.num_computed_tokens, int(tokens.size()));
  draft->num_unverified = 0;
  blocks_.InsertFullPages(&sequence);
  blocks_.FreeUncomputed(&sequence);
}

void DraftModel::FreePages(DraftSequence* draft) {
  blocks_.Free(&draft->sequence);
  num_reserved_pages_ -= std::exchange(draft->num_reserved_pages, 0);
}

void DraftModel::Free(Sequence* target) {
  if (target->draft_state == nullptr || target->draft_state->draft_sequence == nullptr) return;
  FreePages(target->draft_state->draft_sequence.get());
  target->draft_state->draft_sequence.reset();
}

}  // namespace lssar

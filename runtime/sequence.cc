// What the kinds of requests differ in. A new kind is one of Request::params, a case in each switch
// here, and a SequenceTask; what one kind alone has (choices, continuations) Engine::Submit,
// Request and RequestQueue ask for by its name.
#include "runtime/sequence.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// In the order of Request::params.
enum class RequestKind { kGenerate, kScore, kCapture, kEmbed };
static_assert(std::variant_size_v<decltype(Request::params)> == size_t(RequestKind::kEmbed) + 1);

RequestKind KindOf(const Request& request) { return RequestKind(request.params.index()); }

int64_t Microseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

}  // namespace

int64_t MaxFurtherTokens(const Request& request) {
  switch (KindOf(request)) {
    case RequestKind::kGenerate: return request.Generate()->max_tokens;
    case RequestKind::kScore: return LongestContinuation(request);
    case RequestKind::kCapture:
    case RequestKind::kEmbed: return 0;
  }
  LSSAR_CHECK(false);
}

PrefixRoot PrefixRootOf(const Request& request, double rope_base) {
  return {.rope_base = rope_base, .salt = request.cache_salt, .attention = FunctionName(request)};
}

std::string DescribeLength(const Request& request) {
  const int64_t num_prompt = std::ssize(request.prompt), num_further = MaxFurtherTokens(request);
  const auto sum = [&](const char* first, const char* second) {
    return StrCat(first, num_prompt, second, num_further, " = ", num_prompt + num_further,
                  " tokens");
  };
  switch (KindOf(request)) {
    case RequestKind::kGenerate: return sum("prompt ", " + max_tokens ");
    case RequestKind::kScore: return sum("context ", " + longest continuation ");
    case RequestKind::kCapture:
    case RequestKind::kEmbed: return StrCat("prompt of ", num_prompt, " tokens");
  }
  LSSAR_CHECK(false);
}

RequiredResources RequiredResourcesOf(const Request& request, const KvLayout& layout) {
  const int num_prompt_tokens = int(request.prompt.size());
  RequiredResources required{.num_sequences = 1, .max_num_sequences = 1};
  const int64_t num_further = MaxFurtherTokens(request);
  required.num_tokens = int(num_prompt_tokens + num_further);
  required.num_read_tokens = required.num_tokens - (num_further > 0 ? 1 : 0);
  required.num_pages = required.num_initial_pages = layout.PagesFor(required.num_tokens);
  // Each sequence computes the prompt's last token itself, in a page of its own.
  required.num_shared_pages = (num_prompt_tokens - 1) / layout.page_size;
  switch (KindOf(request)) {
    case RequestKind::kGenerate:
      required.num_sequences = required.max_num_sequences = request.Generate()->num_choices;
      required.num_initial_pages = layout.PagesFor(num_prompt_tokens + 1) + 1;
      break;
    case RequestKind::kScore:
      required.max_num_sequences =
          std::min(int(request.Score()->continuations.size()), kMaxScoreSequences);
      break;
    case RequestKind::kCapture:
    case RequestKind::kEmbed: break;
  }
  return required;
}

void SequenceGroup::Start(int num_sequences, const Checkpoint& checkpoint, bool use_prefix_cache) {
  sequences.resize(size_t(num_sequences));
  for (Sequence& sequence : sequences) {
    sequence.rope_base = RopeBase(checkpoint.config, required.num_read_tokens);
    if (use_prefix_cache) {
      sequence.prefix_root = PrefixRootOf(request, sequence.rope_base);
    }
    if (&sequence != &sequences[0]) sequence.state = SequenceState::kWaitingForPrompt;
    sequence.num_prompt_tokens = required.num_tokens;
    sequence.tokens.reserve(size_t(required.num_tokens));
    sequence.pages.reserve(size_t(required.num_pages));
    sequence.tokens = request.prompt;
  }
  switch (KindOf(request)) {
    case RequestKind::kGenerate: return AddGenerateTasks(checkpoint, this);
    case RequestKind::kScore: return AddScoreTasks(checkpoint, this);
    case RequestKind::kCapture: return AddCaptureTasks(this);
    case RequestKind::kEmbed: return AddEmbedTasks(checkpoint, this);
  }
}

absl::Status SequenceGroup::AbortStatus(Clock::time_point now) const {
  if (cancelled->load(std::memory_order_relaxed)) {
    return absl::CancelledError("the request was cancelled");
  }
  if (request.deadline && *request.deadline <= now) {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - arrival_time);
    return absl::DeadlineExceededError(
        StrCat("the request's deadline passed; it is ", age.count(), " ms old"));
  }
  return absl::OkStatus();
}

bool SequenceGroup::IsFinished() const {
  return !status.ok() ||
         std::ranges::all_of(sequences, [](const Sequence& s) { return s.IsDone(); });
}

RequestStats SequenceGroup::Stats(Clock::time_point now) const {
  RequestStats stats = {.num_prompt_tokens = int(NumPromptTokens(request)),
                        .num_cached_tokens = num_cached_tokens,
                        .num_preemptions = num_preemptions,
                        .num_draft_tokens = num_draft_tokens,
                        .num_accepted_tokens = num_accepted_tokens,
                        .queue_us = Microseconds(admitted_at.value_or(now) - arrival_time)};
  if (!admitted_at) return stats;
  const Clock::time_point prefill_end = prefilled_at.value_or(now);
  stats.prefill_us = Microseconds(prefill_end - *admitted_at);
  stats.decode_us = Microseconds(now - prefill_end);
  for (const Sequence& sequence : sequences) {
    stats.num_generated_tokens += sequence.task->NumGenerated();
    stats.attention += sequence.attention;
  }
  return stats;
}

void SequenceTask::OnCachedScores(int, std::span<const TokenScore>) {}
bool SequenceTask::NeedsHiddenState(const Sequence&, int) const { return false; }
void SequenceTask::OnHiddenState(int, std::span<const float>) {}
void SequenceTask::OnLogits(int, std::span<const float>) {}
void SequenceTask::GetScores(int, std::span<TokenScore>) const {}
int SequenceTask::MaxTokensInStep(const Sequence& sequence) const {
  return sequence.NumPendingTokens();
}

TokenResult MakeTokenResult(SampleResult* result) {
  return {.id = result->id, .logprob = result->logprob, .top = std::move(result->top)};
}

}  // namespace lssar

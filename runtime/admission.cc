#include "runtime/admission.h"

#include <algorithm>
#include <string>

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

// Tokens that may follow the prompt.
int64_t MaxFurtherTokens(const Request& request) {
  if (request.generate) return request.generate->max_tokens;
  if (request.capture) return 0;
  size_t longest = 0;
  for (const auto& continuation : request.score->continuations) {
    longest = std::max(longest, continuation.size());
  }
  return int64_t(longest);
}

std::string LengthArithmetic(const Request& request) {
  if (request.capture) return StrCat("prompt of ", request.prompt.size(), " tokens");
  const int64_t further = MaxFurtherTokens(request);
  return StrCat(request.generate ? "prompt " : "context ", request.prompt.size(),
                request.generate ? " + max_tokens " : " + longest continuation ", further, " = ",
                int64_t(request.prompt.size()) + further, " tokens");
}

}  // namespace

Demand DemandOf(const Request& request, const KvLayout& layout) {
  const int num_tokens = int(int64_t(request.prompt.size()) + MaxFurtherTokens(request));
  // Each sequence computes the prompt's last row for itself, in a page of its own.
  const int num_shared_tokens = int(request.prompt.size()) - 1;
  const int num_sequences = request.generate ? request.generate->num_choices : 1;
  return {.num_sequences = num_sequences,
          .max_num_seqs = request.score
                              ? std::min(int(request.score->continuations.size()), kMaxSideBySide)
                              : num_sequences,
          .num_tokens = num_tokens,
          .num_pages = layout.PagesFor(num_tokens),
          .num_shared_pages = num_shared_tokens / layout.page_size};
}

int64_t MaxQueuedTokens(const EngineOptions& options) {
  constexpr int64_t kDefaultFullContexts = 16;
  if (options.max_queued_tokens > 0) return options.max_queued_tokens;
  return kDefaultFullContexts * options.max_model_len;
}

int MaxRunning(const EngineOptions& options) {
  return std::min(options.max_num_seqs, options.max_num_batched_tokens);
}

absl::Status CheckFits(const Request& request, const EngineOptions& options,
                       const KvLayout& layout) {
  LSSAR_CHECK(int{request.generate.has_value()} + int{request.score.has_value()} +
                  int{request.capture.has_value()} ==
              1);
  LSSAR_CHECK(!request.prompt.empty());
  if (int64_t(request.prompt.size()) + MaxFurtherTokens(request) > options.max_model_len) {
    return absl::InvalidArgumentError(
        StrCat(LengthArithmetic(request), ", over max_model_len = ", options.max_model_len));
  }
  const Demand demand = DemandOf(request, layout);
  if (demand.num_sequences > MaxRunning(options)) {
    return absl::InvalidArgumentError(
        StrCat("n = ", demand.num_sequences, " choices run together, and at most ",
               MaxRunning(options), " sequences do (max_num_seqs = ", options.max_num_seqs,
               ", max_num_batched_tokens = ", options.max_num_batched_tokens, ")"));
  }
  if (demand.TotalPages() > layout.num_pages) {
    return absl::InvalidArgumentError(
        StrCat(LengthArithmetic(request), " need ", demand.num_pages, " pages of ",
               layout.page_size, " tokens, of which choices share ", demand.num_shared_pages, "; ",
               demand.num_shared_pages, " + ", demand.num_sequences, " x ", demand.NumOwnPages(),
               " = ", demand.TotalPages(), " pages, and the pool has ", layout.num_pages));
  }
  return absl::OkStatus();
}

}  // namespace lssar

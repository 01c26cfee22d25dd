// Which ids a choice may sample next, where its text must fit a grammar.
#ifndef LSSAR_RUNTIME_TOKEN_MASKS_H_
#define LSSAR_RUNTIME_TOKEN_MASKS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/sampling.h"
#include "models/text/grammar.h"
#include "runtime/request.h"

namespace lssar {

// A mask is a function of the grammar, the tokens before it and the sampling params, so drafts do
// not change what is sampled.
//
// Threads   one at a time
class TokenMasks {
 public:
  // `ending_ids`: may come where the text fits.
  TokenMasks(std::shared_ptr<const Grammar> grammar, int num_ids, std::vector<int32_t> ending_ids)
      : grammar_(std::move(grammar)),
        num_ids_(num_ids),
        ending_ids_(std::move(ending_ids)),
        matcher_(grammar_->NewMatcher()) {}

  struct Mask {
    std::vector<uint32_t> words;         // of SampleRequest
    std::optional<FinishReason> finish;  // set: no id may come, and the text ends with it
  };
  // The mask of the next id behind `output`, the tokens that were accepted, and `draft`.
  // `may_end`: ending ids may come. `params` says which ids may not, too.
  // Ensures  the result is valid until Accept, or a call with a draft that does not begin with it.
  //          Behind a draft that does not fit it is empty, and unused
  const Mask& After(std::span<const int32_t> output, std::span<const int32_t> draft, bool may_end,
                    const SamplingParams& params);

  // Why the text ends behind that many tokens of the draft, where After found that it does.
  std::optional<FinishReason> FinishAfter(size_t num_draft) const {
    const bool is_known = num_draft < masks_.size() && masks_[num_draft] != nullptr;
    return is_known ? masks_[num_draft]->finish : std::nullopt;
  }

  // The token behind the accepted ones.
  void Accept(int32_t id);

 private:
  // The matcher has `output` and `draft` behind it. False: they do not fit.
  // Errors  the matcher's
  absl::StatusOr<bool> Match(std::span<const int32_t> output, std::span<const int32_t> draft);
  Mask MakeMask(std::span<const int32_t> output, std::span<const int32_t> draft, bool may_end,
                const SamplingParams& params);

  const std::shared_ptr<const Grammar> grammar_;
  const int num_ids_;
  const std::vector<int32_t> ending_ids_;
  std::unique_ptr<GrammarMatcher> matcher_;  // null: it had an error; to be made again
  std::vector<int32_t> draft_;  // the tokens that the matcher has behind the accepted ones
  // Element i: behind i tokens of the draft that was asked for last.
  std::vector<std::unique_ptr<const Mask>> masks_;
  std::vector<int32_t> masked_draft_;
  std::vector<uint32_t> left_;  // a member to reuse its memory
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_TOKEN_MASKS_H_

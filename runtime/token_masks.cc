#include "runtime/token_masks.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace lssar {
namespace {

void Clear(int32_t id, std::vector<uint32_t>* mask) {
  if (size_t(id) / 32 < mask->size()) (*mask)[size_t(id) / 32] &= ~(uint32_t{1} << (id % 32));
}

// `left`: memory for a copy of the mask.
bool LeavesId(const std::vector<uint32_t>& mask, const SamplingParams& params,
              std::vector<uint32_t>* left) {
  const auto any = [](const std::vector<uint32_t>& words) {
    return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
  };
  if (params.banned_ids.empty() && params.allowed_ids.empty()) return any(mask);
  *left = mask;
  for (const int32_t id : params.banned_ids) Clear(id, left);
  if (params.allowed_ids.empty()) return any(*left);
  return std::ranges::any_of(params.allowed_ids, [left](int32_t id) {
    return size_t(id) / 32 < left->size() && MaskHas(*left, size_t(id));
  });
}

size_t NumEqual(std::span<const int32_t> a, std::span<const int32_t> b) {
  return size_t(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

const TokenMasks::Mask& TokenMasks::After(std::span<const int32_t> output,
                                          std::span<const int32_t> draft, bool may_end,
                                          const SamplingParams& params) {
  // Masks behind another draft are void. A shorter one leaves those of the longer.
  const size_t num_equal = NumEqual(masked_draft_, draft);
  if (num_equal < std::min(masked_draft_.size(), draft.size())) {
    masks_.resize(std::min(masks_.size(), num_equal + 1));
    masked_draft_.resize(num_equal);
  }
  if (draft.size() > masked_draft_.size()) masked_draft_.assign(draft.begin(), draft.end());
  if (masks_.size() <= draft.size()) masks_.resize(draft.size() + 1);
  std::unique_ptr<const Mask>& mask = masks_[draft.size()];
  if (mask == nullptr) mask = std::make_unique<Mask>(MakeMask(output, draft, may_end, params));
  return *mask;
}

TokenMasks::Mask TokenMasks::MakeMask(std::span<const int32_t> output,
                                      std::span<const int32_t> draft, bool may_end,
                                      const SamplingParams& params) {
  Mask mask;
  const absl::StatusOr<bool> fits = Match(output, draft);
  if (fits.ok() && !*fits) return mask;
  absl::Status status = fits.status();
  if (status.ok()) {
    mask.words.resize(NumMaskWords(size_t(num_ids_)));
    status = matcher_->FillMask(mask.words);
  }
  if (!status.ok()) {
    matcher_.reset();
    return {.words = {}, .finish = FinishReason::kDeadEnd};
  }
  const bool is_complete = matcher_->IsComplete();
  // They end the text also where the grammar has them as a part of it.
  for (const int32_t id : ending_ids_) {
    if (id >= num_ids_) continue;
    uint32_t& word = mask.words[size_t(id) / 32];
    const uint32_t bit = uint32_t{1} << (id % 32);
    word = is_complete && may_end ? word | bit : word & ~bit;
  }
  if (LeavesId(mask.words, params, &left_)) return mask;
  return {.words = {}, .finish = is_complete ? FinishReason::kComplete : FinishReason::kDeadEnd};
}

absl::StatusOr<bool> TokenMasks::Match(std::span<const int32_t> output,
                                       std::span<const int32_t> draft) {
  if (matcher_ == nullptr) {
    auto matcher = grammar_->NewMatcher();
    for (const int32_t id : output) {
      ASSIGN_OR_RETURN(const bool fits, matcher->Accept(id));
      if (!fits) return absl::InternalError("a sampled token does not fit the grammar");
    }
    matcher_ = std::move(matcher);
    draft_.clear();
  }
  const size_t num_equal = NumEqual(draft_, draft);
  if (num_equal < draft_.size()) matcher_->Rollback(int(draft_.size() - num_equal));
  draft_.resize(num_equal);
  for (const int32_t id : draft.subspan(num_equal)) {
    auto fits = matcher_->Accept(id);
    if (!fits.ok() || !*fits) return fits;
    draft_.push_back(id);
  }
  return true;
}

void TokenMasks::Accept(int32_t id) {
  masks_.clear();
  masked_draft_.clear();
  if (matcher_ == nullptr) return;
  if (!draft_.empty() && draft_.front() == id) {
    draft_.erase(draft_.begin());
    return;
  }
  if (!draft_.empty()) matcher_->Rollback(int(draft_.size()));
  draft_.clear();
  const absl::StatusOr<bool> fits = matcher_->Accept(id);
  if (!fits.ok() || !*fits) matcher_.reset();  // the next mask finds the same
}

}  // namespace lssar

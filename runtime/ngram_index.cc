#include "runtime/ngram_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "runtime/prefix_cache.h"

namespace lssar {

NgramIndex::NgramIndex(int min_length, int max_length, int max_tokens)
    : min_length_(min_length),
      max_length_(max_length),
      num_indexed_(min_length),
      heads_(std::bit_ceil(size_t(max_tokens) + 1), kNone),
      previous_(size_t(max_tokens) + 1, kNone) {
  LSSAR_CHECK(1 <= min_length && min_length <= max_length);
}

int32_t* NgramIndex::Head(std::span<const int32_t> tokens, int end) {
  const std::span<const int32_t> ngram =
      tokens.subspan(size_t(end - min_length_), size_t(min_length_));
  return &heads_[PrefixCache::HashIds(0, ngram) & (heads_.size() - 1)];
}

int NgramIndex::Match(std::span<const int32_t> tokens) {
  const int end = int(tokens.size());
  if (end <= min_length_) return 0;
  for (; num_indexed_ < end; ++num_indexed_) {
    previous_[size_t(num_indexed_)] =
        std::exchange(*Head(tokens, num_indexed_), int32_t(num_indexed_));
  }
  int best_length = 0;
  int32_t at = *Head(tokens, end);
  for (int i = 0; at != kNone && i < kMaxCandidates && best_length < max_length_; ++i) {
    const int longest = std::min(max_length_, int(at));
    int length = 0;
    while (length < longest &&
           tokens[size_t(at - 1 - length)] == tokens[size_t(end - 1 - length)]) {
      ++length;
    }
    if (length > best_length) {
      best_length = length;
      match_ = at;
    }
    at = previous_[size_t(at)];
  }
  return best_length >= min_length_ ? best_length : 0;
}

void NgramIndex::AppendDraft(std::span<const int32_t> tokens, int num_draft,
                             std::vector<int32_t>* draft) const {
  const size_t num_before = draft->size();
  for (size_t from = size_t(match_); num_draft > 0; ++from, --num_draft) {
    draft->push_back(from < tokens.size() ? tokens[from]
                                          : (*draft)[num_before + from - tokens.size()]);
  }
}

}  // namespace lssar

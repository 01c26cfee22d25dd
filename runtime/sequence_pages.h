// What happens to the pages of a sequence: taken, shared, copied, given back.
#ifndef LSSAR_RUNTIME_SEQUENCE_PAGES_H_
#define LSSAR_RUNTIME_SEQUENCE_PAGES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv_cache.h"
#include "runtime/sequence.h"

namespace lssar {

// A sequence holds its pages in token order, as many as its computed tokens (and the rows about to
// run) take. The first num_sealed_pages are full and shared with whoever finds them, in the prefix
// cache or by a fork; all behind them are its own to write.
// Cost      no call takes memory once the sequence's vectors have their room
class SequencePages {
 public:
  // `kv_cache` must outlive this.
  explicit SequencePages(KvCache* kv_cache);

  // Pages for the first `num_tokens` tokens. False: they cannot be had, and none was taken.
  bool Grow(Sequence* sequence, int num_tokens);
  // The most tokens that Grow can give pages for.
  int MaxTokens(const Sequence& sequence) const;

  // Takes over from the prefix cache what it has of the tokens behind the computed ones, up to the
  // first row whose logits are wanted; where that row lies inside a page, a copy of the page.
  // False: nothing changed. Requires  the computed tokens end where a page ends, or the sequence
  // has just been rewound
  bool TakeCached(Sequence* sequence);
  // Of the pages that begin a text of `ids`, how many are in the cache and held by someone: another
  // sequence shares them without taking any from the pool.
  int NumHeld(const PrefixRoot& root, std::span<const int32_t> ids) const;

  // Full pages go into the prefix cache. Before the task looks at its results.
  void Seal(Sequence* sequence);

  // `to` begins with the first `num_tokens` tokens that `from` has computed, or, when there is no
  // page for a copy of the last, with those of the full pages before it.
  // Requires  `to` holds no pages
  void Fork(const Sequence& from, Sequence* to, int num_tokens);

  // num_computed was lowered: what lies behind it is given back.
  void Rewind(Sequence* sequence);

  // Gives all pages back; nothing is computed then.
  void Release(Sequence* sequence);

 private:
  int FullPages(int num_tokens) const { return num_tokens / page_size_; }
  std::span<const int32_t> IdsAt(std::span<const int32_t> ids, int page_idx) const;
  // The last page of `sequence` becomes a copy of `from`. False: no page; it has none then.
  bool AppendCopy(Sequence* sequence, int32_t from);
  void ReleaseFrom(Sequence* sequence, int page_idx);

  KvCache* const kv_cache_;
  const int page_size_;
  std::vector<int32_t> matched_;    // of TakeCached
  std::vector<TokenScore> scores_;  // of Seal; a page's
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_SEQUENCE_PAGES_H_

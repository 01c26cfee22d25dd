// Finds where the last tokens of a text occurred before (prompt lookup decoding).
#ifndef LSSAR_RUNTIME_NGRAM_INDEX_H_
#define LSSAR_RUNTIME_NGRAM_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

namespace lssar {

// Hash chains over the n-grams of one sequence, as in deflate: a table from the hash of the last
// `min_length` tokens to their latest position, and for each position the one before it with an
// equal hash. Token ids are compared, so a hash collision costs time and nothing else.
// Cost      O(1) for each new token and for each match: at most kMaxCandidates positions are
//           compared. Memory is allocated once: 12 bytes at most for each of `max_tokens`
// Source    prompt lookup decoding (A. Saxena, 2023); RFC 1951, section 4
class NgramIndex {
 public:
  // Positions that a match compares, the latest first.
  static constexpr int kMaxCandidates = 16;

  // Matches of `min_length` to `max_length` tokens count; `max_tokens`: of the longest text.
  // Requires  1 <= min_length <= max_length
  NgramIndex(int min_length, int max_length, int max_tokens);

  // Finds the longest match of the end of `tokens` with an earlier part of them, of equally long
  // ones the latest. Its length, at most max_length; 0: none.
  // Requires  `tokens` begins with those of the last call, and has at most max_tokens
  int Match(std::span<const int32_t> tokens);

  // Appends the `num_draft` tokens that follow the last match to `draft`. A match that overlaps the
  // end goes on with its own draft, so a loop is drafted to any length.
  // Requires  Match found a match in the same tokens
  void AppendDraft(std::span<const int32_t> tokens, int num_draft,
                   std::vector<int32_t>* draft) const;

 private:
  static constexpr int32_t kNone = -1;

  // The head of the chain of positions whose last min_length_ tokens may equal those before `end`.
  int32_t* Head(std::span<const int32_t> tokens, int end);

  const int min_length_;
  const int max_length_;
  int num_indexed_;                // positions below this one are in the chains
  int32_t match_ = kNone;          // the position after the last match
  std::vector<int32_t> heads_;     // by hash; the size is a power of two
  std::vector<int32_t> previous_;  // by position: the next candidate of the chain
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_NGRAM_INDEX_H_

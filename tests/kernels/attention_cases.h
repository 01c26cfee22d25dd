// Sequences with known q, k and v, laid into pages and run through Attention.
#ifndef LSSAR_TESTS_KERNELS_ATTENTION_CASES_H_
#define LSSAR_TESTS_KERNELS_ATTENTION_CASES_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace lssar {

enum class Content {
  kRandom,   // q and k of unit length in random directions
  kTopical,  // many keys lie near their queries, as in a trained model: sharp rows
  kZeroQ,
  kZeroK,
  kEqualK,  // one and the same key everywhere
  kNearlyEqualK,
};

// One sequence's vectors, [position][head][dim] each. Equal arguments give equal vectors. A longer
// sequence starts with the vectors of a shorter one.
struct SequenceVectors {
  SequenceVectors(int num_tokens, int heads, int dim, uint32_t seed, Content content);

  int num_tokens, num_heads, head_dim;
  std::vector<float> q, k, v;

  size_t RowFloats() const { return size_t(num_heads) * size_t(head_dim); }

  // For kinds without the scale ln(d) ln(N): the scores of unit vectors are too small for them.
  void LengthenQueries() {
    for (float& x : q) x *= 30;
  }
};

// Pages of all sequences in one pool, in scattered order. They are kept on the host; Attend copies
// them to the backend. Every element that no token wrote is NaN (int8: its scale is), above all in
// the slots past the last token.
class PagedKv {
 public:
  // num_kv_heads: only the first of each group of num_heads / num_kv_heads heads is stored. 0: all
  // heads.
  PagedKv(Backend& backend, const std::vector<const SequenceVectors*>& sequences, int page_size,
          DType dtype, int num_kv_heads = 0);

  // In the backend's memory, as it is now.
  KvView Upload() const;
  std::span<const int32_t> Pages(size_t sequence) const { return pages_[sequence]; }

  // One token's key and value of one head; `position` may lie past the last token, inside the last
  // page.
  KvRow Key(size_t sequence, int position, int head);
  KvRow Value(size_t sequence, int position, int head);

 private:
  KvBlock Block(size_t sequence, int position, int head) const;

  Backend& backend_;
  KvLayout layout_;
  std::vector<char> k_, v_;
  std::unique_ptr<Buffer> k_pool_, v_pool_;
  std::vector<std::vector<int32_t>> pages_;
};

// The layer of the pool that the cases use. The other layers stay NaN.
inline constexpr int kCaseLayer = 1;

// Rows [first, first + count) of one sequence, as one entry of a ragged batch.
struct RowRange {
  size_t sequence = 0;
  int first = 0;
  int count = 0;
};

// Attention of one batch. Returns [count][head][dim] of each range, in order.
std::vector<float> Attend(Backend& backend, const AttentionSpec& spec,
                          const std::vector<const SequenceVectors*>& sequences, const PagedKv& kv,
                          const std::vector<RowRange>& ranges,
                          std::vector<AttentionStats>* counters = nullptr,
                          const std::atomic<bool>* interrupt = nullptr);

// All rows of one sequence in one call, on its own pages.
std::vector<float> AttendAll(Backend& backend, const AttentionSpec& spec,
                             const SequenceVectors& sequence, int page_size, DType dtype);

// Every kind of the attention family; kPhi with every phi.
std::vector<AttentionSpec> FamilySpecs();

// Softmax with windows and with ALiBi.
std::vector<AttentionSpec> DistanceSpecs();

// "sigmoid_r", "phi gelu".
std::string NameOfSpec(const AttentionSpec& spec);

// True if the backend computes the kind. Fails the test if only cuda may refuse it.
bool SupportsAttention(const Backend& backend, const AttentionSpec& spec);

// The largest |v| of a sequence: the unit of Attention's tolerance.
double LargestValue(const SequenceVectors& sequence);

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_ATTENTION_CASES_H_

// Every operation that a model step is made of, as a contract. `Backend` (backend.h) runs them;
// kernels/reference is their definition in code, and every other backend is tested against it.
//
// Views do not own. Float arrays are row-major, in the memory of the backend that runs the op,
// 64-byte aligned at their start. Spans are in host memory. A violated Requires is a bug and ends
// the process; bad input is refused long before it gets here.
//
// Batch invariance: an output element's bits depend on its own row (and, for Attention, its own
// sequence's K/V) alone, not on num_rows, page_size or threads (but Backend::IsBatchInvariant).
#ifndef LSSAR_KERNELS_OPS_H_
#define LSSAR_KERNELS_OPS_H_

#include <cstdint>
#include <span>

#include "kernels/attention_spec.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "kernels/sampling.h"

namespace lssar {

class PackedMatrix;  // backend.h

// One sequence's adjacent rows in a ragged batch: row r of it stands at position
// first_position + r, and attends N = first_position + r + 1 keys.
struct SequenceSlice {
  int first_row = 0;       // in the batch
  int num_rows = 0;        // >= 1
  int first_position = 0;  // 0-based token position of first_row
  // Page ids in token order: token t lies in pages[t / page_size], slot t % page_size.
  // Covers at least first_position + num_rows tokens.
  std::span<const int32_t> pages;
};

// The rows of one step. There is no prefill or decode flag: a decode step is a sequence with one
// row.
struct RaggedBatch {
  int num_rows = 0;
  std::span<const SequenceSlice> sequences;  // first_row ascending, together covering [0, num_rows)
};

struct LayerNormView {
  const float* weight = nullptr;  // [width]; nullptr: no norm
  const float* bias = nullptr;    // [width]
  float epsilon = 1e-5f;
};

enum class Activation : uint8_t { kNone, kGeluTanh };

// out[r] = table[ids[r]].
// Shapes    out [ids.size(), width]
// Requires  0 <= id < table rows; table is a PackedMatrix of [vocab, width]
// Accuracy  exact: the widened stored value (int8: times its scale, which fp32 holds exactly)
struct EmbedArgs {
  std::span<const int32_t> ids;
  const PackedMatrix* table = nullptr;
  float* out = nullptr;
};

// out = activation(LayerNorm(x) W^T + bias) + residual.
// Shapes    x [num_rows, in], W [out_features, in] packed, bias [out_features] or null,
//           residual and out [num_rows, out_features]; residual null or any array, out itself too
// Requires  out does not alias x
// Ensures   an element is one fused multiply-add chain over k = 0..in-1 in rising order; int8: over
//           groups of k, whose sums are exact integers of x rounded to 16 bits (cpu)
// Accuracy  against reference: |d| <= 1e-5 * (sum_k |x_k w_k| + |bias| + |residual|); int8: besides
//           2^-15 max_k |x_k| sum_k |w_k|, x after its norm; more by BackendOptions::fast_gemm
struct LinearArgs {
  int num_rows = 0;
  const float* x = nullptr;
  LayerNormView norm;
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const float* residual = nullptr;
  float* out = nullptr;
};

enum class RopeLayout : uint8_t { kHalfSplit, kInterleaved };

// Rotates q and k by their row's angles, l2-normalises both when `normalize`, writes q to `q` and
// k and v to their slots of the KV pages.
// Shapes    qkv [num_rows, 3 * heads * head_dim] (q, then k, then v; head-major inside each);
//           rope [num_rows, head_dim]: head_dim/2 cosines, then head_dim/2 sines, of the row's
//           position; q [num_rows, heads, head_dim]
// Requires  pages of every row are the sequence's own; head_dim even
// Ensures   only the rows' own slots of `layer` are written
// Accuracy  q against reference: |d| <= 2e-6 when normalised; K/V: the same, rounded to the page
//           type (to nearest, ties to even). Norms that overflow or vanish when squared in fp32 are
//           right. int8: QuantizeVector of the token's k, and of its v, in each head; so
//           |d| <= max|k| / 254 + 2e-6, where max|k| / 127 is a normal number
// Source    arXiv 2104.09864 (rotary); arXiv 2501.13428 Algorithm 1 (normalisation after it)
struct RopeWriteArgs {
  const RaggedBatch* rows = nullptr;
  int layer = 0;
  const float* qkv = nullptr;
  const float* rope = nullptr;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  bool normalize = true;
  KvView kv;
  float* q = nullptr;
};

// Counts of the V rows that Weigh had to look at, over all rows, heads and calls.
struct AttentionStats {
  int64_t num_value_rows = 0;       // sum of N over (row, head)
  int64_t num_value_rows_read = 0;  // of these, how many had a weight that is not zero
};

// Causal attention of every query row over its own sequence's paged K/V (design: lssar.md).
//   Score   K once: softplus scores into scratch; row sum and maximum
//   Reduce  sum and maximum over the row's splits
//   Weigh   scratch and the V rows of non-zero weight: sums of u^p and of u^p v
// Shapes    q, out [num_rows, heads, head_dim]
// Requires  q as RopeWrite left it; K/V of every position up to each row's own already written;
//           out does not alias q; spec accepted by Backend::CheckAttention
// Ensures   keys at or beyond the row's N never reach a result: stale page tails cannot leak, not
//           even as NaN
// Accuracy  against reference over the same pages: max |d| <= 2e-5 max(1, p / 15) max|v|, 5e-4 on
//           cuda, where weights are rounded to what tensor cores take;
//           reference over fp16 pages against fp32 pages: 1e-3 max|v|; over int8 pages 1e-2 max|v|
//           in rows of more than 64 keys, some of them near q, or where p = 1; a near tie of keys
//           that is re-weighted moves by more: on random keys 0.03 max|v| at p = 3, 0.12 at 15
// Cost      K once, V rows of non-zero weight once; 4 B of scratch written and read per key
// Source    arXiv 2501.13428 Algorithm 1; x^p through (x / peak)^p (Appendix A.4 in linear space)
struct AttentionArgs {
  const RaggedBatch* rows = nullptr;
  int layer = 0;
  AttentionSpec spec;
  const float* q = nullptr;
  KvView kv;
  float* out = nullptr;
  // One element for each of rows->sequences, added to by the end of the next Synchronize; nullable.
  // A request's own counts come from here: a share of the whole step's would be a guess.
  AttentionStats* counters = nullptr;
};

// logits[i] = LayerNorm(x[row_ids[i]]) W^T.
// Shapes    x [any, width], W [vocab, width] packed, logits [row_ids.size(), vocab]
// Accuracy  as Linear
struct LogitsArgs {
  const float* x = nullptr;
  std::span<const int32_t> row_ids;
  LayerNormView norm;
  const PackedMatrix* weight = nullptr;
  float* logits = nullptr;
};

// One id of each row, drawn or given, with the log-probabilities that are asked for. Stages of a
// draw, each over what the one before left:
//   bias, allowed   score = logit + bias; an id that is banned, or not among those allowed, is out
//   repetition      a positive score of an id that occurred is divided, another multiplied
//   presence        subtracted once, frequency as many times as the output holds the id
//   temperature 0   the best score; the stages after it change nothing
//   weight          e^((score - best) / temperature)
//   top-k           the k best
//   top-p           the shortest run of best ones whose weights are at least top_p of the total
//   min-p           those with at least min_p of the best one's weight
//   draw            the first id, in rising order, at which the running sum of weights is above
//                   u times their total; u is Philox (philox.h) of seed, choice and position
// Equal scores rank by id, lowest first. Scores are kept as fp32, weights to 42 bits of the best.
// Log-probabilities are of the raw distribution: x - log(sum(exp(x))).
// Shapes    logits [rows.size(), vocab]; out of rows.size() elements, overwritten
// Requires  ids in [0, vocab); num_logprobs <= vocab and kMaxTopLogprobs; vocab <= 2^20; an id is
// left to draw from;
//           `out` stays where it is until Synchronize
// Ensures   `out` is complete after Synchronize; an id's logprob is the same bits as its entry in
//           top, whether it was drawn or given
// Accuracy  log-probabilities |d| <= 2e-6 max(1, |logprob|) against reference; the same id as
//           reference, unless a sum of weights ends within 1e-6 of itself of a limit
struct SampleArgs {
  const float* logits = nullptr;
  int vocab = 0;
  std::span<const SampleRequest> rows;
  std::span<SampleResult> out;
};

struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// Copies whole pages of K and V, every layer and head, with their scales: for a sequence that goes
// its own way in the middle of a page that others read.
// Requires  page ids of [0, num_pages); no `to` is the `from` or `to` of another
struct CopyPagesArgs {
  KvView kv;
  std::span<const PageCopy> copies;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_OPS_H_

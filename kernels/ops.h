// The contracts of the operations (ops) of a model step. A `Backend` (backend.h) runs them.
// kernels/reference defines them in code; every other backend is tested against it.
//
// Views do not own memory. Float arrays are row-major and 64-byte aligned, and lie in the memory of
// the backend that runs the op. Spans lie in host memory. A violated Requires is a bug and ends the
// process; callers reject bad input earlier.
//
// A row is a row of a matrix: one query token of the batch.
//
// Batch invariance: the bits of an output element depend only on its own row and, for Attention, on
// its own sequence's K/V. They do not depend on num_rows, page_size or threads. The exception is
// Backend::IsBatchInvariant() == false; Attention's then depend on num_rows of its own sequence.
#ifndef LSSAR_KERNELS_OPS_H_
#define LSSAR_KERNELS_OPS_H_

#include <atomic>
#include <cstdint>
#include <span>

#include "kernels/attention_spec.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"
#include "kernels/sampling.h"

namespace lssar {

class PackedMatrix;  // backend.h

// The adjacent rows of one sequence in a ragged batch. Row r of the slice is the token at position
// first_position + r and attends to N = first_position + r + 1 keys.
struct SequenceSlice {
  int first_row = 0;       // in the batch
  int num_rows = 0;        // >= 1
  int first_position = 0;  // 0-based token position of first_row
  // Page ids in token order: token t is in pages[t / page_size], slot t % page_size. Covers at
  // least first_position + num_rows tokens.
  std::span<const int32_t> pages;
};

// The rows of one step. There is no prefill or decode flag: a sequence that decodes has one row.
struct RaggedBatch {
  int num_rows = 0;
  std::span<const SequenceSlice> sequences;  // first_row ascending, together covering [0, num_rows)
};

enum class NormKind : uint8_t {
  kNone,
  kLayerNorm,  // (x - mean) / sqrt(variance + epsilon) * weight + bias
  kRmsNorm,    // x / sqrt(mean of x^2 + epsilon) * weight + bias (arXiv 1910.07467)
};

// A norm of vectors of `size` elements: of the rows of x before a multiplication, of rows on their
// own (Norm), or of one head's q or k (RopeWrite).
struct NormView {
  NormKind kind = NormKind::kNone;
  const float* weight = nullptr;  // [size]; null: ones
  const float* bias = nullptr;    // [size]; null: zeros
  float epsilon = 1e-5f;
};

enum class Activation : uint8_t {
  kNone,
  kGeluTanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
  kGeluErf,   // x / 2 (1 + erf(x / sqrt(2)))
  kRelu,      // max(0, x)
  kRelu2,     // max(0, x)^2
  kSilu,      // x / (1 + e^-x)
};

// out[r] = table[ids[r]], or table[ids[r]] + position_table[positions[r]].
// Shapes    out [ids.size(), hidden_size]; table [vocab, hidden_size] packed; positions
//           [ids.size()]; position_table [any, hidden_size], or null
// Requires  0 <= id < vocab; positions are rows of position_table
// Accuracy  exact: the stored value widened to fp32 (int8, int4: times its scale, exact in fp32);
//           with positions, one fp32 addition
struct EmbedArgs {
  std::span<const int32_t> ids;
  const PackedMatrix* table = nullptr;
  std::span<const int32_t> positions = {};
  const float* position_table = nullptr;
  float* out = nullptr;
};

// out = norm(x), or residual + scale * norm(x).
// Shapes    x, residual and out [num_rows, size]; residual may be null; x, residual and out may be
//           one array
// Requires  norm.kind is not kNone
// Accuracy  against reference: |d| <= 1e-6 (|scale * norm(x)| + |residual| + |bias|)
struct NormArgs {
  int num_rows = 0;
  int size = 0;
  const float* x = nullptr;
  NormView norm;
  float scale = 1;
  const float* residual = nullptr;
  float* out = nullptr;
};

// A GEMM with its epilogue:
//   out = residual + scale * (activation(norm(x) W^T + bias) * multiply)
// `multiply` is the other factor of a gated MLP: activation(x W_gate) goes to an array, which the
// product x W_up then multiplies.
// Shapes    M = num_rows, K = in_features, N = out_features: x [M, K], W [N, K] packed, bias [N],
//           multiply, residual and out [M, N]; bias, multiply and residual may be null, and each of
//           the last two may be out
// Requires  out does not alias x
// Ensures   cpu: an element is one fused multiply-add chain over k = 0..K-1 in rising order. int8
//           and int4: over groups of k, whose sums are exact integers of x rounded to 16 bits
// Accuracy  against reference, before activation: |d| <= 1e-5 * (sum_k |x_k w_k| + |bias|), and
//           1e-5 |residual|. int8: another 2^-15 max_k |x_k| sum_k |w_k|, x after its norm; int4:
//           1.008 times that.
//           Without batch_invariant, cuda: more. The activation (slope at most 1.13; kRelu2: twice
//           its argument), multiply and scale carry the error on
struct LinearArgs {
  int num_rows = 0;
  const float* x = nullptr;
  NormView norm;
  const PackedMatrix* weight = nullptr;
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const float* multiply = nullptr;
  float scale = 1;
  const float* residual = nullptr;
  float* out = nullptr;
};

// Which elements of a head's first r = rotary_dims form pairs: (i, i + r/2), or (2i, 2i + 1).
enum class RopeLayout : uint8_t { kHalfSplit, kInterleaved };

// The norms of each head's q and k, before or after the rotation (QK-norm).
struct QkNorm {
  NormView q = {}, k = {};  // size head_dim; both or neither of kind kNone
  bool after_rotary = false;
};

// For each head's q and k, in this order: qk_norm, unless after_rotary; rotation of the first
// rotary_dims elements by the row's angles, the others stay; qk_norm, if after_rotary; division by
// the l2 norm, if `normalize`. Writes q to `q`, and k and v to their slots of the KV pages.
// Shapes    qkv [num_rows, (num_heads + 2 num_kv_heads) * head_dim]: q, then k, then v, each
//           head-major; rope [num_rows, r], r = RotaryDims(): r/2 cosines, then r/2 sines, of the
//           row's position, all times one factor if scales_rotary; q [num_rows, num_heads,
//           head_dim]. num_kv_heads and head_dim are those of kv.layout
// Requires  num_heads is a multiple of num_kv_heads; no page is shared with another sequence;
//           head_dim and rotary_dims are even; rotary_dims <= head_dim
// Ensures   only the rows' own slots of `layer` are written
// Accuracy  q against reference: |d| <= 2e-6 if normalised; K/V: the same, rounded to the page type
//           (to nearest, ties to even). Norms whose square overflows or underflows fp32 are
//           correct. int8: QuantizeVector of the token's k, and of its v, in each head, so
//           |d| <= max|k| / 254 + 2e-6 if max|k| / 127 is a normal number. fx16:
//           QuantizeFixed of k; v in fp16
// Source    arXiv 2104.09864 (rotary); arXiv 2501.13428 Algorithm 1 (normalisation after it)
struct RopeWriteArgs {
  const RaggedBatch* rows = nullptr;
  int layer = 0;
  int num_heads = 0;  // query heads
  const float* qkv = nullptr;
  const float* rope = nullptr;
  RopeLayout rope_layout = RopeLayout::kHalfSplit;
  int rotary_dims = 0;  // 0: head_dim
  bool scales_rotary = false;
  QkNorm qk_norm = {};
  bool normalize = true;
  KvView kv;
  float* q = nullptr;

  int RotaryDims() const { return rotary_dims > 0 ? rotary_dims : kv.layout.head_dim; }
};

// Attention statistics: the V rows of Weigh, summed over rows, query heads and calls.
struct AttentionStats {
  int64_t num_value_rows = 0;       // sum of N over (row, head)
  int64_t num_value_rows_read = 0;  // those with a non-zero weight
  // cuda: (row, head) that its slow path in double computed (AttendFlat). Others leave it.
  int64_t num_flat_rows = 0;

  AttentionStats& operator+=(const AttentionStats& more) {
    num_value_rows += more.num_value_rows;
    num_value_rows_read += more.num_value_rows_read;
    num_flat_rows += more.num_flat_rows;
    return *this;
  }
};

// Causal attention of every query row over its own sequence's paged K/V, in three stages:
//   Score   reads K once; writes phi of the scores to scratch; row sum and maximum
//   Reduce  sum and maximum over the row's splits; over fx16 keys, Refine comes before it: exact
//           scores of the keys that may have a weight
//   Weigh   reads scratch and the V rows of non-zero weight; sums of u^p and of u^p v
// Query head h reads KV head h / (num_heads / num_kv_heads) (grouped-query attention).
// Shapes    q, out [num_rows, num_heads, head_dim]; num_kv_heads and head_dim are kv.layout's
// Requires  num_heads is a multiple of num_kv_heads; q as RopeWrite wrote it; K/V are written for
//           every position up to each row's own; out does not alias q; Backend::CheckAttention
//           and CheckKvType (two_planes.h) accept spec, whose steps have one power or num_heads
// Ensures   keys at or beyond the row's N never reach a result, not even as NaN: stale data in the
//           tail of a page cannot leak. A row has the bits of an op whose spec has no steps and
//           the row's own power as p
// Accuracy  against reference over the same pages: max |d| <= 2e-5 max(1, p / 15) max|v|; cuda,
//           which rounds weights to the input type of tensor cores: 5e-4; and q, in prompts, unless
//           batch-invariant: 2.5e-3. Reference over fp16 pages against fp32: 1e-3 max|v|. int8:
//           1e-2 max|v| in rows of more than 64 keys, some of them near q, or if p = 1. A near tie
//           of keys is moved by more: on random keys 0.03 max|v| at p = 3, 0.12 at p = 15
// Cost      K once, V rows of non-zero weight once; 4 B of scratch written and read per key. cpu:
//           once for all query heads of a KV head, up to 32 of them (8 at 16K keys)
// Source    arXiv 2501.13428 Algorithm 1; x^p through (x / peak)^p (Appendix A.4 in linear space)
struct AttentionArgs {
  const RaggedBatch* rows = nullptr;
  int layer = 0;
  int num_heads = 0;  // query heads
  AttentionSpec spec;
  const float* q = nullptr;
  KvView kv;
  float* out = nullptr;
  // One element per sequence of `rows`; may be null. The op adds to them before the next
  // Synchronize returns.
  AttentionStats* counters = nullptr;
  // Once it is true the op may leave out what it has not begun; `out` and `counters` then say
  // nothing. It stays true until the op has returned. Null: never. cuda and reference ignore it.
  const std::atomic<bool>* interrupt = nullptr;
};

// logits[i] = cap(norm(x[row_ids[i]]) W^T), with cap(y) = softcap * tanh(y / softcap).
// Shapes    x [any, hidden_size], W [vocab, hidden_size] packed, logits [row_ids.size(), vocab]
// Accuracy  as Linear
struct LogitsArgs {
  const float* x = nullptr;
  std::span<const int32_t> row_ids;
  NormView norm;
  const PackedMatrix* weight = nullptr;
  float softcap = 0;  // > 0; 0: no cap
  float* logits = nullptr;
};

// One token id per row of logits, drawn by SamplingParams or given, with the log-probabilities that
// the request asks for.
// Log-probabilities are of the raw distribution over all of vocab: x - log(sum(exp(x))).
// Ids from num_ids on pad the vocabulary: they are never drawn, but count in log-probabilities.
// Shapes    logits [rows.size(), vocab]; out [rows.size()], overwritten
// Requires  ids in [0, vocab); num_logprobs <= vocab and <= kMaxTopLogprobs; vocab <= 2^20; at
//           least one candidate is left for a draw; `out` stays in place until Synchronize
// Ensures   `out` is complete after Synchronize; the logprob of an id, drawn or given, has the same
//           bits as its entry in `top`
// Accuracy  log-probabilities |d| <= 2e-6 max(1, |logprob|) against reference; the same id as
//           reference, unless a sum of weights lies within 1e-6 of itself of a limit
struct SampleArgs {
  const float* logits = nullptr;
  int vocab = 0;
  int num_ids = 0;  // [1, vocab]; 0: vocab
  std::span<const SampleRequest> rows;
  std::span<SampleResult> out;

  int NumIds() const { return num_ids > 0 ? num_ids : vocab; }
};

struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
};

// Copies whole pages of K and V, every layer and head, with their scales (copy-on-write).
// Requires  page ids in [0, num_pages); no `to` is the `from` or `to` of another copy
struct CopyPagesArgs {
  KvView kv;
  std::span<const PageCopy> copies;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_OPS_H_

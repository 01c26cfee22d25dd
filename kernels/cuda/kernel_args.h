// Arguments of the kernels: plain structs, shared by host and device. Pointers are to device
// memory.
#ifndef LSSAR_KERNELS_CUDA_KERNEL_ARGS_H_
#define LSSAR_KERNELS_CUDA_KERNEL_ARGS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/attention_spec.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace lssar {

// Keys of a split, the part of a row that one warp of a decode step computes. Every sum over keys
// is a sum over splits, in order, of sums over a split. So a row's bits do not depend on the number
// of blocks that share it, nor on whether it is computed in decode or in prefill.
inline constexpr int kCudaSplitKeys = 256;

// Rows of a prefill tile, at most: many where that leaves enough tiles to fill the device. The
// choice moves work, not bits.
inline constexpr int kTileRows = 64;
inline constexpr int kWideTileRows = 128;

// One layer of the K/V pools. Strides are in bytes.
struct CudaPages {
  unsigned char* k = nullptr;
  unsigned char* v = nullptr;
  const int32_t* pages = nullptr;  // page tables of all sequences of the step
  size_t head_bytes = 0;           // from one head to the next
  size_t page_bytes = 0;           // from one page of a head to the next
  size_t value_head_bytes = 0;     // the same in the pool of V; others than K's for fx16
  size_t value_page_bytes = 0;
  int num_heads = 0;  // of K and V
  int head_dim = 0;
  int page_size = 0;
};

// The position of a batch row in its sequence.
struct CudaRow {
  int32_t position = 0;    // negative: padding, nothing is written
  int32_t first_page = 0;  // index in CudaPages::pages of its sequence's first page
};

// A row that is computed by decode attention, in every head.
struct CudaDecodeRow {
  int32_t row = 0;       // in the batch
  int32_t num_keys = 0;  // 0: padding, nothing is read or written
  int32_t first_page = 0;
  int32_t sequence = 0;
  uint64_t split_idx = 0;  // of the row's first split, in the splits of one query head
  double log_keys = 0;     // ln(num_keys)
};

// Adjacent rows of one sequence that one or two blocks of prefill attention compute, in every head.
struct CudaTile {
  int32_t first_row = 0;  // in the batch
  int32_t num_rows = 0;
  int32_t first_position = 0;
  int32_t first_page = 0;
  int32_t sequence = 0;
};

// Intermediate values of split decode.
struct CudaScratch {
  float* scores = nullptr;
  double* sums = nullptr;        // a split's sum of softplus scores
  float* maxima = nullptr;       // a split's largest score; fx16, long rows: its lower bound
  float* refined = nullptr;      // fx16: a split's largest score, from both planes
  float* partials = nullptr;     // [split][head_dim + 1]: sums of u^p v, then of u^p
  unsigned* arrivals = nullptr;  // [decode row][head]: finished blocks; zero between launches
};

struct CudaAttentionArgs {
  CudaPages pages;
  const float* q = nullptr;
  float* out = nullptr;
  int num_heads = 0;                        // query heads
  int heads_of_kv = 1;                      // query heads that share a K/V head
  int heads_of_block = 1;                   // of them that a decode block computes, at most
  unsigned long long* counters = nullptr;   // [sequence]: V rows read
  unsigned long long* flat_rows = nullptr;  // [sequence]: calls of AttendFlat; null with counters
  const CudaDecodeRow* decode_rows = nullptr;
  int num_decode_rows = 0;
  int max_splits = 0;          // of the decode rows
  int split_decode_warps = 8;  // of a block of split_decode
  const CudaTile* tiles = nullptr;
  int num_tiles = 0;
  int tile_rows = kTileRows;     // of a tile, at most: kTileRows or kWideTileRows
  bool has_wide_blocks = false;  // the device has CudaAttentionMemory::wide_prefill
  CudaScratch scratch;
  AttentionForm form = {.phi = Phi::kSoftplus, .reweights = true, .is_length_scaled = true};
  // Factor of a dot product, besides ln(N), that gives scores in units of log 2: log2(e) ln(d), or
  // log2(e) / sqrt(d) of a form that is not length-scaled.
  double score_unit = 0;
  float p = 15;
  unsigned whole_p = 15;  // p, or 0 where it has a fraction or is above 2^24
  float floor = 0;        // a u below it has a negligible power
  // Prefill and decode give a row the same bits, because prefill has two parts of q as well.
  bool is_batch_invariant = false;
  // Decode adds up values 16 survivors at a time, wherever they are, not groups of 16 adjacent keys
  // as prefill does: fewer MMAs, other last bits than prefill's.
  bool compacts_values = false;
};

// NormView with every array present.
struct CudaNorm {
  NormKind kind = NormKind::kNone;
  const float* weight = nullptr;  // null: ones
  const float* bias = nullptr;    // null: zeros
  float epsilon = 0;
};

struct CudaRopeWriteArgs {
  CudaPages pages;
  const CudaRow* rows = nullptr;
  const float* qkv = nullptr;
  const float* rope = nullptr;
  float* q = nullptr;
  int num_rows = 0;
  int num_heads = 0;    // query heads
  int rotary_dims = 0;  // of a head; even
  DType dtype = DType::kF16;
  bool half_split = true;
  CudaNorm q_norm, k_norm;
  bool norm_after_rotary = false;
  bool normalize = true;
};

// Weights [num_rows, padded_cols], rows one after the other; padding is zero. int8: a scale for
// each row and kCudaGroupCols columns, [num_rows, padded_cols / kCudaGroupCols].
struct CudaMatrix {
  const void* elements = nullptr;
  const float* scales = nullptr;
  DType dtype = DType::kF16;
  int num_rows = 0;
  int num_cols = 0;
  int padded_cols = 0;  // PaddedCols(num_cols)
};

inline constexpr int kCudaGroupCols = 64;
constexpr int PaddedCols(int num_cols) {
  return (num_cols + kCudaGroupCols - 1) / kCudaGroupCols * kCudaGroupCols;
}

// Chains that an element of a GEMM is the sum of: one for 128 columns, where that is not too many.
inline constexpr int kMaxGemmChains = 8;
constexpr int NumGemmChains(int padded_cols) {
  const int num_chains = padded_cols / kCudaGroupCols / 2;
  return num_chains < 1 ? 1 : num_chains > kMaxGemmChains ? kMaxGemmChains : num_chains;
}

// The first column of a chain: whole groups of columns. chain = NumGemmChains: the end.
constexpr int FirstColOfChain(int padded_cols, int chain) {
  const unsigned num_groups = unsigned(padded_cols / kCudaGroupCols);
  return int(num_groups * unsigned(chain) / unsigned(NumGemmChains(padded_cols))) * kCudaGroupCols;
}

// Rows of fp32 as the A operand of a GEMM (elements.cuh): two parts of 16 bits, the columns of a
// chain times a power of two. `rounds`: one part, [num_rows][padded_width]. For fp32 weights: the
// rows themselves, in fp32.
struct CudaSplitRows {
  void* parts = nullptr;     // [num_rows][padded_width / 2][part][2]
  float* inverse = nullptr;  // [num_rows][NumGemmChains]: of the power of two
};

struct CudaSplitArgs {
  const float* x = nullptr;          // [any, width]
  const int32_t* row_ids = nullptr;  // [num_rows]; null: the first num_rows
  CudaNorm norm;
  int num_rows = 0;
  int width = 0;
  int padded_width = 0;
  DType dtype = DType::kF16;  // of the weights
  bool rounds = false;        // one part, rounded to the weights' type and not scaled; not fp32
  CudaSplitRows to;
};

struct CudaLinearArgs {
  CudaSplitRows x;
  int num_rows = 0;
  CudaMatrix weight;
  const float* bias = nullptr;
  Activation activation = Activation::kNone;
  const float* multiply = nullptr;
  float scale = 1;
  const float* residual = nullptr;
  float softcap = 0;  // 0: no cap
  float* out = nullptr;
};

// Rows that a GEMM normalises and splits itself, at most: every block repeats that work.
inline constexpr int kMaxFusedRows = 4;

struct CudaFusedLinearArgs {
  CudaSplitArgs rows;     // `to` is not used
  CudaLinearArgs linear;  // `x` is not used
};

// What follows a sum, after a GEMM of a library: out = epilogue(sums).
struct CudaEpilogueArgs {
  const float* sums = nullptr;  // [num_rows, weight.num_rows]; may be linear.out
  CudaLinearArgs linear;        // `x` and weight.elements are not used
};

// int8 weights times their scales, rounded to fp16.
struct CudaWidenArgs {
  CudaMatrix weight;
  uint16_t* to = nullptr;  // [num_rows, padded_cols]
};

// NormArgs (ops.h).
struct CudaNormArgs {
  CudaSplitArgs rows;  // x, norm, num_rows and width
  float scale = 1;
  const float* residual = nullptr;
  float* out = nullptr;
};

struct CudaEmbedArgs {
  const int32_t* ids = nullptr;  // negative: a row of zeros
  int num_ids = 0;
  CudaMatrix table;
  float* out = nullptr;
};

// An id of a row, with the bits of its bias (float), its count in the output, or 0.
struct CudaSampleId {
  int32_t id = 0;
  uint32_t value = 0;
};

// Ids [first, first + count) in CudaSampleArgs::ids.
struct CudaSampleIds {
  int32_t first = 0;
  int32_t count = 0;
};

// SampleRequest (sampling.h).
struct CudaSampleRow {
  uint64_t draw = 0;          // uniform in [0, 2^64)
  uint64_t least_weight = 0;  // min-p
  float rate = 0;             // WeightRate; 0: greedy
  float top_p = 1;
  int32_t top_k = 0;
  int32_t target = -1;
  int32_t num_logprobs = -1;
  int32_t scores_row = -1;  // of CudaSampleArgs::scores; -1: the logits are the scores
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  CudaSampleIds banned, allowed, biases, counts;
  // SampleRequest::mask, two words in each id; count 0: all ids may be drawn.
  CudaSampleIds mask;
};

struct CudaTopLogprob {
  int32_t id = 0;
  float logprob = 0;
};

// SampleResult (sampling.h).
struct CudaSampledRow {
  int32_t id = 0;
  float logprob = 0;
  uint32_t num_top = 0;
  uint8_t finite = 0;
  uint8_t is_best = 0;
};

struct CudaSampleArgs {
  const float* logits = nullptr;  // [num_rows, vocab]
  int vocab = 0;
  int num_ids = 0;  // ids from it on are never drawn
  int num_rows = 0;
  const CudaSampleRow* rows = nullptr;
  const CudaSampleId* ids = nullptr;
  float* scores = nullptr;            // [scores rows, vocab]
  CudaSampledRow* sampled = nullptr;  // [num_rows]
  CudaTopLogprob* top = nullptr;      // [num_rows, max_top]
  int max_top = 0;                    // largest num_logprobs of the rows
};

// Exp2 and Log2 at whole numbers. A sum of softplus scores relies on two exact results: log2(1) is
// 0 for a product without terms, and 2^0 is 1. The others are within kProbeSlack of the result.
inline constexpr int kProbeValues = 8;
inline constexpr float kProbeSlack = 0x1p-21f;

struct CudaProbed {
  float power = 0;            // 2^whole
  float log = 0;              // log2(power)
  bool has_clusters = false;  // the device's code is compiled for them
};

struct CudaProbeArgs {
  int cluster_blocks = 1;
  size_t shared_bytes = 0;         // of a block
  CudaProbed* out = nullptr;       // [kProbeValues]
  float whole[kProbeValues] = {};  // whole numbers
  float power[kProbeValues] = {};  // 2^whole
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_KERNEL_ARGS_H_

// The layout of the paged KV cache. No other file computes where a key or a value lies.
//
// A page holds `page_size` consecutive tokens of every layer and KV head. K and V are two pools,
// so that Score streams K alone:
//
//   K  [layer][head][page][dim][slot]     dim-major (cpu): 16 keys of one dim are one vector load,
//                                         so a score is a plain multiply-add over dim with no
//                                         horizontal sum, and a page is a ready GEMM panel
//   or [layer][head][page][slot][dim]     slot-major (cuda): a tensor core's operand holds
//                                         neighbouring dims of a key, and a warp writes a key with
//                                         one store
//   V  [layer][head][page][slot][dim]     slot-major: a V row is one contiguous read (fx16: below)
//
// The pages of a head are adjacent, so a sequence with consecutive page ids is one stream per head.
// Memory delivers 40% more of it than of pages in any other order (kernels/BENCHMARKS.md).
//
// The backend that computes on the pools chooses the order of K (Backend::FitLayout).
//
// int8: an element stands for itself times the scale of its token and head. Each block of K and of
// V is followed by its page_size scales in fp32, by slot.
//
// fx16: a key's element is a 16-bit integer times the scale of its token and head, in two planes of
// an unsigned byte: 256 (high - 128) + (low - 128). The pool of K has what is read of every key: a
// block is the high plane, dim-major as [dim / 4][slot][dim % 4], where 16 keys of 4 dims are one
// vector of an instruction that multiplies bytes, and then the page_size scales. The pool of V has
// what is read of few keys: a block is [slot], a token's low plane [dim] and then its value [dim]
// in fp16, without a scale.
#ifndef LSSAR_KERNELS_KV_LAYOUT_H_
#define LSSAR_KERNELS_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace lssar {

// page_size must be a power of two in this range. The lower bound is the widest vector of floats,
// so that a key's lane is key_idx mod lanes for every page size.
inline constexpr int kMinPageSize = 16;
inline constexpr int kMaxPageSize = 256;

// fx16: the largest head_dim. The dot product of q, 16 bits, and a plane of a key, 8 bits, is a sum
// of int32.
inline constexpr int kMaxFixedHeadDim = 512;

// The largest magnitude of a 16-bit fixed-point number (fx16, and q beside it): 127 * 256, so that
// its rounded high byte is at most 127.
inline constexpr int kMaxFixed = 127 * 256;

// fx16: rows of at most this many keys take every score from both planes: their sum has too few
// terms for the errors of the high plane to cancel, and their bytes do not matter. At most a chunk
// of keys on the CPU, a split on CUDA.
inline constexpr int kShortRowKeys = 256;

// fx16: bytes behind the last block of the pool of V that the read of a whole vector may touch.
inline constexpr size_t kFixedReadAhead = 64;

enum class KeyOrder : uint8_t { kDimMajor, kSlotMajor };

// Where a (layer, head, page) begins in the pool of K and in that of V, in elements.
struct KvBlock {
  size_t k = 0;
  size_t v = 0;
};

struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int page_size = 64;
  int num_pages = 0;
  DType dtype = DType::kF16;
  KeyOrder key_order = KeyOrder::kDimMajor;

  // Bytes of one (layer, head, page) block of K, without scales.
  constexpr size_t KeyBytes() const {
    const size_t num_elements = size_t(page_size) * size_t(head_dim);
    return num_elements * (dtype == DType::kFx16 ? 1 : BytesOf(dtype));
  }

  // Elements from one block of K to the next: the block and its scales.
  constexpr size_t BlockStride() const {
    return (KeyBytes() + (HasScales() ? size_t(page_size) * sizeof(float) : 0)) / BytesOf(dtype);
  }
  // The same in the pool of V.
  constexpr size_t ValueBlockStride() const {
    return ValuesHaveScales() ? BlockStride() : size_t(page_size) * ValueStride();
  }
  // Elements of the pool of V from one token of a block to the next.
  // Requires  fx16: head_dim is even
  constexpr size_t ValueStride() const {
    return size_t(head_dim) + (dtype == DType::kFx16 ? size_t(head_dim) / 2 : 0);
  }

  // Elements from one head to the next, and from a layer's last head to the next layer's first.
  constexpr size_t HeadStride() const { return size_t(num_pages) * BlockStride(); }
  constexpr size_t ValueHeadStride() const { return size_t(num_pages) * ValueBlockStride(); }

  // Index of a block's first element in the pool of K, in elements. `head` is a KV head.
  constexpr size_t BlockIndex(int layer, int page, int head) const {
    return (size_t(layer) * size_t(num_kv_heads) + size_t(head)) * HeadStride() +
           size_t(page) * BlockStride();
  }
  // The same in the pool of V. Equal to BlockIndex for every type but fx16.
  constexpr size_t ValueBlockIndex(int layer, int page, int head) const {
    return (size_t(layer) * size_t(num_kv_heads) + size_t(head)) * ValueHeadStride() +
           size_t(page) * ValueBlockStride();
  }

  // Both.
  constexpr KvBlock Block(int layer, int page, int head) const {
    return {BlockIndex(layer, page, head), ValueBlockIndex(layer, page, head)};
  }

  // Index of an element inside its block, in elements. KeyIndex: not of fx16.
  constexpr size_t KeyIndex(int slot, int dim) const {
    return key_order == KeyOrder::kDimMajor ? size_t(dim) * size_t(page_size) + size_t(slot)
                                            : ValueIndex(slot, dim);
  }
  constexpr size_t ValueIndex(int slot, int dim) const {
    return size_t(slot + 1) * ValueStride() - size_t(head_dim) + size_t(dim);
  }

  // Bytes to an element of a plane: from the start of a block of K, and of a block of V.
  // Requires  fx16
  constexpr size_t HighIndex(int slot, int dim) const {
    if (key_order == KeyOrder::kSlotMajor) return size_t(slot) * size_t(head_dim) + size_t(dim);
    return size_t(dim / 4) * size_t(page_size) * 4 + size_t(slot) * 4 + size_t(dim % 4);
  }
  constexpr size_t LowIndex(int slot, int dim) const {
    return size_t(slot) * ValueStride() * BytesOf(dtype) + size_t(dim);
  }

  // The type of V's elements.
  constexpr DType ValueType() const { return dtype == DType::kFx16 ? DType::kF16 : dtype; }

  // True if keys have scales; if values have.
  constexpr bool HasScales() const { return dtype == DType::kI8 || dtype == DType::kFx16; }
  constexpr bool ValuesHaveScales() const { return dtype == DType::kI8; }
  // Bytes from a block's first element to the slot's scale, a float. The scales of 16 slots are one
  // cache line if head_dim is a multiple of 4.
  // Requires  the block has scales
  constexpr size_t ScaleIndex(int slot) const { return KeyBytes() + size_t(slot) * sizeof(float); }

  // Bytes of the K pool, and of the V pool.
  constexpr size_t PoolBytes() const {
    return size_t(num_layers) * size_t(num_kv_heads) * HeadStride() * BytesOf(dtype);
  }
  constexpr size_t ValuePoolBytes() const {
    return size_t(num_layers) * size_t(num_kv_heads) * ValueHeadStride() * BytesOf(dtype) +
           (dtype == DType::kFx16 ? kFixedReadAhead : 0);
  }
  // Bytes of one page in both pools together, over all layers and heads.
  constexpr size_t PageBytes() const {
    return size_t(num_layers) * size_t(num_kv_heads) * (BlockStride() + ValueBlockStride()) *
           BytesOf(dtype);
  }
  // Pages that hold `num_tokens` tokens.
  constexpr int PagesFor(int num_tokens) const { return (num_tokens + page_size - 1) / page_size; }
};

// A view of the two pools. The runtime owns them; they lie in the memory of the backend.
struct KvView {
  KvLayout layout;
  void* k = nullptr;
  void* v = nullptr;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_KV_LAYOUT_H_

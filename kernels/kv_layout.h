// Where a key or a value lies in the paged KV pool: the only place that knows.
//
// A page holds `page_size` consecutive tokens of every layer and head. K and V are two pools,
// so that Score streams K alone:
//
//   K  [layer][head][page][dim][slot]     dim-major: 16 keys of one dim are one vector load, so a
//                                         score is a plain multiply-add over dim with no
//                                         horizontal sum, and a page is a ready GEMM panel
//   or [layer][head][page][slot][dim]     slot-major: a tensor core's operand wants a key's
//                                         neighbouring dims, and a warp writes a key in one piece
//   V  [layer][head][page][slot][dim]     slot-major: a surviving V row is one contiguous read
//
// A head's pages lie side by side, so a sequence whose page ids rise by one is one stream to each
// of its heads: memory gives 40% more of it than of pages in any other order (README).
//
// The backend that runs on the pools chooses the order of K (Backend::FitLayout).
//
// An int8 element stands for itself times the scale of its token and head. Each block of K and of V
// is followed by its page_size scales in fp32, slot by slot.
#ifndef LSSAR_KERNELS_KV_LAYOUT_H_
#define LSSAR_KERNELS_KV_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace lssar {

// A page's tokens must be a power of two in this range. The lower bound is the widest vector of
// floats, so that the lane a key falls in is key_idx mod lanes whatever the page size.
inline constexpr int kMinPageSize = 16;
inline constexpr int kMaxPageSize = 256;

enum class KeyOrder : uint8_t { kDimMajor, kSlotMajor };

struct KvLayout {
  int num_layers = 0;
  int num_heads = 0;
  int head_dim = 0;
  int page_size = 64;
  int num_pages = 0;
  DType dtype = DType::kF16;
  KeyOrder key_order = KeyOrder::kDimMajor;

  // Elements of one (layer, page, head) block of K, and of V.
  constexpr size_t BlockElements() const { return size_t(page_size) * size_t(head_dim); }

  // From one block to the next, in elements: the block's scales lie between them.
  constexpr size_t BlockStride() const {
    return BlockElements() + (HasScales() ? size_t(page_size) * sizeof(float) : 0);
  }

  // From one head to the next, and from a layer's last to the next layer's first, in elements.
  constexpr size_t HeadStride() const { return size_t(num_pages) * BlockStride(); }

  // Index, in elements, of a block's first element in its pool.
  constexpr size_t BlockIndex(int layer, int page, int head) const {
    return (size_t(layer) * size_t(num_heads) + size_t(head)) * HeadStride() +
           size_t(page) * BlockStride();
  }

  // Index, in elements, inside a block.
  constexpr size_t KeyIndex(int slot, int dim) const {
    return key_order == KeyOrder::kDimMajor ? size_t(dim) * size_t(page_size) + size_t(slot)
                                            : ValueIndex(slot, dim);
  }
  constexpr size_t ValueIndex(int slot, int dim) const {
    return size_t(slot) * size_t(head_dim) + size_t(dim);
  }

  constexpr bool HasScales() const { return dtype == DType::kI8; }
  // Bytes from a block's first element to the slot's scale, a float. Requires HasScales(). The
  // scales of 16 slots are one cache line where head_dim is a multiple of 4.
  constexpr size_t ScaleIndex(int slot) const {
    return BlockElements() + size_t(slot) * sizeof(float);
  }

  // Bytes of the K pool; the V pool has as many.
  constexpr size_t PoolBytes() const {
    return size_t(num_layers) * size_t(num_heads) * HeadStride() * BytesOf(dtype);
  }
  // Bytes that one page takes in both pools together, over all layers and heads.
  constexpr size_t PageBytes() const {
    return 2 * size_t(num_layers) * size_t(num_heads) * BlockStride() * BytesOf(dtype);
  }
  // Pages that `num_tokens` tokens take.
  constexpr int PagesFor(int num_tokens) const { return (num_tokens + page_size - 1) / page_size; }
};

// The two pools. Owned by the runtime, in the memory of the backend that runs on them.
struct KvView {
  KvLayout layout;
  void* k = nullptr;
  void* v = nullptr;
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_KV_LAYOUT_H_

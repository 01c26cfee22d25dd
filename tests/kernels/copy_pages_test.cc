// CopyPages copies every byte of the pages and no other byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

std::vector<uint8_t> Bytes(Backend& backend, const void* pool, size_t num_bytes) {
  std::vector<uint8_t> bytes(num_bytes);
  EXPECT_TRUE(backend.CopyOut(bytes.data(), pool, num_bytes).ok());
  return bytes;
}

// Calls visit with the index of every byte of a page in the pool of K, or of V, by layer and head.
void ForEachByte(const KvLayout& layout, bool is_v, int page,
                 const std::function<void(size_t)>& visit) {
  const size_t element_bytes = BytesOf(layout.dtype);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      const KvBlock block = layout.Block(layer, page, head);
      const size_t first = (is_v ? block.v : block.k) * element_bytes;
      const size_t stride = is_v ? layout.ValueBlockStride() : layout.BlockStride();
      for (size_t i = 0; i < stride * element_bytes; ++i) visit(first + i);
    }
  }
}

TEST(CopyPages, CopiesThePagesAndNothingElse) {
  std::mt19937 random(3);
  for (const std::unique_ptr<Backend>& backend : AllBackends()) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kI8, DType::kFx16}) {
      const KvLayout layout{.num_layers = 3,
                            .num_kv_heads = 2,
                            .head_dim = 6,
                            .page_size = 16,
                            .num_pages = 5,
                            .dtype = dtype};
      const std::vector<PageCopy> copies = {{.from = 4, .to = 1}, {.from = 0, .to = 3}};
      KvView kv{.layout = layout};
      std::vector<std::unique_ptr<Buffer>> buffers;
      std::vector<std::vector<uint8_t>> expected;
      for (void** pool : {&kv.k, &kv.v}) {
        const bool is_v = pool == &kv.v;
        const size_t num_bytes = is_v ? layout.ValuePoolBytes() : layout.PoolBytes();
        buffers.push_back(*backend->Allocate(num_bytes));
        *pool = buffers.back()->Address();
        std::vector<uint8_t> bytes(num_bytes);
        for (uint8_t& byte : bytes) byte = uint8_t(random());
        ASSERT_TRUE(backend->CopyIn(*pool, bytes.data(), bytes.size()).ok());
        std::vector<uint8_t> copied = bytes;
        for (const PageCopy& copy : copies) {
          std::vector<uint8_t> page;
          ForEachByte(layout, is_v, copy.from, [&](size_t i) { page.push_back(bytes[i]); });
          size_t next = 0;
          ForEachByte(layout, is_v, copy.to, [&](size_t i) { copied[i] = page[next++]; });
        }
        expected.push_back(std::move(copied));
      }
      backend->CopyPages({.kv = kv, .copies = copies});
      ASSERT_TRUE(backend->Synchronize().ok());
      EXPECT_EQ(Bytes(*backend, kv.k, layout.PoolBytes()), expected[0]) << backend->Describe();
      EXPECT_EQ(Bytes(*backend, kv.v, layout.ValuePoolBytes()), expected[1]) << backend->Describe();
    }
  }
}

}  // namespace
}  // namespace lssar

#include "kernels/host_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace lssar {
namespace {

bool IsFilledWith(Buffer& buffer, uint8_t byte) {
  const uint8_t* bytes = buffer.As<uint8_t>();
  return std::all_of(bytes, bytes + buffer.NumBytes(), [byte](uint8_t b) { return b == byte; });
}

TEST(HostBufferTest, LastingBuffersAreAlignedZeroAndApart) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  // Together they exceed one mapping. The last alone exceeds the limit for a shared mapping.
  for (const size_t num_bytes :
       {size_t{1}, size_t{100}, size_t{15} << 20, size_t{7} << 20, size_t{16} << 20,
        size_t{13} << 20, size_t{15} << 20, size_t{65}, size_t{20} << 20}) {
    buffers.push_back(*AllocateLastingBuffer(num_bytes));
    EXPECT_EQ(buffers.back()->NumBytes(), num_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffers.back()->Address()) % 64, 0u);
    EXPECT_TRUE(IsFilledWith(*buffers.back(), 0)) << num_bytes;
    std::fill_n(buffers.back()->As<uint8_t>(), num_bytes, static_cast<uint8_t>(buffers.size()));
  }
  // Freeing a buffer does not change the others.
  for (size_t i = 0; i < buffers.size(); i += 2) buffers[i].reset();
  for (size_t i = 1; i < buffers.size(); i += 2) {
    EXPECT_TRUE(IsFilledWith(*buffers[i], static_cast<uint8_t>(i + 1))) << i;
  }
}

TEST(HostBufferTest, LastingBuffersOfManyThreads) {
  std::vector<std::thread> threads;
  for (uint8_t id = 1; id <= 4; ++id) {
    threads.emplace_back([id] {
      for (int round = 0; round < 20; ++round) {
        const std::unique_ptr<Buffer> buffer = *AllocateLastingBuffer(100'000);
        EXPECT_TRUE(IsFilledWith(*buffer, 0));
        std::fill_n(buffer->As<uint8_t>(), buffer->NumBytes(), id);
        EXPECT_TRUE(IsFilledWith(*buffer, id));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lssar

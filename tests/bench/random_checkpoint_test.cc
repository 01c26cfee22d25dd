#include "tests/bench/random_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/float_bits.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "tests/support/scratch_directory.h"

namespace lssar::bench {
namespace {

constexpr ModelShape kSmall = {.num_hidden_layers = 2,
                               .num_attention_heads = 4,
                               .num_kv_heads = 4,
                               .hidden_size = 128,
                               .vocab_size = 256};

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The token of the largest logit after each token of `tokens`.
std::vector<int32_t> GreedyTokens(const std::string& directory, DType dtype,
                                  const std::vector<int32_t>& tokens) {
  const auto backend = *MakeBackend({.name = "cpu", .num_threads = 1});
  Checkpoint checkpoint = *LoadCheckpoint(directory, backend.get(), {.dtype = dtype});
  const ModelConfig& config = checkpoint.config;
  const KvLayout layout = LayoutOf(config, DType::kF16, KvLayout().page_size);
  PagePool pool = *MakePagePool(layout, int(tokens.size()), backend.get());
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  AttentionStats stats;
  std::vector<int32_t> greedy;
  const absl::Status status = RunChunkedPrefill(
      {.tokens = tokens,
       .first_position = 0,
       .pages = pool.pages,
       .rope_base = config.rope_theta,
       .chunk_size = int(tokens.size()),
       .logits_positions = positions,
       .stats = &stats},
      pool.view, checkpoint.model.get(), [&](const ForwardBatch& batch) {
        const size_t vocab_size = size_t(config.vocab_size);
        std::vector<float> logits(tokens.size() * vocab_size);
        const absl::Status copied =
            checkpoint.model->CopyLogits(batch, 0, int(tokens.size()), logits);
        for (size_t row = 0; row < tokens.size(); ++row) {
          const auto of_row = std::span(logits).subspan(row * vocab_size, vocab_size);
          greedy.push_back(int32_t(std::ranges::max_element(of_row) - of_row.begin()));
        }
        return copied;
      });
  EXPECT_TRUE(status.ok()) << status;
  return greedy;
}

TEST(RandomCheckpointTest, TheGreedyTextOfACycleIsTheCycle) {
  ModelShape shape = kSmall;
  shape.cycle = 60;
  const ScratchDirectory folder;
  ASSERT_TRUE(WriteRandomCheckpoint(shape, folder.Path()).ok());
  // One and a half times round the first cycle, then round the last one, of 256 - 240 ids.
  std::vector<int32_t> tokens = {0};
  while (tokens.size() < 90) tokens.push_back(NextToken(shape, tokens.back()));
  EXPECT_EQ(tokens[60], 0);
  tokens.push_back(240);
  while (tokens.size() < 110) tokens.push_back(NextToken(shape, tokens.back()));
  EXPECT_EQ(tokens[106], 240);

  std::vector<int32_t> next;
  for (const int32_t token : tokens) next.push_back(NextToken(shape, token));
  for (const DType dtype : {DType::kF16, DType::kI8, DType::kI4})
    EXPECT_EQ(GreedyTokens(folder.Path(), dtype, tokens), next) << NameOf(dtype);
}

TEST(RandomCheckpointTest, AQ4MatrixIsWithinAStepOfItsValues) {
  const ScratchDirectory folder;
  ASSERT_TRUE(WriteRandomGguf(kSmall, GgufMatrices::kQ4, folder.Path("q4.gguf")).ok());
  const std::string file = ReadAll(folder.Path("q4.gguf"));
  // The last tensor of the file is the output matrix, the embedding's copy.
  const std::vector<float> values = ValuesOf(kSmall, TensorsOf(kSmall).front(), 0);
  const size_t num_bytes = values.size() / 32 * 18;
  ASSERT_EQ(num_bytes % 32, 0u) << "no padding at the end";
  const char* block = file.data() + file.size() - num_bytes;
  for (size_t i = 0; i < values.size(); i += 32, block += 18) {
    uint16_t bits;
    std::memcpy(&bits, block, 2);
    const float scale = FloatFromF16(bits);
    for (size_t j = 0; j < 32; ++j) {
      const int byte = uint8_t(block[2 + j % 16]);
      const int step = (j < 16 ? byte & 15 : byte >> 4) - 8;
      // Half a step for the rounding; a whole one at the end where 8 does not exist.
      ASSERT_LE(std::abs(values[i + j] - float(step) * scale),
                std::abs(scale) * (step == 7 ? 1.01f : 0.51f));
    }
  }
}

TEST(RandomCheckpointTest, GgufFilesOfAMatrixTypeDifferByTheirBlocks) {
  const ScratchDirectory folder;
  const auto size_of = [&](GgufMatrices matrices) {
    const std::string path = folder.Path("size.gguf");
    EXPECT_TRUE(WriteRandomGguf(kSmall, matrices, path).ok());
    return int64_t(std::filesystem::file_size(path));
  };
  int64_t num_elements = int64_t{kSmall.vocab_size} * kSmall.hidden_size;  // the output matrix
  for (const ShapeTensor& tensor : TensorsOf(kSmall)) {
    if (tensor.dims.size() == 2) num_elements += tensor.NumElements();
  }
  const int64_t q4 = size_of(GgufMatrices::kQ4);
  EXPECT_EQ(size_of(GgufMatrices::kQ8) - q4, num_elements / 32 * (34 - 18));
  EXPECT_EQ(size_of(GgufMatrices::kF16) - q4, num_elements / 32 * (64 - 18));
}

}  // namespace
}  // namespace lssar::bench

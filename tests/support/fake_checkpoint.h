// A checkpoint with FakeModel, a tokenizer with awkward pieces and a backend that only allocates.
#ifndef LSSAR_TESTS_SUPPORT_FAKE_CHECKPOINT_H_
#define LSSAR_TESTS_SUPPORT_FAKE_CHECKPOINT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "kernels/host_backend.h"
#include "models/checkpoint.h"
#include "tests/support/fake_model.h"

namespace lssar {

// Pieces: parts of characters, several characters, ill-formed bytes, the empty string.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(int vocab_size) : vocab_size_(vocab_size) {}

  int VocabSize() const override { return vocab_size_; }
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view,
                                              absl::FunctionRef<bool()>) const override {
    return absl::UnimplementedError("the fake tokenizer only decodes");
  }
  int MaxPieceBytes() const override { return 3; }
  std::string_view PieceBytes(int32_t id) const override {
    if (id == FakeModel::kEosId) return "";
    return kPieces[size_t(id) % kPieces.size()];
  }
  bool AddsDummyPrefix() const override { return true; }
  std::string_view Hash() const override { return "fake"; }

 private:
  static constexpr std::array<std::string_view, 16> kPieces = {
      "a",    "b",        "c",        "ab",   " ",   " a",     "ba", "\xC3",
      "\xA9", "\xF0\x9F", "\x98\x80", "\xFF", "cab", "\u00e9", "\n", "b\xC3"};
  int vocab_size_;
};

// Two layers of three heads, of eight dimensions each.
inline ModelConfig SmallConfig() {
  ModelConfig config;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.hidden_size = 24;
  return config;
}

// Allocates memory and computes nothing.
class MemoryBackend : public HostBackend {
 public:
  std::string_view Name() const override { return "memory"; }
  std::string Describe() const override { return "memory"; }
  int NumThreads() const override { return 1; }
  absl::Status CheckAttention(const AttentionSpec&) const override { return absl::OkStatus(); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t num_bytes) override {
    return std::make_unique<HeapBuffer>(num_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const MatrixView&, DType) override {
    return absl::UnimplementedError("no matrices here");
  }
  void Embed(const EmbedArgs&) override { LSSAR_CHECK(false); }
  void Norm(const NormArgs&) override { LSSAR_CHECK(false); }
  void Linear(const LinearArgs&) override { LSSAR_CHECK(false); }
  void RopeWrite(const RopeWriteArgs&) override { LSSAR_CHECK(false); }
  void Attention(const AttentionArgs&) override { LSSAR_CHECK(false); }
  void Logits(const LogitsArgs&) override { LSSAR_CHECK(false); }
  void Sample(const SampleArgs&) override { LSSAR_CHECK(false); }
  bool IsLost() override { return is_lost; }

  std::atomic<bool> is_lost = false;

 private:
  class HeapBuffer : public Buffer {
   public:
    explicit HeapBuffer(size_t num_bytes) : words_((num_bytes + 7) / 8), num_bytes_(num_bytes) {}
    void* Address() override { return words_.data(); }
    size_t NumBytes() const override { return num_bytes_; }

   private:
    std::vector<uint64_t> words_;
    size_t num_bytes_;
  };
};

struct FakeCheckpoint {
  explicit FakeCheckpoint(int vocab_size = 64) {
    auto owned = std::make_unique<FakeModel>(vocab_size);
    model = owned.get();
    checkpoint.name = "fake";
    checkpoint.config = model->Config();
    checkpoint.model = std::move(owned);
    checkpoint.tokenizer = std::make_unique<FakeTokenizer>(vocab_size);
    checkpoint.max_num_batched_tokens = 1 << 20;
  }

  MemoryBackend backend;
  Checkpoint checkpoint;
  FakeModel* model;  // checkpoint.model
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_FAKE_CHECKPOINT_H_

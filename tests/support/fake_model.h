// A model for tests of the runtime: cheap, deterministic, sensitive to every error in paging.
//
// A token's K/V is a hash of all tokens up to it, computed from the hash stored in the page of the
// token before. A token's logits are drawn from its hash. A wrong page, a stale slot, a wrong
// position or a wrong rope base therefore changes every later result.
#ifndef LSSAR_TESTS_SUPPORT_FAKE_MODEL_H_
#define LSSAR_TESTS_SUPPORT_FAKE_MODEL_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "kernels/reference/sample.h"
#include "models/language_model.h"

namespace lssar {

constexpr uint64_t FakeHash(uint64_t history, uint64_t next) {
  uint64_t x = history ^ (next + 0x9E3779B97F4A7C15u);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

class FakeModel : public LanguageModel {
 public:
  static constexpr int32_t kEosId = 1;

  explicit FakeModel(int vocab_size = 64) {
    config_.vocab_size = vocab_size;
    config_.num_hidden_layers = 1;
    config_.num_attention_heads = 1;
    config_.hidden_size = 4;  // 8 bytes of fp16: one hash a token
    config_.attention = {AttentionSpec()};
    config_.max_position_embeddings = 1024;
    config_.eos_id = kEosId;
  }

  // Settings of the test; change them before the engine starts.
  // This token's logits are NaN.
  int32_t poison_id = -1;
  // After this share of the texts the logits are other ones: a draft model's mistakes.
  int wrong_percent = 0;
  // Called at the start of every Forward, on the engine thread.
  std::function<absl::Status(const ForwardBatch&)> on_forward;
  // The result of Synchronize. Null: OK.
  std::function<absl::Status()> on_synchronize;

  const ModelConfig& Config() const override { return config_; }
  // After the engine has made its pages, whose layout stays.
  void SetHiddenSize(int hidden_size) { config_.hidden_size = hidden_size; }

  // The hash before the first token. `attention`: as in ForwardBatch.
  static uint64_t FirstHash(double rope_base, const std::vector<AttentionSpec>* attention) {
    auto hash = std::bit_cast<uint64_t>(rope_base);
    if (attention == nullptr) return hash;
    for (const AttentionSpec& spec : *attention) {
      hash = FakeHash(FakeHash(hash, uint64_t(spec.kind)), std::bit_cast<uint64_t>(spec.p));
    }
    return hash;
  }

  // `hash` after the steering of the token at `position`.
  static uint64_t Steered(const ForwardBatch& batch, int sequence_idx, int position,
                          uint64_t hash) {
    for (const SteeredSequence& steered : batch.steered) {
      if (steered.sequence_idx != sequence_idx) continue;
      for (const SteeringVector& vector : steered.vectors) {
        if (position < vector.first_position) continue;
        hash = FakeHash(hash, uint64_t(vector.layer));
        for (const float value : vector.values)
          hash = FakeHash(hash, std::bit_cast<uint32_t>(value));
      }
    }
    return hash;
  }

  // The hash that the page table `pages` holds of the token at `position`: of all tokens up to it.
  static uint64_t HashAt(const KvView& kv, std::span<const int32_t> pages, int position) {
    uint64_t hash = 0;
    std::memcpy(&hash, Slot(kv, pages, position), sizeof(hash));
    return hash;
  }
  // The logit of `id` after the tokens of `hash`.
  static float LogitOf(uint64_t hash, int32_t id) {
    return float(8 * (double(FakeHash(hash, uint64_t(id)) >> 11) * 0x1p-53) - 4);
  }

  // Drawn from the token's hash; about two of three are zero, half of them by the formula.
  static void GiveWeights(const HeadCapture& capture, uint64_t hash, int position) {
    for (const int32_t layer : capture.layers) {
      for (const int32_t head : capture.heads) {
        AttentionRow row;
        std::vector<double>& weights = row.weights;
        double sum = 0;
        for (int key = 0; key <= position; ++key) {
          const uint64_t draw = FakeHash(hash + uint64_t(layer * 64 + head), uint64_t(key));
          weights.push_back(draw % 3 == 0 || key == position ? double(draw >> 11) : 0);
          sum += weights.back();
        }
        for (double& weight : weights) weight /= sum;
        row.num_zero = int(std::ranges::count(weights, 0.0)) / 2;
        capture.sink->OnWeights(layer, head, position, row);
      }
    }
  }

  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionStats* counters) override {
    if (on_forward) {
      if (absl::Status status = on_forward(batch); !status.ok()) return status;
    }
    if (batch.num_layers_begun != nullptr) ++*batch.num_layers_begun;
    if (batch.interrupt != nullptr && *batch.interrupt) return absl::CancelledError("interrupted");
    CheckBatch(batch, kv.layout);
    hashes_.clear();
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const SequenceSlice& rows = batch.sequences[i];
      const uint64_t base = FirstHash(batch.rope_bases[i], batch.attention[i]);
      for (int r = 0; r < rows.num_rows; ++r) {
        const int position = rows.first_position + r;
        const int32_t id = batch.token_ids[size_t(rows.first_row + r)];
        uint64_t hash = base;
        if (position > 0) hash = HashAt(kv, rows.pages, position - 1);
        hash = Steered(batch, int(i), position, FakeHash(hash, uint64_t(uint32_t(id))));
        std::memcpy(Slot(kv, rows.pages, position), &hash, sizeof(hash));
        hashes_.push_back(id == poison_id ? kPoison : hash);
        for (const RowCapture& capture : batch.captures) {
          if (capture.row == rows.first_row + r) GiveWeights(capture.heads, hash, position);
        }
        if (counters != nullptr) {
          counters[i].num_value_rows += position + 1;
          counters[i].num_value_rows_read += 1;
        }
      }
    }
    for (const HiddenCapture& capture : batch.hidden_captures) GiveHiddenStates(capture);
    return absl::OkStatus();
  }

  // Stores results aside: `out` stays empty until Synchronize.
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> rows,
              std::span<SampleResult> out) override {
    LSSAR_CHECK(rows.size() == batch.logits_indices.size() && out.size() == rows.size());
    const auto vocab = size_t(config_.vocab_size);
    values_.clear();
    for (const int32_t row : batch.logits_indices) {
      AppendLogits(hashes_[size_t(row)]);
      // Excluded: drawn by chance it would end a request early.
      if (poison_id >= 0) values_[values_.size() - vocab + size_t(poison_id)] += kNeverSaid;
    }
    sampled_.resize(rows.size());
    ReferenceSample(
        {.logits = values_.data(), .vocab = config_.vocab_size, .rows = rows, .out = sampled_});
    out_ = out;
  }

  absl::Status Synchronize() override {
    std::ranges::move(sampled_, out_.begin());
    sampled_.clear();
    return on_synchronize ? on_synchronize() : absl::OkStatus();
  }

  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override {
    const auto vocab = size_t(config_.vocab_size);
    LSSAR_CHECK(size_t(first + count) <= batch.logits_indices.size());
    LSSAR_CHECK(out.size() == size_t(count) * vocab);
    std::copy_n(values_.begin() + std::ptrdiff_t(size_t(first) * vocab), out.size(), out.begin());
    return absl::OkStatus();
  }

  // Element i is drawn from the token's hash; NaN for poison_id.
  absl::Status CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) override {
    const auto hidden_size = size_t(config_.hidden_size);
    LSSAR_CHECK(out.size() == batch.hidden_indices.size() * hidden_size);
    for (size_t i = 0; i < out.size(); ++i) {
      const uint64_t hash = hashes_[size_t(batch.hidden_indices[i / hidden_size])];
      out[i] = hash == kPoison ? NAN : HiddenElement(hash, i % hidden_size);
    }
    return absl::OkStatus();
  }
  // A layer that is not kFinalNorm has HiddenElement of this hash.
  static uint64_t LayerHash(uint64_t hash, int32_t layer) {
    return FakeHash(hash, 1000 + uint64_t(layer));
  }
  static float HiddenElement(uint64_t hash, size_t i) {
    return float(FakeHash(hash, i) >> 40) / float(1 << 23) - 1.0f;
  }

  // One output: the sum of the hidden state.
  int NumHeadOutputs() const override { return 1; }
  void ApplyHead(std::span<const float> hidden, std::span<float> out) const override {
    LSSAR_CHECK(out.size() == 1);
    out[0] = std::accumulate(hidden.begin(), hidden.end(), 0.0f);
  }

 private:
  static constexpr uint64_t kPoison = 0;
  static constexpr float kNeverSaid = -1e4f;

  void GiveHiddenStates(const HiddenCapture& capture) const {
    const auto hidden_size = size_t(config_.hidden_size);
    const auto num_rows = size_t(capture.num_rows);
    for (size_t k = 0; k < capture.layers.size(); ++k) {
      if (capture.layers[k] == kFinalNorm) continue;
      for (size_t i = 0; i < num_rows * hidden_size; ++i) {
        const uint64_t hash = hashes_[size_t(capture.first_row) + i / hidden_size];
        capture.out[k * num_rows * hidden_size + i] =
            hash == kPoison ? NAN
                            : HiddenElement(LayerHash(hash, capture.layers[k]), i % hidden_size);
      }
    }
  }

  static char* Slot(const KvView& kv, std::span<const int32_t> pages, int position) {
    const int page = pages[size_t(position / kv.layout.page_size)];
    const size_t element = kv.layout.ValueBlockIndex(0, page, 0) +
                           kv.layout.ValueIndex(position % kv.layout.page_size, 0);
    return static_cast<char*>(kv.v) + element * BytesOf(kv.layout.dtype);
  }

  // Checks the contract of ForwardBatch, and that no page written by one sequence is in another.
  void CheckBatch(const ForwardBatch& batch, const KvLayout& layout) {
    LSSAR_CHECK(batch.rope_bases.size() == batch.sequences.size());
    LSSAR_CHECK(batch.attention.size() == batch.sequences.size());
    LSSAR_CHECK(batch.logits_sequences.size() == batch.logits_indices.size());
    LSSAR_CHECK(std::ranges::is_sorted(batch.logits_indices));
    writers_.assign(size_t(layout.num_pages), -1);
    int next_row = 0;
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      const SequenceSlice& rows = batch.sequences[i];
      LSSAR_CHECK(rows.first_row == next_row && rows.num_rows >= 1);
      next_row += rows.num_rows;
      LSSAR_CHECK(layout.PagesFor(rows.first_position + rows.num_rows) <= int(rows.pages.size()));
      const auto first_written = size_t(rows.first_position / layout.page_size);
      for (size_t page_idx = first_written; page_idx < rows.pages.size(); ++page_idx) {
        const int32_t page = rows.pages[page_idx];
        LSSAR_CHECK(page >= 0 && page < layout.num_pages && writers_[size_t(page)] < 0);
        writers_[size_t(page)] = int(i);
      }
    }
    LSSAR_CHECK(next_row == int(batch.token_ids.size()) && next_row >= 1);
    for (size_t i = 0; i < batch.sequences.size(); ++i) {
      for (const int32_t page : batch.sequences[i].pages) {
        const int writer = writers_[size_t(page)];
        LSSAR_CHECK(writer < 0 || writer == int(i));
      }
    }
  }

  void AppendLogits(uint64_t hash) {
    if (hash != kPoison && int(hash % 100) < wrong_percent) hash = FakeHash(hash, 1);
    for (int id = 0; id < config_.vocab_size; ++id) {
      values_.push_back(hash == kPoison ? std::numeric_limits<float>::quiet_NaN()
                                        : LogitOf(hash, id));
    }
  }

  ModelConfig config_;
  std::vector<uint64_t> hashes_;  // of the tokens of the last Forward
  std::vector<float> values_;     // logits of the last Sample
  std::vector<SampleResult> sampled_;
  std::span<SampleResult> out_;
  std::vector<int> writers_;  // [page]: index of the sequence that writes it in the last Forward
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_FAKE_MODEL_H_

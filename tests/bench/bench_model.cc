#include "tests/bench/bench_model.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/kv_rows.h"
#include "tests/bench/random_checkpoint.h"

namespace lssar::bench {

absl::StatusOr<std::unique_ptr<BenchModel>> BenchModel::Create(const BenchModelOptions& options) {
  std::unique_ptr<BenchModel> self(new BenchModel);
  ASSIGN_OR_RETURN(
      std::unique_ptr<Backend> backend,
      MakeBackend({.name = "cpu", .num_threads = options.num_threads, .instruction_set = ""}));
  self->backend_ = std::make_unique<TimedBackend>(std::move(backend));
  ASSIGN_OR_RETURN(self->checkpoint_,
                   LoadCheckpoint(options.directory, self->backend_.get(),
                                  {.dtype = options.dtype, .max_num_batched_tokens = 512}));

  const KvLayout layout = LayoutOf(self->Config(), options.kv_cache_dtype, KvLayout().page_size);
  const int pages_each = layout.PagesFor(options.tokens_per_sequence);
  const int num_tokens =
      std::max(options.max_tokens, options.num_sequences * pages_each * layout.page_size);
  ASSIGN_OR_RETURN(self->pool_, MakePagePool(layout, num_tokens, self->backend_.get()));
  const std::vector<int32_t>& all = self->pool_.pages;
  for (int i = 0; i < options.num_sequences; ++i) {
    self->pages_.emplace_back(all.begin() + i * pages_each,
                              i == 0 ? all.end() : all.begin() + (i + 1) * pages_each);
  }
  self->text_ = options.text;
  return self;
}

void BenchModel::Prefill(int sequence, int from, int to, int chunk_size) {
  if (from >= to) return;
  std::vector<int32_t> tokens;
  for (int position = from; position < to; ++position) tokens.push_back(TokenAt(position));
  const int32_t last = to - 1;
  step_stats_.assign(1, {});
  const absl::Status status =
      RunChunkedPrefill({.tokens = tokens,
                         .first_position = from,
                         .pages = pages_[size_t(sequence)],
                         .rope_base = Config().rope_theta,
                         .chunk_size = chunk_size,
                         .logits_positions = std::span(&last, 1),
                         .stats = step_stats_.data()},
                        pool_.view, checkpoint_.model.get(),
                        [this](const ForwardBatch& batch) { return FinishStep(batch); });
  LSSAR_CHECK(status.ok());
}

void BenchModel::FillRandom(int sequence, int to) {
  const KvLayout& layout = pool_.view.layout;
  uint64_t state = uint64_t(sequence) + 1;
  std::vector<float> vector(size_t(layout.head_dim));
  const auto draw = [&] {
    double squares = 0;
    for (float& x : vector) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = float(state >> 40) * 0x1p-23f - 1.0f;
      squares += double{x} * double{x};
    }
    for (float& x : vector) x = float(x / std::sqrt(squares));
    return std::span<const float>(vector);
  };
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      for (int position = 0; position < to; ++position) {
        const KvBlock block = layout.Block(
            layer, pages_[size_t(sequence)][size_t(position / layout.page_size)], head);
        KeyRow(pool_.view, block, position % layout.page_size).Store(draw());
        ValueRow(pool_.view, block, position % layout.page_size).Store(draw());
      }
    }
  }
}

void BenchModel::DecodeStep(int num_sequences, int position) {
  batch_.Clear();
  for (int i = 0; i < num_sequences; ++i) {
    batch_.token_ids.push_back(TokenAt(position));
    batch_.sequences.push_back({i, 1, position, pages_[size_t(i)]});
    batch_.rope_bases.push_back(Config().rope_theta);
    batch_.logits_indices.push_back(i);
    batch_.logits_sequences.push_back(i);
  }
  RunStep();
}

void BenchModel::VerifyStep(int num_rows, int position) {
  batch_.Clear();
  batch_.sequences.push_back({0, num_rows, position, pages_[0]});
  batch_.rope_bases.push_back(Config().rope_theta);
  for (int row = 0; row < num_rows; ++row) {
    batch_.token_ids.push_back(TokenAt(position + row));
    batch_.logits_indices.push_back(row);
    batch_.logits_sequences.push_back(0);
  }
  RunStep();
}

void BenchModel::RunStep() {
  step_stats_.assign(batch_.sequences.size(), {});
  LSSAR_CHECK(checkpoint_.model->Forward(batch_, pool_.view, step_stats_.data()).ok());
  LSSAR_CHECK(FinishStep(batch_).ok());
}

int32_t BenchModel::TokenAt(int position) const {
  if (!text_.empty()) return text_[size_t(position) % text_.size()];
  return SyntheticToken(position, 0, Config().vocab_size);
}

absl::Status BenchModel::FinishStep(const ForwardBatch& batch) {
  logits_.resize(batch.logits_indices.size() * size_t(Config().vocab_size));
  RETURN_IF_ERROR(
      checkpoint_.model->CopyLogits(batch, 0, int(batch.logits_indices.size()), logits_));
  RETURN_IF_ERROR(checkpoint_.model->Synchronize());
  for (AttentionStats& each : step_stats_) {
    stats_ += each;
    each = {};
  }
  return absl::OkStatus();
}

AttentionStats BenchModel::TakeStats() { return std::exchange(stats_, {}); }

double BenchModel::KeyRowBytes() const {
  const KvLayout& layout = pool_.view.layout;
  return double(layout.BlockStride() * BytesOf(layout.dtype)) / layout.page_size;
}

double BenchModel::ValueRowBytes() const {
  const KvLayout& layout = pool_.view.layout;
  return double(layout.ValueBlockStride() * BytesOf(layout.dtype)) / layout.page_size;
}

}  // namespace lssar::bench

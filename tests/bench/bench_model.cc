#include "tests/bench/bench_model.h"

#include <algorithm>

#include "kernels/check.h"

namespace lssar::bench {

absl::StatusOr<std::unique_ptr<BenchModel>> BenchModel::Create(const BenchModelOptions& options) {
  std::unique_ptr<BenchModel> self(new BenchModel);
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      MakeBackend({.name = "cpu", .num_threads = options.num_threads, .instruction_set = ""});
  if (!backend.ok()) return backend.status();
  self->backend_ = std::make_unique<TimedBackend>(*std::move(backend));
  absl::StatusOr<Checkpoint> checkpoint =
      LoadCheckpoint(options.directory, self->backend_.get(),
                     {.weights = options.weights, .max_num_batched_tokens = 512});
  if (!checkpoint.ok()) return checkpoint.status();
  self->checkpoint_ = *std::move(checkpoint);

  const KvLayout layout = LayoutOf(self->Config(), options.kv_cache_dtype, KvLayout().page_size);
  const int pages_each = layout.PagesFor(options.tokens_per_sequence);
  absl::StatusOr<PagePool> pool = MakePagePool(
      layout, std::max(options.max_tokens, options.num_sequences * pages_each * layout.page_size),
      self->backend_.get());
  if (!pool.ok()) return pool.status();
  self->pool_ = *std::move(pool);
  const std::vector<int32_t>& all = self->pool_.pages;
  for (int i = 0; i < options.num_sequences; ++i) {
    self->pages_.emplace_back(all.begin() + i * pages_each,
                              i == 0 ? all.end() : all.begin() + (i + 1) * pages_each);
  }
  self->text_ = options.text;
  return self;
}

void BenchModel::Prefill(int sequence, int from, int to, int chunk) {
  for (int position = from; position < to; position += chunk) {
    const int num_rows = std::min(chunk, to - position);
    batch_.Clear();
    for (int i = 0; i < num_rows; ++i) {
      batch_.token_ids.push_back(TokenAt(position + i));
    }
    batch_.sequences.push_back({0, num_rows, position, pages_[size_t(sequence)]});
    batch_.rope_bases.push_back(Config().rope_theta);
    if (position + num_rows == to) {
      batch_.logits_indices.push_back(num_rows - 1);
      batch_.logits_sequences.push_back(0);
    }
    Run();
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
  Run();
}

int32_t BenchModel::TokenAt(int position) const {
  if (!text_.empty()) return text_[size_t(position) % text_.size()];
  // Spread over the vocabulary: a prefill reads as many embedding rows as a text does.
  return position * 7919 % Config().vocab_size;
}

void BenchModel::Run() {
  counters_.assign(batch_.sequences.size(), {});
  LSSAR_CHECK(checkpoint_.model->Forward(batch_, pool_.view, counters_.data()).ok());
  logits_.resize(batch_.logits_indices.size() * size_t(Config().vocab_size));
  LSSAR_CHECK(
      checkpoint_.model->CopyLogits(batch_, 0, int(batch_.logits_indices.size()), logits_).ok());
  LSSAR_CHECK(checkpoint_.model->Synchronize().ok());
  for (const AttentionStats& each : counters_) {
    sum_.num_value_rows += each.num_value_rows;
    sum_.num_value_rows_read += each.num_value_rows_read;
  }
}

AttentionStats BenchModel::TakeCounters() { return std::exchange(sum_, {}); }

int64_t BenchModel::KeyBytesPerToken() const {
  const KvLayout& layout = pool_.view.layout;
  return int64_t(layout.BlockStride() * BytesOf(layout.dtype)) * layout.num_kv_heads *
         layout.num_layers / layout.page_size;
}

}  // namespace lssar::bench

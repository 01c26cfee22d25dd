#include "models/gpt.h"

#include <algorithm>
#include <utility>

#include "kernels/attention_weights.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"
#include "models/rope.h"

namespace lssar {
namespace {

// 64 rows of a GPT-2 vocabulary are 13 MB: enough rows to read the embedding once for many.
constexpr int kMaxLogitsRows = 64;

NormView View(const GptNorm& norm, float epsilon) {
  return {.weight = norm.weight->As<float>(), .bias = norm.bias->As<float>(), .epsilon = epsilon};
}

}  // namespace

absl::Status Gpt::Forward(const ForwardBatch& batch, const KvView& kv, AttentionStats* counters) {
  const RaggedBatch rows{.num_rows = int(batch.token_ids.size()), .sequences = batch.sequences};
  LSSAR_CHECK(rows.num_rows >= 1 && rows.num_rows <= max_num_batched_tokens_);
  for (const int32_t id : batch.token_ids) LSSAR_CHECK(id >= 0 && id < config_.vocab_size);

  FillRopeAngles(rows, batch.rope_bases, rope_frequencies_, rope_angles_);
  const size_t num_angles = size_t(rows.num_rows) * size_t(config_.HeadDim());
  const absl::Status copied =
      backend_->CopyIn(rope_->Address(), rope_angles_.data(), num_angles * sizeof(float));
  if (!copied.ok()) return copied;

  absl::Status captured;
  const auto ops = [&] {
    backend_->Embed(
        {.ids = batch.token_ids, .table = weights_.embedding.get(), .out = x_->As<float>()});
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      RunBlock(layer, rows, kv, counters);
      captured.Update(Capture(layer, batch, kv));
    }
  };
  if (!batch.captures.empty()) {
    ops();  // they look at what is between the ops: no step that a backend may do again by itself
    return captured;
  }
  backend_->RunStep({.owner = this,
                     .rows = &rows,
                     .ids = batch.token_ids,
                     .kv = kv,
                     .counters = counters,
                     .max_rows = max_num_batched_tokens_},
                    ops);
  return absl::OkStatus();
}

absl::Status Gpt::Capture(int layer, const ForwardBatch& batch, const KvView& kv) {
  for (const RowCapture& capture : batch.captures) {
    if (std::ranges::count(capture.heads.layers, layer) == 0) continue;
    const SequenceSlice& sequence = batch.sequences[size_t(capture.sequence_idx)];
    const int position = sequence.first_position + capture.row - sequence.first_row;
    for (const int head : capture.heads.heads) {
      const absl::StatusOr<std::vector<double>> weights =
          AttentionWeights({.sequence = &sequence,
                            .row = capture.row,
                            .layer = layer,
                            .num_heads = config_.num_attention_heads,
                            .head = head,
                            .spec = config_.attention,
                            .q = q_->As<float>(),
                            .kv = kv},
                           backend_);
      if (!weights.ok()) return weights.status();
      capture.heads.sink->OnWeights(layer, head, position, *weights);
    }
  }
  return absl::OkStatus();
}

void Gpt::RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* counters) {
  const GptLayer& w = weights_.layers[size_t(layer)];
  float* const x = x_->As<float>();

  backend_->Linear({.num_rows = rows.num_rows,
                    .x = x,
                    .norm = View(w.attention_norm, config_.layer_norm_epsilon),
                    .weight = w.qkv.weight.get(),
                    .bias = w.qkv.bias->As<float>(),
                    .out = qkv_->As<float>()});
  backend_->RopeWrite({.rows = &rows,
                       .layer = layer,
                       .num_heads = config_.num_attention_heads,
                       .qkv = qkv_->As<float>(),
                       .rope = rope_->As<float>(),
                       .rope_layout = config_.rope_layout,
                       .normalize = config_.attention.Form().is_length_scaled,
                       .kv = kv,
                       .q = q_->As<float>()});
  backend_->Attention({.rows = &rows,
                       .layer = layer,
                       .num_heads = config_.num_attention_heads,
                       .spec = config_.attention,
                       .q = q_->As<float>(),
                       .kv = kv,
                       .out = attended_->As<float>(),
                       .counters = counters});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = attended_->As<float>(),
                    .norm = {},
                    .weight = w.attention_out.weight.get(),
                    .bias = w.attention_out.bias->As<float>(),
                    .residual = x,
                    .out = x});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = x,
                    .norm = View(w.mlp_norm, config_.layer_norm_epsilon),
                    .weight = w.mlp_in.weight.get(),
                    .bias = w.mlp_in.bias->As<float>(),
                    .activation = Activation::kGeluTanh,
                    .out = mlp_->As<float>()});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = mlp_->As<float>(),
                    .norm = {},
                    .weight = w.mlp_out.weight.get(),
                    .bias = w.mlp_out.bias->As<float>(),
                    .residual = x,
                    .out = x});
}

void Gpt::ComputeLogits(const ForwardBatch& batch, size_t first, size_t count) {
  backend_->Logits({.x = x_->As<float>(),
                    .row_ids = std::span(batch.logits_indices).subspan(first, count),
                    .norm = View(weights_.final_norm, config_.layer_norm_epsilon),
                    .weight = weights_.untied_head != nullptr ? weights_.untied_head.get()
                                                              : weights_.embedding.get(),
                    .logits = logits_->As<float>()});
}

void Gpt::Sample(const ForwardBatch& batch, std::span<const SampleRequest> rows,
                 std::span<SampleResult> out) {
  const size_t num_rows = batch.logits_indices.size();
  LSSAR_CHECK(rows.size() == num_rows && out.size() == num_rows);
  for (size_t first = 0; first < num_rows; first += kMaxLogitsRows) {
    const size_t count = std::min(num_rows - first, size_t{kMaxLogitsRows});
    ComputeLogits(batch, first, count);
    backend_->Sample({.logits = logits_->As<float>(),
                      .vocab = config_.vocab_size,
                      .rows = rows.subspan(first, count),
                      .out = out.subspan(first, count)});
  }
}

absl::Status Gpt::Synchronize() { return backend_->Synchronize(); }

absl::Status Gpt::CopyLogits(const ForwardBatch& batch, int first, int count,
                             std::span<float> out) {
  const size_t vocab = size_t(config_.vocab_size);
  LSSAR_CHECK(first >= 0 && count >= 0 && size_t(first + count) <= batch.logits_indices.size());
  LSSAR_CHECK(out.size() == size_t(count) * vocab);
  for (size_t done = 0; done < size_t(count); done += kMaxLogitsRows) {
    const size_t num_rows = std::min(size_t(count) - done, size_t{kMaxLogitsRows});
    ComputeLogits(batch, size_t(first) + done, num_rows);
    if (absl::Status status = backend_->Synchronize(); !status.ok()) return status;
    const std::span<float> values = out.subspan(done * vocab, num_rows * vocab);
    const absl::Status copied =
        backend_->CopyOut(values.data(), logits_->Address(), values.size_bytes());
    if (!copied.ok()) return copied;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Gpt>> Gpt::Create(const ModelConfig& config, GptWeights weights,
                                                 Backend* backend, int max_num_batched_tokens) {
  if (max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens is ", max_num_batched_tokens, ", must be at least 1"));
  }
  const absl::Status computed = backend->CheckAttention(config.attention);
  if (!computed.ok()) return computed;
  auto gpt =
      std::unique_ptr<Gpt>(new Gpt(config, std::move(weights), backend, max_num_batched_tokens));
  const absl::Status reserved = gpt->ReserveActivations();
  if (!reserved.ok()) return reserved;
  return gpt;
}

Gpt::Gpt(const ModelConfig& config, GptWeights weights, Backend* backend,
         int max_num_batched_tokens)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      max_num_batched_tokens_(max_num_batched_tokens) {}

absl::Status Gpt::ReserveActivations() {
  const int width = config_.hidden_size;
  const struct {
    std::unique_ptr<Buffer>* buffer;
    int num_rows;
    int row_floats;
  } wanted[] = {
      {&x_, max_num_batched_tokens_, width},
      {&qkv_, max_num_batched_tokens_, 3 * width},
      {&q_, max_num_batched_tokens_, width},
      {&attended_, max_num_batched_tokens_, width},
      {&mlp_, max_num_batched_tokens_, config_.intermediate_size},
      {&rope_, max_num_batched_tokens_, config_.HeadDim()},
      {&logits_, kMaxLogitsRows, config_.vocab_size},
  };
  for (const auto& want : wanted) {
    absl::StatusOr<std::unique_ptr<Buffer>> buffer =
        backend_->Allocate(size_t(want.num_rows) * size_t(want.row_floats) * sizeof(float));
    if (!buffer.ok()) return buffer.status();
    *want.buffer = *std::move(buffer);
  }
  rope_frequencies_.resize(size_t(config_.HeadDim()) / 2);
  rope_angles_.resize(size_t(max_num_batched_tokens_) * size_t(config_.HeadDim()));
  return absl::OkStatus();
}

}  // namespace lssar

#include "models/gpt.h"

#include <algorithm>
#include <utility>

#include "kernels/attention_weights.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/rope.h"

namespace lssar {
namespace {

// 64 rows of a GPT-2 vocabulary take 13 MB, and are enough to read the embedding once for many.
constexpr int kMaxLogitsRows = 64;

const float* FloatsOf(const std::unique_ptr<Buffer>& buffer) {
  return buffer == nullptr ? nullptr : buffer->As<float>();
}

}  // namespace

absl::Status Gpt::Forward(const ForwardBatch& batch, const KvView& kv, AttentionStats* stats) {
  const RaggedBatch rows{.num_rows = int(batch.token_ids.size()), .sequences = batch.sequences};
  LSSAR_CHECK(rows.num_rows >= 1 && rows.num_rows <= max_num_batched_tokens_);
  for (const int32_t id : batch.token_ids) LSSAR_CHECK(id >= 0 && id < config_.vocab_size);

  FillRopeAngles(rows, batch.rope_bases, rope_frequencies_, rope_angles_);
  const size_t num_angles = size_t(rows.num_rows) * size_t(config_.HeadDim());
  RETURN_IF_ERROR(
      backend_->CopyIn(rope_->Address(), rope_angles_.data(), num_angles * sizeof(float)));

  absl::Status captured;
  const auto ops = [&] {
    backend_->Embed(
        {.ids = batch.token_ids, .table = weights_.embedding.get(), .out = x_->As<float>()});
    for (int layer = 0; layer < config_.num_hidden_layers; ++layer) {
      RunBlock(layer, rows, kv, stats);
      captured.Update(Capture(layer, batch, kv));
    }
  };
  if (!batch.captures.empty()) {
    // Captures read activations between the ops, so the step cannot be replayed from a graph.
    ops();
    return captured;
  }
  backend_->RunStep({.owner = this,
                     .rows = &rows,
                     .ids = batch.token_ids,
                     .kv = kv,
                     .counters = stats,
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
      ASSIGN_OR_RETURN(const std::vector<double> weights,
                       AttentionWeights({.sequence = &sequence,
                                         .row = capture.row,
                                         .layer = layer,
                                         .head = head,
                                         .spec = config_.attention,
                                         .q = q_->As<float>(),
                                         .kv = kv},
                                        backend_));
      capture.heads.sink->OnWeights(layer, head, position, weights);
    }
  }
  return absl::OkStatus();
}

LayerNormView Gpt::View(const GptNorm& norm) const {
  const std::unique_ptr<Buffer>& bias = norm.bias != nullptr ? norm.bias : no_norm_bias_;
  return {.weight = FloatsOf(norm.weight),
          .bias = FloatsOf(bias),
          .epsilon = config_.layer_norm_epsilon};
}

void Gpt::RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* stats) {
  const GptLayer& w = weights_.layers[size_t(layer)];
  float* const x = x_->As<float>();

  backend_->Linear({.num_rows = rows.num_rows,
                    .x = x,
                    .norm = View(w.attention_norm),
                    .weight = w.qkv.weight.get(),
                    .bias = FloatsOf(w.qkv.bias),
                    .out = qkv_->As<float>()});
  backend_->RopeWrite({.rows = &rows,
                       .layer = layer,
                       .qkv = qkv_->As<float>(),
                       .rope = rope_->As<float>(),
                       .rope_layout = config_.rope_layout,
                       .normalize = config_.attention.Form().is_length_scaled,
                       .kv = kv,
                       .q = q_->As<float>()});
  backend_->Attention({.rows = &rows,
                       .layer = layer,
                       .spec = config_.attention,
                       .q = q_->As<float>(),
                       .kv = kv,
                       .out = attended_->As<float>(),
                       .counters = stats});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = attended_->As<float>(),
                    .norm = {},
                    .weight = w.attention_out.weight.get(),
                    .bias = FloatsOf(w.attention_out.bias),
                    .residual = x,
                    .out = x});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = x,
                    .norm = View(w.mlp_norm),
                    .weight = w.mlp_in.weight.get(),
                    .bias = FloatsOf(w.mlp_in.bias),
                    .activation = config_.activation,
                    .out = mlp_->As<float>()});
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = mlp_->As<float>(),
                    .norm = {},
                    .weight = w.mlp_out.weight.get(),
                    .bias = FloatsOf(w.mlp_out.bias),
                    .residual = x,
                    .out = x});
}

void Gpt::ComputeLogits(const ForwardBatch& batch, size_t first, size_t count) {
  backend_->Logits({.x = x_->As<float>(),
                    .row_ids = std::span(batch.logits_indices).subspan(first, count),
                    .norm = View(weights_.final_norm),
                    .weight = weights_.untied_head != nullptr ? weights_.untied_head.get()
                                                              : weights_.embedding.get(),
                    .logits = logits_->As<float>()});
}

void Gpt::Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
                 std::span<SampleResult> results) {
  const size_t num_rows = batch.logits_indices.size();
  LSSAR_CHECK(requests.size() == num_rows && results.size() == num_rows);
  for (size_t first = 0; first < num_rows; first += kMaxLogitsRows) {
    const size_t count = std::min(num_rows - first, size_t{kMaxLogitsRows});
    ComputeLogits(batch, first, count);
    backend_->Sample({.logits = logits_->As<float>(),
                      .vocab = config_.vocab_size,
                      .rows = requests.subspan(first, count),
                      .out = results.subspan(first, count)});
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
    RETURN_IF_ERROR(backend_->Synchronize());
    const std::span<float> values = out.subspan(done * vocab, num_rows * vocab);
    RETURN_IF_ERROR(backend_->CopyOut(values.data(), logits_->Address(), values.size_bytes()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Gpt>> Gpt::Create(const ModelConfig& config, GptWeights weights,
                                                 Backend* backend, int max_num_batched_tokens) {
  if (max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens is ", max_num_batched_tokens, ", must be at least 1"));
  }
  RETURN_IF_ERROR(backend->CheckAttention(config.attention));
  auto gpt =
      std::unique_ptr<Gpt>(new Gpt(config, std::move(weights), backend, max_num_batched_tokens));
  RETURN_IF_ERROR(gpt->AllocateActivations());
  return gpt;
}

Gpt::Gpt(const ModelConfig& config, GptWeights weights, Backend* backend,
         int max_num_batched_tokens)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      max_num_batched_tokens_(max_num_batched_tokens) {}

absl::Status Gpt::AllocateActivations() {
  const int max_tokens = max_num_batched_tokens_;
  const struct {
    std::unique_ptr<Buffer>* buffer;
    int num_rows;
    int row_floats;
  } wanted[] = {
      {&x_, max_tokens, config_.hidden_size},         {&qkv_, max_tokens, config_.QkvSize()},
      {&q_, max_tokens, config_.hidden_size},         {&attended_, max_tokens, config_.hidden_size},
      {&mlp_, max_tokens, config_.intermediate_size}, {&rope_, max_tokens, config_.HeadDim()},
      {&logits_, kMaxLogitsRows, config_.vocab_size}, {&no_norm_bias_, 1, config_.hidden_size},
  };
  for (const auto& want : wanted) {
    ASSIGN_OR_RETURN(*want.buffer, backend_->Allocate(size_t(want.num_rows) *
                                                      size_t(want.row_floats) * sizeof(float)));
  }
  rope_frequencies_.resize(size_t(config_.HeadDim()) / 2);
  rope_angles_.resize(size_t(max_tokens) * size_t(config_.HeadDim()));
  return absl::OkStatus();
}

}  // namespace lssar

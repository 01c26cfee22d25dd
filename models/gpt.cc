#include "models/gpt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/attention_weights.h"
#include "models/rope.h"

namespace lssar {
namespace {

// 64 rows of a GPT-2 vocabulary take 13 MB, and are enough to read the embedding once for many.
constexpr int kMaxLogitsRows = 64;

const float* FloatsOf(const std::unique_ptr<Buffer>& buffer) {
  return buffer == nullptr ? nullptr : buffer->As<float>();
}

// A buffer of activations in floats, and the fields of config.json that its rows come from.
struct ActivationShape {
  int num_rows;
  int row_floats;
  std::string_view fields;

  int64_t NumBytes() const { return int64_t{num_rows} * row_floats * int64_t{sizeof(float)}; }
};

// In the order of Gpt's buffers.
std::array<ActivationShape, 11> ActivationShapes(const ModelConfig& config, int max_tokens) {
  constexpr std::string_view kHidden = "n_embd", kHeads = "n_head x head_dim", kHead = "head_dim";
  const bool is_sandwich = config.norm_position == ModelConfig::NormPosition::kSandwich;
  const int norm_size = std::max(config.hidden_size, config.HeadDim());
  return {{
      {max_tokens, config.hidden_size, kHidden},
      {max_tokens, config.QkvSize(), kHeads},
      {max_tokens, config.AttentionSize(), kHeads},
      {max_tokens, config.AttentionSize(), kHeads},
      {max_tokens, config.intermediate_size, "n_inner"},
      {is_sandwich ? max_tokens : 1, config.hidden_size, kHidden},
      {max_tokens, config.RotaryDims(), kHead},
      {config.is_nope_layer.empty() ? 1 : max_tokens, config.RotaryDims(), kHead},
      {kMaxLogitsRows, config.vocab_size, "vocab_size"},
      {1, norm_size, kHidden},
      {1, norm_size, kHidden},
  }};
}

absl::Status Interrupted() { return absl::CancelledError("the step was interrupted"); }

// The final norm of one token's hidden state.
void NormInPlace(NormKind kind, std::span<const float> weight, std::span<const float> bias,
                 float epsilon, std::span<float> x) {
  const auto size = double(x.size());
  double mean = 0, variance = 0;
  if (kind == NormKind::kLayerNorm) {
    for (const float value : x) mean += double{value};
    mean /= size;
  }
  for (const float value : x) variance += (double{value} - mean) * (double{value} - mean);
  const double scale = 1 / std::sqrt(variance / size + double{epsilon});
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = float((double{x[i]} - mean) * scale * double{weight[i]} + double{bias[i]});
  }
}

}  // namespace

absl::Status Gpt::Forward(const ForwardBatch& batch, const KvView& kv, AttentionStats* stats) {
  return ForwardBy(
      [this](const StepArgs& args, absl::FunctionRef<void()> ops) { backend_->RunStep(args, ops); },
      batch, kv, stats);
}

absl::Status Gpt::PrepareSteps(const KvView& kv, int max_rows, int max_keys) {
  const int32_t page = 0;
  ForwardBatch one;
  one.token_ids = {0};
  one.sequences = {{.num_rows = 1, .pages = std::span(&page, 1)}};
  one.rope_bases = {RopeBase(config_, 1)};
  one.attention = {nullptr};
  AttentionStats stats;
  RETURN_IF_ERROR(ForwardBy(
      [&](const StepArgs& args, absl::FunctionRef<void()> ops) {
        backend_->PrepareSteps(args, max_rows, max_keys, ops);
      },
      one, kv, &stats));
  return backend_->Synchronize();
}

absl::Status Gpt::ForwardBy(RunStep run_step, const ForwardBatch& batch, const KvView& kv,
                            AttentionStats* stats) {
  const RaggedBatch rows{.num_rows = int(batch.token_ids.size()), .sequences = batch.sequences};
  LSSAR_CHECK(rows.num_rows >= 1 && rows.num_rows <= max_num_batched_tokens_);
  for (const int32_t id : batch.token_ids) LSSAR_CHECK(id >= 0 && id < config_.vocab_size);

  RETURN_IF_ERROR(PlaceTokens(batch, rows));
  const bool has_override = GroupByAttention(batch, rows);
  interrupt_ = batch.interrupt;
  num_layers_begun_ = batch.num_layers_begun;
  absl::Status captured;
  const auto ops = [&] {
    backend_->Embed({.ids = batch.token_ids,
                     .table = weights_.embedding.get(),
                     .positions = positions_,
                     .position_table = FloatsOf(weights_.positions),
                     .out = x_->As<float>()});
    if (config_.embedding_norm) {
      backend_->Norm({.num_rows = rows.num_rows,
                      .size = config_.hidden_size,
                      .x = x_->As<float>(),
                      .norm = View(weights_.embedding_norm),
                      .out = x_->As<float>()});
    }
    captured.Update(Steer(0, batch));
    captured.Update(CaptureHidden(0, batch));
    for (int layer = 0; layer < config_.num_hidden_layers && !IsInterrupted(); ++layer) {
      if (num_layers_begun_ != nullptr) ++*num_layers_begun_;
      RunBlock(layer, rows, kv, stats);
      captured.Update(Capture(layer, batch, kv));
      captured.Update(Steer(layer + 1, batch));
      captured.Update(CaptureHidden(layer + 1, batch));
    }
  };
  const bool has_capture = !batch.captures.empty() || !batch.hidden_captures.empty();
  if (has_capture || !batch.steered.empty() || has_override || interrupt_ != nullptr) {
    // Captures read activations between the ops, steering changes them, an override changes the
    // ops' arguments, and an interrupt leaves some out: such a step cannot be a graph's.
    ops();
    return IsInterrupted() ? Interrupted() : captured;
  }
  run_step({.owner = this,
            .rows = &rows,
            .ids = batch.token_ids,
            .kv = kv,
            .counters = stats,
            .max_rows = max_num_batched_tokens_},
           ops);
  return absl::OkStatus();
}

absl::Status Gpt::PlaceTokens(const ForwardBatch& batch, const RaggedBatch& rows) {
  positions_.clear();
  if (const std::optional<int> length = config_.MaxLength()) {
    for (const SequenceSlice& sequence : rows.sequences) {
      LSSAR_CHECK(sequence.first_position + sequence.num_rows <= *length);
      for (int i = 0; i < sequence.num_rows; ++i) {
        positions_.push_back(sequence.first_position + i);
      }
    }
  }
  if (config_.positions != ModelConfig::Positions::kRotary) return absl::OkStatus();
  FillRopeAngles(config_, rows, batch.rope_bases, rope_frequencies_, rope_angles_);
  const size_t num_angles = size_t(rows.num_rows) * size_t(config_.RotaryDims());
  return backend_->CopyIn(rope_->Address(), rope_angles_.data(), num_angles * sizeof(float));
}

bool Gpt::GroupByAttention(const ForwardBatch& batch, const RaggedBatch& rows) {
  groups_.clear();
  const auto is_own = [](const auto* layers) { return layers == nullptr; };
  if (std::ranges::all_of(batch.attention, is_own)) {
    groups_.push_back({.layers = &config_.attention, .rows = rows});
    return false;
  }
  LSSAR_CHECK(batch.attention.size() == batch.sequences.size());
  for (size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto* layers = is_own(batch.attention[i]) ? &config_.attention : batch.attention[i];
    LSSAR_CHECK(layers->size() == config_.attention.size());
    SequenceSlice sequence = batch.sequences[i];
    // The requests of one call share their layers.
    const auto* last = groups_.empty() ? nullptr : groups_.back().layers;
    if (last == nullptr || (last != layers && *last != *layers)) {
      groups_.push_back(
          {.layers = layers, .first_row = sequence.first_row, .first_sequence = int(i)});
    }
    AttentionGroup& group = groups_.back();
    sequence.first_row -= group.first_row;
    group.rows.num_rows += sequence.num_rows;
    group.sequences.push_back(sequence);
  }
  for (AttentionGroup& group : groups_) group.rows.sequences = group.sequences;
  return true;
}

absl::Status Gpt::Capture(int layer, const ForwardBatch& batch, const KvView& kv) {
  for (const RowCapture& capture : batch.captures) {
    if (std::ranges::count(capture.heads.layers, layer) == 0) continue;
    const SequenceSlice& sequence = batch.sequences[size_t(capture.sequence_idx)];
    const int position = sequence.first_position + capture.row - sequence.first_row;
    const auto group = std::ranges::find_if(groups_, [&](const AttentionGroup& each) {
      return capture.row < each.first_row + each.rows.num_rows;
    });
    const std::vector<AttentionSpec>& layers = *group->layers;
    for (const int head : capture.heads.heads) {
      ASSIGN_OR_RETURN(const AttentionRow row,
                       AttentionWeights({.sequence = &sequence,
                                         .row = capture.row,
                                         .layer = layer,
                                         .num_heads = config_.num_attention_heads,
                                         .head = head,
                                         .spec = layers[size_t(layer)],
                                         .q = q_->As<float>(),
                                         .kv = kv},
                                        backend_));
      capture.heads.sink->OnWeights(layer, head, position, row);
    }
  }
  return absl::OkStatus();
}

absl::Status Gpt::Steer(int layer, const ForwardBatch& batch) {
  const auto hidden_size = size_t(config_.hidden_size);
  for (const auto& [sequence_idx, vectors] : batch.steered) {
    const SequenceSlice& sequence = batch.sequences[size_t(sequence_idx)];
    for (const SteeringVector& vector : vectors) {
      const int num_before = std::max(vector.first_position - sequence.first_position, 0);
      if (vector.layer != layer || num_before >= sequence.num_rows) continue;
      LSSAR_CHECK(vector.values.size() == hidden_size);
      float* const x = x_->As<float>() + size_t(sequence.first_row + num_before) * hidden_size;
      steered_.resize(size_t(sequence.num_rows - num_before) * hidden_size);
      const size_t num_bytes = steered_.size() * sizeof(float);
      RETURN_IF_ERROR(backend_->CopyOut(steered_.data(), x, num_bytes));
      for (size_t i = 0; i < steered_.size(); ++i) steered_[i] += vector.values[i % hidden_size];
      RETURN_IF_ERROR(backend_->CopyIn(x, steered_.data(), num_bytes));
    }
  }
  return absl::OkStatus();
}

absl::Status Gpt::CaptureHidden(int layer, const ForwardBatch& batch) {
  const auto hidden_size = size_t(config_.hidden_size);
  for (const HiddenCapture& capture : batch.hidden_captures) {
    const auto found = std::ranges::find(capture.layers, layer);
    if (found == capture.layers.end()) continue;
    const size_t size = size_t(capture.num_rows) * hidden_size;
    float* const out = capture.out + size_t(found - capture.layers.begin()) * size;
    const float* const x = x_->As<float>() + size_t(capture.first_row) * hidden_size;
    RETURN_IF_ERROR(backend_->CopyOut(out, x, size * sizeof(float)));
  }
  return absl::OkStatus();
}

NormView Gpt::View(const GptNorm& norm) const {
  return {.kind = config_.norm_kind,
          .weight = FloatsOf(norm.weight != nullptr ? norm.weight : ones_),
          .bias = FloatsOf(norm.bias != nullptr ? norm.bias : zeros_),
          .epsilon = config_.layer_norm_epsilon};
}

NormView Gpt::HeadView(const GptNorm& norm) const {
  if (config_.qk_norm.kind == NormKind::kNone) return {};
  return {.kind = config_.qk_norm.kind,
          .weight = FloatsOf(norm.weight != nullptr ? norm.weight : ones_),
          .bias = FloatsOf(norm.bias != nullptr ? norm.bias : zeros_),
          .epsilon = config_.qk_norm.epsilon};
}

void Gpt::RunAttention(int layer, const RaggedBatch& rows, const KvView& kv,
                       AttentionStats* stats) {
  const GptLayer& w = weights_.layers[size_t(layer)];
  backend_->Linear({.num_rows = rows.num_rows,
                    .x = x_->As<float>(),
                    .norm = View(w.attention_norm),
                    .weight = w.qkv.weight.get(),
                    .bias = FloatsOf(w.qkv.bias),
                    .out = qkv_->As<float>()});
  for (const AttentionGroup& group : groups_) RunGroup(layer, group, kv, stats);
}

void Gpt::RunGroup(int layer, const AttentionGroup& group, const KvView& kv,
                   AttentionStats* stats) {
  const GptLayer& w = weights_.layers[size_t(layer)];
  const AttentionSpec& spec = (*group.layers)[size_t(layer)];
  const auto row = size_t(group.first_row);
  const bool is_nope = !config_.is_nope_layer.empty() && config_.is_nope_layer[size_t(layer)];
  float* const q = q_->As<float>() + row * size_t(config_.AttentionSize());
  backend_->RopeWrite(
      {.rows = &group.rows,
       .layer = layer,
       .num_heads = config_.num_attention_heads,
       .qkv = qkv_->As<float>() + row * size_t(config_.QkvSize()),
       .rope = (is_nope ? no_rope_ : rope_)->As<float>() + row * size_t(config_.RotaryDims()),
       .rope_layout = config_.rope_layout,
       .rotary_dims = config_.RotaryDims(),
       .scales_rotary = config_.rope_scaling.attention_factor != 1,
       .qk_norm = {.q = HeadView(w.q_norm),
                   .k = HeadView(w.k_norm),
                   .after_rotary = config_.qk_norm.after_rotary},
       .normalize = spec.Form().is_length_scaled,
       .kv = kv,
       .q = q});
  backend_->Attention({.rows = &group.rows,
                       .layer = layer,
                       .num_heads = config_.num_attention_heads,
                       .spec = spec,
                       .q = q,
                       .kv = kv,
                       .out = attended_->As<float>() + row * size_t(config_.AttentionSize()),
                       .counters = stats == nullptr ? nullptr : stats + group.first_sequence,
                       .interrupt = interrupt_});
}

void Gpt::RunMlpIn(const GptLayer& w, int num_rows) {
  LinearArgs in = {.num_rows = num_rows,
                   .x = x_->As<float>(),
                   .norm = View(w.mlp_norm),
                   .weight = w.mlp_in.weight.get(),
                   .bias = FloatsOf(w.mlp_in.bias),
                   .activation = config_.activation,
                   .out = mlp_->As<float>()};
  if (config_.mlp_kind == ModelConfig::MlpKind::kGated) {
    LinearArgs gate = in;
    gate.weight = w.mlp_gate.weight.get();
    gate.bias = FloatsOf(w.mlp_gate.bias);
    backend_->Linear(gate);
    in.activation = Activation::kNone;
    in.multiply = mlp_->As<float>();
  }
  backend_->Linear(in);
}

void Gpt::AddToResidual(const GptLinear& linear, const float* from, const GptNorm& post_norm,
                        float scale, int num_rows) {
  float* const x = x_->As<float>();
  LinearArgs args = {.num_rows = num_rows,
                     .x = from,
                     .norm = {},
                     .weight = linear.weight.get(),
                     .bias = FloatsOf(linear.bias),
                     .scale = scale,
                     .residual = x,
                     .out = x};
  if (config_.norm_position == ModelConfig::NormPosition::kPre) {
    backend_->Linear(args);
    return;
  }
  args.scale = 1;
  args.residual = nullptr;
  args.out = branch_->As<float>();
  backend_->Linear(args);
  backend_->Norm({.num_rows = num_rows,
                  .size = config_.hidden_size,
                  .x = branch_->As<float>(),
                  .norm = View(post_norm),
                  .scale = scale,
                  .residual = x,
                  .out = x});
}

void Gpt::RunBlock(int layer, const RaggedBatch& rows, const KvView& kv, AttentionStats* stats) {
  const GptLayer& w = weights_.layers[size_t(layer)];
  RunAttention(layer, rows, kv, stats);
  // A parallel MLP reads x before attention is added to it.
  if (config_.parallel_residual) RunMlpIn(w, rows.num_rows);
  AddToResidual(w.attention_out, attended_->As<float>(), w.attention_post_norm,
                config_.attention_residual_scale, rows.num_rows);
  if (!config_.parallel_residual) RunMlpIn(w, rows.num_rows);
  AddToResidual(w.mlp_out, mlp_->As<float>(), w.mlp_post_norm, config_.mlp_residual_scale,
                rows.num_rows);
}

void Gpt::ComputeLogits(const ForwardBatch& batch, size_t first, size_t count) {
  backend_->Logits({.x = x_->As<float>(),
                    .row_ids = std::span(batch.logits_indices).subspan(first, count),
                    .norm = View(weights_.final_norm),
                    .weight = weights_.untied_head != nullptr ? weights_.untied_head.get()
                                                              : weights_.embedding.get(),
                    .softcap = config_.final_logit_softcapping,
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
                      .num_ids = config_.NumTokenIds(),
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

absl::Status Gpt::CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) {
  const auto hidden_size = size_t(config_.hidden_size);
  LSSAR_CHECK(out.size() == batch.hidden_indices.size() * hidden_size);
  RETURN_IF_ERROR(backend_->Synchronize());
  for (size_t i = 0; i < batch.hidden_indices.size(); ++i) {
    const std::span<float> hidden = out.subspan(i * hidden_size, hidden_size);
    const float* const x = x_->As<float>() + size_t(batch.hidden_indices[i]) * hidden_size;
    RETURN_IF_ERROR(backend_->CopyOut(hidden.data(), x, hidden.size_bytes()));
    NormInPlace(config_.norm_kind, final_norm_weight_, final_norm_bias_, config_.layer_norm_epsilon,
                hidden);
  }
  return absl::OkStatus();
}

void Gpt::ApplyHead(std::span<const float> hidden, std::span<float> out) const {
  const GptRegressionHead& head = weights_.regression_head;
  LSSAR_CHECK(!head.bias.empty() && out.size() == head.bias.size());
  LSSAR_CHECK(hidden.size() == size_t(config_.hidden_size));
  for (size_t i = 0; i < out.size(); ++i) {
    double sum = double{head.bias[i]};
    const float* const row = head.weight.data() + i * hidden.size();
    for (size_t k = 0; k < hidden.size(); ++k) sum += double{row[k]} * double{hidden[k]};
    out[i] = float(sum);
  }
}

absl::Status Gpt::CheckBackend(const ModelConfig& config, const Backend& backend) {
  for (const AttentionSpec& spec : config.attention) RETURN_IF_ERROR(backend.CheckAttention(spec));
  return CheckFeatures(backend, config.Features());
}

int64_t Gpt::ActivationBytes(const ModelConfig& config, int max_num_batched_tokens) {
  int64_t num_bytes = 0;
  for (const ActivationShape& shape : ActivationShapes(config, max_num_batched_tokens)) {
    num_bytes += shape.NumBytes();
  }
  return num_bytes;
}

absl::Status Gpt::CheckActivationsFit(const ModelConfig& config, int max_num_batched_tokens,
                                      int64_t free_bytes) {
  const int64_t num_bytes = ActivationBytes(config, max_num_batched_tokens);
  if (num_bytes <= free_bytes) return absl::OkStatus();
  std::map<std::string_view, int64_t> bytes_by_fields;
  for (const ActivationShape& shape : ActivationShapes(config, max_num_batched_tokens)) {
    bytes_by_fields[shape.fields] += shape.NumBytes();
  }
  const auto most =
      std::ranges::max_element(bytes_by_fields, {}, [](const auto& entry) { return entry.second; });
  return absl::ResourceExhaustedError(
      StrCat("the activations of max_num_batched_tokens = ", max_num_batched_tokens,
             " tokens take ", num_bytes, " bytes, ", most->second, " of them by ", most->first,
             " of config.json, but ", free_bytes, " bytes are free"));
}

absl::StatusOr<std::unique_ptr<Gpt>> Gpt::Create(const ModelConfig& config, GptWeights weights,
                                                 Backend* backend, int max_num_batched_tokens) {
  if (max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens is ", max_num_batched_tokens, ", must be at least 1"));
  }
  LSSAR_CHECK(config.attention.size() == size_t(config.num_hidden_layers));
  RETURN_IF_ERROR(CheckBackend(config, *backend));
  auto gpt =
      std::unique_ptr<Gpt>(new Gpt(config, std::move(weights), backend, max_num_batched_tokens));
  RETURN_IF_ERROR(gpt->AllocateActivations());
  RETURN_IF_ERROR(gpt->FillOnes());
  RETURN_IF_ERROR(gpt->FillNoRotation());
  RETURN_IF_ERROR(gpt->CopyFinalNorm());
  return gpt;
}

Gpt::Gpt(const ModelConfig& config, GptWeights weights, Backend* backend,
         int max_num_batched_tokens)
    : config_(config),
      weights_(std::move(weights)),
      backend_(backend),
      max_num_batched_tokens_(max_num_batched_tokens) {}

absl::Status Gpt::CopyFinalNorm() {
  const NormView norm = View(weights_.final_norm);
  const auto hidden_size = size_t(config_.hidden_size);
  const size_t num_bytes = hidden_size * sizeof(float);
  final_norm_weight_.resize(hidden_size);
  final_norm_bias_.resize(hidden_size);
  RETURN_IF_ERROR(backend_->CopyOut(final_norm_weight_.data(), norm.weight, num_bytes));
  return backend_->CopyOut(final_norm_bias_.data(), norm.bias, num_bytes);
}

// The rotation by nothing: cosines of 1, sines of 0.
absl::Status Gpt::FillNoRotation() {
  const auto size = size_t(config_.RotaryDims());
  std::vector<float> angles(no_rope_->NumBytes() / sizeof(float), 0.0f);
  for (size_t i = 0; i < angles.size(); ++i) angles[i] = i % size < size / 2 ? 1.0f : 0.0f;
  return backend_->CopyIn(no_rope_->Address(), angles.data(), angles.size() * sizeof(float));
}

absl::Status Gpt::FillOnes() {
  const std::vector<float> ones(ones_->NumBytes() / sizeof(float), 1.0f);
  return backend_->CopyIn(ones_->Address(), ones.data(), ones.size() * sizeof(float));
}

absl::Status Gpt::AllocateActivations() {
  const auto shapes = ActivationShapes(config_, max_num_batched_tokens_);
  const std::array<std::unique_ptr<Buffer>*, shapes.size()> buffers{
      &x_, &qkv_, &q_, &attended_, &mlp_, &branch_, &rope_, &no_rope_, &logits_, &ones_, &zeros_};
  for (size_t i = 0; i < shapes.size(); ++i) {
    ASSIGN_OR_RETURN(*buffers[i], backend_->Allocate(size_t(shapes[i].NumBytes())));
  }
  const int max_width = std::max(
      {config_.hidden_size, config_.QkvSize(), config_.AttentionSize(), config_.intermediate_size});
  if (const absl::Status status = backend_->ReserveSteps(max_num_batched_tokens_, max_width);
      !status.ok()) {
    return absl::Status(status.code(),
                        StrCat("the workspaces of steps of max_num_batched_tokens = ",
                               max_num_batched_tokens_, " tokens: ", status.message()));
  }
  rope_frequencies_.resize(size_t(config_.RotaryDims()) / 2);
  rope_angles_.resize(size_t(max_num_batched_tokens_) * size_t(config_.RotaryDims()));
  return absl::OkStatus();
}

}  // namespace lssar

// A small model that uses every op, for tests of the cuda backend's steps.
#ifndef LSSAR_TESTS_KERNELS_CUDA_STEPPER_H_
#define LSSAR_TESTS_KERNELS_CUDA_STEPPER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/status_macros.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {

struct SteppedSequence {
  int num_rows = 1;
  int first_position = 0;
  std::vector<int32_t> pages;
};

// A model of two layers and two heads, with its own memory.
class Stepper {
 public:
  static constexpr int kHeads = 2, kDim = 32, kWidth = kHeads * kDim, kLayers = 2, kVocab = 40;
  static constexpr int kMaxRows = 80, kPageSize = 16, kNumPages = 160;

  // Errors  those of the backend's calls
  static absl::StatusOr<std::unique_ptr<Stepper>> Make(Backend& backend) {
    auto stepper = std::unique_ptr<Stepper>(new Stepper(backend));
    RETURN_IF_ERROR(stepper->Reserve());
    RETURN_IF_ERROR(stepper->PackWeights());
    return stepper;
  }

  // Runs the rows, by RunStep or as plain ops, and computes logits of the last row.
  absl::Status Step(const std::vector<SteppedSequence>& sequences, bool by_run_step = true) {
    return RunRows(sequences, [&](const StepArgs& args, absl::FunctionRef<void()> ops) {
      by_run_step ? backend_.RunStep(args, ops) : ops();
    });
  }
  // Backend::PrepareSteps.
  absl::Status Prepare(int max_rows, int max_keys) {
    return RunRows({{.pages = {0}}}, [&](const StepArgs& args, absl::FunctionRef<void()> ops) {
      backend_.PrepareSteps(args, max_rows, max_keys, ops);
    });
  }

  // Results of the last step: rows of the residual stream, the pools, statistics, and the last
  // row's sampling results.
  std::vector<float> x;
  std::vector<AttentionStats> counters;
  std::vector<SampleResult> sampled;
  int num_op_runs = 0;  // of all steps

  std::vector<uint16_t> Pools() {
    std::vector<uint16_t> pools(kv_.layout.PoolBytes());  // two pools of two bytes an element
    const size_t num_bytes = kv_.layout.PoolBytes();
    LSSAR_CHECK(backend_.CopyOut(pools.data(), kv_.k, num_bytes).ok());
    LSSAR_CHECK(backend_.CopyOut(pools.data() + num_bytes / 2, kv_.v, num_bytes).ok());
    return pools;
  }
  absl::Status CopyPage(int32_t from, int32_t to) {
    const std::vector<PageCopy> copies{{.from = from, .to = to}};
    backend_.CopyPages({.kv = kv_, .copies = copies});
    return backend_.Synchronize();
  }
  Buffer& X() { return *x_; }

 private:
  explicit Stepper(Backend& backend) : backend_(backend) {}

  absl::Status RunRows(
      const std::vector<SteppedSequence>& sequences,
      absl::FunctionRef<void(const StepArgs&, absl::FunctionRef<void()>)> run_step) {
    std::vector<SequenceSlice> slices;
    int num_rows = 0;
    for (const SteppedSequence& sequence : sequences) {
      slices.push_back({.first_row = num_rows,
                        .num_rows = sequence.num_rows,
                        .first_position = sequence.first_position,
                        .pages = sequence.pages});
      num_rows += sequence.num_rows;
    }
    const RaggedBatch rows{.num_rows = num_rows, .sequences = slices};
    std::vector<int32_t> ids;
    std::vector<float> angles;
    for (const SequenceSlice& slice : slices) {
      for (int r = 0; r < slice.num_rows; ++r) {
        const int position = slice.first_position + r;
        ids.push_back((7 * position + slice.pages[0]) % kVocab);
        for (int i = 0; i < kDim; ++i) {
          const float turn = 0.01f * float(position) * float(1 + i % (kDim / 2));
          angles.push_back(i < kDim / 2 ? std::cos(turn) : std::sin(turn));
        }
      }
    }
    counters.assign(slices.size(), {});
    RETURN_IF_ERROR(backend_.CopyIn(rope_->Address(), angles.data(), angles.size() * 4));
    const auto ops = [&] {
      ++num_op_runs;
      RunOps(rows, ids);
    };
    run_step({.owner = this,
              .rows = &rows,
              .ids = ids,
              .kv = kv_,
              .counters = counters.data(),
              .max_rows = kMaxRows},
             ops);
    return Finish(num_rows);
  }

  absl::Status Reserve() {
    KvLayout layout{.num_layers = kLayers,
                    .num_kv_heads = kHeads,
                    .head_dim = kDim,
                    .page_size = kPageSize,
                    .num_pages = kNumPages,
                    .dtype = DType::kF16};
    RETURN_IF_ERROR(backend_.FitLayout(layout));
    constexpr size_t kRowBytes = size_t{kMaxRows} * kWidth * sizeof(float);
    const struct {
      std::unique_ptr<Buffer>* buffer;
      size_t num_bytes;
    } wanted[] = {{&x_, kRowBytes},          {&qkv_, 3 * kRowBytes},
                  {&rope_, kRowBytes},       {&q_, kRowBytes},
                  {&attended_, kRowBytes},   {&logits_, 2 * kVocab * sizeof(float)},
                  {&k_, layout.PoolBytes()}, {&v_, layout.PoolBytes()}};
    for (const auto& want : wanted) {
      ASSIGN_OR_RETURN(*want.buffer, backend_.Allocate(want.num_bytes));
    }
    kv_ = {layout, k_->Address(), v_->Address()};
    return absl::OkStatus();
  }

  absl::Status PackWeights() {
    const struct {
      std::unique_ptr<PackedMatrix>* matrix;
      int num_rows;
    } wanted[] = {{&embedding_, kVocab}, {&qkv_weight_, 3 * kWidth}, {&out_weight_, kWidth}};
    for (const auto& want : wanted) {
      const std::vector<float> w =
          RandomFloats(size_t(want.num_rows) * kWidth, uint32_t(want.num_rows), 0.2f);
      const MatrixView view{.elements = w.data(), .num_rows = want.num_rows, .num_cols = kWidth};
      ASSIGN_OR_RETURN(*want.matrix, backend_.Pack(view, DType::kF16));
    }
    return absl::OkStatus();
  }

  void RunOps(const RaggedBatch& rows, std::span<const int32_t> ids) {
    float* const x_rows = x_->As<float>();
    backend_.Embed({.ids = ids, .table = embedding_.get(), .out = x_rows});
    for (int layer = 0; layer < kLayers; ++layer) {
      backend_.Linear({.num_rows = rows.num_rows,
                       .x = x_rows,
                       .norm = {},
                       .weight = qkv_weight_.get(),
                       .out = qkv_->As<float>()});
      backend_.RopeWrite({.rows = &rows,
                          .layer = layer,
                          .num_heads = kHeads,
                          .qkv = qkv_->As<float>(),
                          .rope = rope_->As<float>(),
                          .kv = kv_,
                          .q = q_->As<float>()});
      backend_.Attention({.rows = &rows,
                          .layer = layer,
                          .num_heads = kHeads,
                          .spec = {},
                          .q = q_->As<float>(),
                          .kv = kv_,
                          .out = attended_->As<float>(),
                          .counters = counters.data()});
      backend_.Linear({.num_rows = rows.num_rows,
                       .x = attended_->As<float>(),
                       .norm = {},
                       .weight = out_weight_.get(),
                       .activation = Activation::kGeluTanh,
                       .residual = x_rows,
                       .out = x_rows});
    }
  }

  absl::Status Finish(int num_rows) {
    const std::vector<int32_t> last(2, num_rows - 1);
    backend_.Logits({.x = x_->As<float>(),
                     .row_ids = last,
                     .norm = {},
                     .weight = embedding_.get(),
                     .logits = logits_->As<float>()});
    const SamplingParams params{.top_p = 0.9f, .repetition_penalty = 2};
    const std::vector<TokenCount> counts{{.id = 3}};
    const std::vector<SampleRequest> requests{{.target = 1, .counts = {}, .num_logprobs = 2},
                                              {.params = &params, .counts = counts}};
    sampled.assign(2, {});
    backend_.Sample(
        {.logits = logits_->As<float>(), .vocab = kVocab, .rows = requests, .out = sampled});
    RETURN_IF_ERROR(backend_.Synchronize());
    x.assign(size_t(num_rows) * kWidth, 0);
    return backend_.CopyOut(x.data(), x_->Address(), x.size() * sizeof(float));
  }

  Backend& backend_;
  std::unique_ptr<Buffer> x_, qkv_, rope_, q_, attended_, logits_, k_, v_;
  std::unique_ptr<PackedMatrix> embedding_, qkv_weight_, out_weight_;
  KvView kv_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_KERNELS_CUDA_STEPPER_H_

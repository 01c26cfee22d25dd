// Attention capture: the attention weights of chosen query tokens of a prompt.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/sequence.h"
#include "runtime/sequence_task.h"

namespace lssar {
namespace {

// Keys that one step reads at most, unless a single row has more: 15 ms of the engine's thread.
constexpr int64_t kMaxStepKeys = 1 << 16;

// The `top_k` largest of the non-zero weights, ties resolved in favour of the lower key; all of
// them when top_k is 0. Some kinds of attention have negative weights, or weights that do not sum
// to 1; sizes are those of absolute values.
RowWeights SparseWeights(const AttentionRow& full, size_t top_k) {
  const std::vector<double>& weights = full.weights;
  RowWeights row;
  row.num_zero = full.num_zero;
  double sum = 0, sum_of_logs = 0;
  std::vector<int32_t> keys;
  for (size_t key = 0; key < weights.size(); ++key) {
    const double size = std::fabs(weights[key]);
    if (size == 0) continue;
    keys.push_back(int32_t(key));
    sum += size;
    sum_of_logs += size * std::log(size);
  }
  row.num_nonzero = int(keys.size());
  if (keys.empty()) return row;
  row.entropy = std::log(sum) - sum_of_logs / sum;
  if (std::isnan(row.entropy)) return row;  // the row's logits are not finite and end the request
  if (top_k > 0 && top_k < keys.size()) {
    const auto size = [&](int32_t key) { return std::fabs(weights[size_t(key)]); };
    const auto is_before = [&](int32_t a, int32_t b) {
      return size(a) != size(b) ? size(a) > size(b) : a < b;
    };
    std::ranges::nth_element(keys, keys.begin() + std::ptrdiff_t(top_k), is_before);
    for (size_t i = top_k; i < keys.size(); ++i) row.dropped += size(keys[i]);
    keys.resize(top_k);
    std::ranges::sort(keys);
  }
  for (const int32_t key : keys) row.keys.push_back({key, float(weights[size_t(key)])});
  return row;
}

// Tokens before the first captured one may come from the prefix cache; tokens after the last are
// never computed. The logits of a captured token are requested to learn whether they are finite: a
// NaN anywhere in its attention reaches them.
class CaptureTask final : public SequenceTask, private WeightsSink {
 public:
  // `params` must outlive the task.
  explicit CaptureTask(const CaptureParams* params)
      : params_(params), heads_{.layers = params->layers, .heads = params->heads, .sink = this} {
    if (!params->statistics) return;
    for (const int32_t layer : params->layers) {
      for (const int32_t head : params->heads) {
        statistics_.push_back({.layer = layer, .head = head});
      }
    }
  }

  bool NeedsLogits(const Sequence&, int position) const override {
    return std::binary_search(params_->rows.begin() + std::ptrdiff_t(num_captured_),
                              params_->rows.end(), position);
  }

  int FirstLogitsPosition(const Sequence&) const override { return params_->rows[num_captured_]; }
  bool IsStreaming() const override { return false; }
  const HeadCapture* Capture() const override { return &heads_; }

  int64_t NumCapturedWeights(const Sequence& sequence, int num_tokens) const override {
    const int end = sequence.num_computed_tokens + num_tokens;
    int64_t num_weights = 0;
    for (size_t i = num_captured_; i < params_->rows.size() && params_->rows[i] < end; ++i) {
      num_weights += NumWeights(params_->rows[i]);
    }
    return num_weights;
  }

  int MaxTokensInStep(const Sequence& sequence) const override {
    int64_t num_keys = 0;
    for (size_t i = num_captured_; i < params_->rows.size(); ++i) {
      num_keys += NumWeights(params_->rows[i]);
      if (num_keys > kMaxStepKeys && i > num_captured_) {
        return params_->rows[i] - sequence.num_computed_tokens;
      }
    }
    return sequence.NumPendingTokens();
  }

  SampleRequest MakeSampleRequest(const Sequence& sequence, int position) override {
    return {.target = sequence.tokens[size_t(position)], .counts = {}};
  }

  void OnSampleResult(int, SampleResult*) override { ++num_captured_; }
  void Advance(Sequence*) override {}

  void Publish(OutputSink* sink) override {
    if (params_->statistics) {
      if (IsDone()) sink->OnResult(std::move(statistics_));
      return;
    }
    if (weights_.empty()) return;
    // The model computed the step layer by layer.
    std::ranges::sort(weights_, {}, [](const RowWeights& row) {
      return std::tuple(row.row, row.layer, row.head);
    });
    sink->OnResult(std::exchange(weights_, {}));
  }

  bool IsDone() const override { return num_captured_ == params_->rows.size(); }
  int NumGenerated() const override { return 0; }

 private:
  void OnWeights(int layer, int head, int position, const AttentionRow& full) override {
    if (params_->statistics) {
      // A row that is not finite ends the request.
      StatisticsOf(layer, head).Add(full.weights, full.num_zero);
      return;
    }
    RowWeights row = SparseWeights(full, size_t(params_->top_k));
    row.layer = layer;
    row.head = head;
    row.row = position;
    weights_.push_back(std::move(row));
  }

  // The weights of the captured heads in a row.
  int64_t NumWeights(int row) const {
    return int64_t(params_->layers.size() * params_->heads.size()) * (row + 1);
  }

  HeadStatistics& StatisticsOf(int layer, int head) {
    const auto index_of = [](const std::vector<int32_t>& sorted, int value) {
      return size_t(std::ranges::lower_bound(sorted, value) - sorted.begin());
    };
    return statistics_[index_of(params_->layers, layer) * params_->heads.size() +
                       index_of(params_->heads, head)];
  }

  const CaptureParams* const params_;
  const HeadCapture heads_;
  std::vector<HeadStatistics> statistics_;  // of each layer and head; with params_->statistics
  size_t num_captured_ = 0;                 // of params_->rows
  std::vector<RowWeights> weights_;         // of the step
};

}  // namespace

void AddCaptureTasks(SequenceGroup* group) {
  const CaptureParams& params = *group->request.Capture();
  for (Sequence& sequence : group->sequences) {
    sequence.tokens.resize(size_t(params.rows.back()) + 1);
    sequence.task = std::make_unique<CaptureTask>(&params);
  }
}

}  // namespace lssar

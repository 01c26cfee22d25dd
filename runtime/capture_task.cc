#include "runtime/capture_task.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "runtime/sequence.h"

namespace lssar {
namespace {

// Of one step at most, unless one row has more: 15 ms of the engine's thread.
constexpr int64_t kMaxStepKeys = 1 << 16;

// Of all keys with a weight that is not zero: the `top_k` largest, of equal ones the first; all of
// them when top_k is 0. Weights of some kinds of attention are negative, or do not sum to 1: what
// is said of their sizes is said of absolute values.
RowWeights Sparse(std::span<const double> weights, size_t top_k) {
  RowWeights row;
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
  if (std::isnan(row.entropy)) return row;  // its logits end the request
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

}  // namespace

CaptureTask::CaptureTask(const CaptureParams* params)
    : params_(params), heads_{.layers = params->layers, .heads = params->heads, .sink = this} {}

bool CaptureTask::WantsLogits(const Sequence&, int position) const {
  return std::binary_search(params_->rows.begin() + std::ptrdiff_t(num_taken_), params_->rows.end(),
                            position);
}

int CaptureTask::FirstWantedRow(const Sequence&) const { return params_->rows[num_taken_]; }

int CaptureTask::MaxRows(const Sequence& sequence) const {
  const auto num_heads = int64_t(params_->layers.size() * params_->heads.size());
  int64_t num_keys = 0;
  for (size_t i = num_taken_; i < params_->rows.size(); ++i) {
    num_keys += num_heads * (params_->rows[i] + 1);
    if (num_keys > kMaxStepKeys && i > num_taken_) return params_->rows[i] - sequence.num_computed;
  }
  return sequence.NumPending();
}

SampleRequest CaptureTask::Ask(const Sequence& sequence, int position) const {
  return {.target = sequence.tokens[size_t(position)], .counts = {}};
}

void CaptureTask::Take(int, SampleResult*) { ++num_taken_; }

// The model went through the step layer by layer.
void CaptureTask::Publish(OutputSink* sink) {
  if (weights_.empty()) return;
  std::ranges::sort(weights_, {},
                    [](const RowWeights& row) { return std::tuple(row.row, row.layer, row.head); });
  sink->OnWeights(std::exchange(weights_, {}));
}

void CaptureTask::OnWeights(int layer, int head, int position, std::span<const double> weights) {
  RowWeights row = Sparse(weights, size_t(params_->top_k));
  row.layer = layer;
  row.head = head;
  row.row = position;
  weights_.push_back(std::move(row));
}

}  // namespace lssar

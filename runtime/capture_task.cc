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
// them when top_k is 0.
RowWeights Sparse(std::span<const double> weights, size_t top_k) {
  RowWeights row;
  for (const double w : weights) {
    if (w == 0) continue;
    ++row.num_nonzero;
    row.entropy -= w * std::log(w);
  }
  if (std::isnan(row.entropy)) return row;  // its logits end the request
  std::vector<int32_t> keys(weights.size());
  std::iota(keys.begin(), keys.end(), 0);
  std::erase_if(keys, [&](int32_t key) { return weights[size_t(key)] == 0; });
  if (top_k > 0 && top_k < keys.size()) {
    const auto is_before = [&](int32_t a, int32_t b) {
      return weights[size_t(a)] != weights[size_t(b)] ? weights[size_t(a)] > weights[size_t(b)]
                                                      : a < b;
    };
    std::ranges::nth_element(keys, keys.begin() + std::ptrdiff_t(top_k), is_before);
    for (size_t i = top_k; i < keys.size(); ++i) row.dropped += weights[size_t(keys[i])];
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

SampleRow CaptureTask::Ask(const Sequence& sequence, int position) const {
  return {.target = sequence.tokens[size_t(position)], .counts = {}};
}

void CaptureTask::Take(int, SampledRow*) { ++num_taken_; }

// The model went through the step layer by layer.
void CaptureTask::Publish(TokenSink* sink) {
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

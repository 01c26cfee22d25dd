// Embedding: hidden states of a prompt, or the regression head's outputs.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "runtime/sequence.h"
#include "runtime/sequence_task.h"

namespace lssar {
namespace {

// Smaller norms count as this, so that a zero vector stays zero.
constexpr double kMinVectorNorm = 1e-12;

// Pooling, then the regression head, then the L2 norm.
class EmbedTask final : public SequenceTask {
 public:
  // `params` and `model` must outlive the task.
  EmbedTask(const EmbedParams* params, const LanguageModel* model, int num_tokens)
      : params_(params), model_(model), num_tokens_(num_tokens) {
    if (params_->pooling == Pooling::kLast) next_position_ = num_tokens_ - 1;
    vectors_.num_layers = int(params_->layers.size());
  }

  bool NeedsLogits(const Sequence&, int) const override { return false; }
  bool NeedsHiddenState(const Sequence&, int position) const override {
    if (position < next_position_) return false;
    return params_->positions.empty() || std::ranges::binary_search(params_->positions, position);
  }
  std::span<const int32_t> HiddenLayers() const override { return params_->layers; }
  int MaxTokensInStep(const Sequence& sequence) const override {
    if (params_->pooling == Pooling::kLast) return sequence.NumPendingTokens();
    const int64_t most = std::max(limits::kMaxSequenceFloats / FloatsPerToken(), int64_t{1});
    return int(std::min(int64_t{sequence.NumPendingTokens()}, most));
  }
  int64_t MaxFloatsInStep(const Sequence& sequence) const override {
    if (params_->pooling == Pooling::kLast) return 0;  // of a step's tokens one at most has results
    return FloatsPerToken() * MaxTokensInStep(sequence);
  }

  // The tokens before the first one that is needed may come from the prefix cache.
  int FirstLogitsPosition(const Sequence&) const override {
    if (params_->positions.empty()) return std::min(next_position_, num_tokens_ - 1);
    const auto next = std::ranges::lower_bound(params_->positions, next_position_);
    return next == params_->positions.end() ? params_->positions.back() : *next;
  }
  bool IsStreaming() const override { return false; }
  SampleRequest MakeSampleRequest(const Sequence&, int) override { LSSAR_CHECK(false); }
  void OnSampleResult(int, SampleResult*) override { LSSAR_CHECK(false); }

  void OnHiddenState(int position, std::span<const float> hidden) override {
    next_position_ = position + 1;
    ++num_received_;
    if (params_->pooling != Pooling::kMean) return AppendToken(hidden);
    sums_.resize(hidden.size());
    for (size_t i = 0; i < hidden.size(); ++i) sums_[i] += double{hidden[i]};
    if (num_received_ < NumWanted()) return;
    std::vector<float> mean(hidden.size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = float(sums_[i] / NumWanted());
    AppendToken(mean);
  }

  void Advance(Sequence*) override {}

  void Publish(OutputSink* sink) override {
    if (vectors_.values.empty()) return;
    const int num_layers = vectors_.num_layers;
    const int next = vectors_.first + int(vectors_.values.size()) / (num_layers * vectors_.size);
    sink->OnResult(std::exchange(vectors_, {.first = next, .num_layers = num_layers}));
  }

  bool IsDone() const override { return num_received_ == NumWanted(); }
  int NumGenerated() const override { return 0; }

 private:
  int64_t FloatsPerToken() const {
    return std::ssize(params_->layers) * model_->Config().hidden_size;
  }
  int NumWanted() const {
    if (params_->pooling == Pooling::kLast) return 1;
    return params_->positions.empty() ? num_tokens_ : int(params_->positions.size());
  }

  void AppendToken(std::span<const float> hidden) {
    const size_t hidden_size = hidden.size() / params_->layers.size();
    for (size_t first = 0; first < hidden.size(); first += hidden_size) {
      AppendVector(hidden.subspan(first, hidden_size));
    }
  }

  void AppendVector(std::span<const float> hidden) {
    std::vector<float> output(hidden.begin(), hidden.end());
    if (params_->apply_head) {
      output.resize(size_t(model_->NumHeadOutputs()));
      model_->ApplyHead(hidden, output);
    }
    double squares = 0;
    for (const float value : output) squares += double{value} * double{value};
    const double scale =
        params_->normalize ? 1 / std::max(std::sqrt(squares), kMinVectorNorm) : 1.0;
    vectors_.size = int(output.size());
    for (const float value : output) vectors_.values.push_back(float(double{value} * scale));
  }

  const EmbedParams* const params_;
  const LanguageModel* const model_;
  const int num_tokens_;
  int next_position_ = 0;     // hidden states of tokens before it are not needed any more
  int num_received_ = 0;      // tokens whose hidden states were received
  std::vector<double> sums_;  // [layers, hidden_size], of kMean
  EmbeddingBlock vectors_;    // of the step
};

}  // namespace

void AddEmbedTasks(const Checkpoint& checkpoint, SequenceGroup* group) {
  for (Sequence& sequence : group->sequences) {
    sequence.task = std::make_unique<EmbedTask>(group->request.Embed(), checkpoint.model.get(),
                                                int(group->request.prompt.size()));
  }
}

}  // namespace lssar

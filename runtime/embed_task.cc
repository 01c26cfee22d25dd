// Embedding: hidden states of a prompt after the final norm, or the regression head's outputs.
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
      : params_(params), model_(model), num_tokens_(num_tokens) {}

  bool NeedsLogits(const Sequence&, int) const override { return false; }
  bool NeedsHiddenState(const Sequence& sequence, int position) const override {
    return position >= FirstLogitsPosition(sequence);
  }
  // Only the last token is needed if its vector is the result; the tokens before it may then come
  // from the prefix cache.
  int FirstLogitsPosition(const Sequence&) const override {
    return params_->pooling == Pooling::kLast ? num_tokens_ - 1 : num_received_;
  }
  bool IsStreaming() const override { return false; }
  SampleRequest MakeSampleRequest(const Sequence&, int) override { LSSAR_CHECK(false); }
  void OnSampleResult(int, SampleResult*) override { LSSAR_CHECK(false); }

  void OnHiddenState(int position, std::span<const float> hidden) override {
    num_received_ = position + 1;
    switch (params_->pooling) {
      case Pooling::kToken: return AppendVector(hidden);
      case Pooling::kLast: return AppendVector(hidden);
      case Pooling::kMean: break;
    }
    sums_.resize(hidden.size());
    for (size_t i = 0; i < hidden.size(); ++i) sums_[i] += double{hidden[i]};
    if (num_received_ < num_tokens_) return;
    std::vector<float> mean(hidden.size());
    for (size_t i = 0; i < mean.size(); ++i) mean[i] = float(sums_[i] / num_tokens_);
    AppendVector(mean);
  }

  void Advance(Sequence*) override {}

  void Publish(OutputSink* sink) override {
    if (vectors_.values.empty()) return;
    const int next = vectors_.first + int(vectors_.values.size()) / vectors_.size;
    sink->OnResult(std::exchange(vectors_, {.first = next}));
  }

  bool IsDone() const override { return num_received_ == num_tokens_; }
  int NumGenerated() const override { return 0; }

 private:
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
  int num_received_ = 0;      // tokens whose hidden state was received, or that are not needed
  std::vector<double> sums_;  // [hidden_size], of kMean
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

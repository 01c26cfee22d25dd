// A language model that passes every call to another one: the base of test models that change one.
#ifndef LSSAR_TESTS_SUPPORT_FORWARDING_MODEL_H_
#define LSSAR_TESTS_SUPPORT_FORWARDING_MODEL_H_

#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "models/language_model.h"

namespace lssar {

class ForwardingModel : public LanguageModel {
 public:
  explicit ForwardingModel(std::unique_ptr<LanguageModel> model) : model_(std::move(model)) {}

  const ModelConfig& Config() const override { return model_->Config(); }
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionStats* stats) override {
    return model_->Forward(batch, kv, stats);
  }
  absl::Status PrepareSteps(const KvView& kv, int max_rows, int max_keys) override {
    return model_->PrepareSteps(kv, max_rows, max_keys);
  }
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
              std::span<SampleResult> results) override {
    model_->Sample(batch, requests, results);
  }
  absl::Status Synchronize() override { return model_->Synchronize(); }
  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override {
    return model_->CopyLogits(batch, first, count, out);
  }
  absl::Status CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) override {
    return model_->CopyHiddenStates(batch, out);
  }
  int NumHeadOutputs() const override { return model_->NumHeadOutputs(); }
  void ApplyHead(std::span<const float> hidden, std::span<float> out) const override {
    model_->ApplyHead(hidden, out);
  }

 private:
  const std::unique_ptr<LanguageModel> model_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_FORWARDING_MODEL_H_

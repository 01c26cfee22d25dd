// Checkpoints for tests: hand-made safetensors files, loaded models.
#ifndef LSSAR_TESTS_MODELS_FIXTURE_H_
#define LSSAR_TESTS_MODELS_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "tests/support/scratch_directory.h"

namespace lssar::testing {

inline constexpr std::string_view kShippedModel = "models/zoo/lssar-6m";
inline constexpr std::string_view kSmallModel = "tests/golden/gpt_lssar";

std::string ReadFile(const std::string& path);
// `count` times the text.
std::string Repeated(std::string_view text, int count);

struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed safetensors file with these tensors, in order.
std::string MakeSafetensors(const std::vector<RawTensor>& tensors);
// The length of `header`, `header`, and `num_bytes` zeros.
std::string MakeRawSafetensors(std::string_view header, size_t num_bytes);
std::string FloatBytes(const std::vector<float>& values);
// The tensors of a file, in name order.
std::vector<RawTensor> ReadTensors(const std::string& path);

// Ends the test program if there is no such backend.
std::unique_ptr<Backend> NewBackend(const std::string& name, int num_threads = 2);

struct TestModel {
  std::unique_ptr<Backend> backend;
  Checkpoint checkpoint;

  LanguageModel* Get() const { return checkpoint.model.get(); }
  size_t Vocab() const { return size_t(checkpoint.config.vocab_size); }
};

// Ends the test program if the checkpoint does not load.
TestModel LoadModel(std::string_view directory, std::unique_ptr<Backend> backend,
                    const LoadOptions& options = {});

// Token ids of the shipped model's held-out documents, from the first on.
std::vector<int32_t> HeldOutTokens(size_t num_tokens);

// Log-probabilities of one token's logits.
std::vector<double> LogSoftmax(std::span<const float> logits);
// Kullback-Leibler divergence of `other` from `exact`, both one token's logits, in nats.
double Divergence(std::span<const float> exact, std::span<const float> other);

// The message of a status that must not be OK.
std::string MessageOf(const absl::Status& status);

}  // namespace lssar::testing

#endif  // LSSAR_TESTS_MODELS_FIXTURE_H_

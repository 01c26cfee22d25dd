#include "tests/models/fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/check.h"
#include "models/safetensors.h"
#include "nlohmann/json.hpp"

namespace lssar::testing {

std::string Repeated(std::string_view text, int count) {
  std::string repeated;
  for (int i = 0; i < count; ++i) repeated += text;
  return repeated;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  LSSAR_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string MakeRawSafetensors(std::string_view header, size_t num_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += char(header.size() >> (8 * i));
  file += header;
  return file + std::string(num_bytes, '\0');
}

std::string MakeSafetensors(const std::vector<RawTensor>& tensors) {
  nlohmann::ordered_json header;
  std::string bytes;
  for (const RawTensor& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {bytes.size(), bytes.size() + t.bytes.size()}}};
    bytes += t.bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return MakeRawSafetensors(text, 0) + bytes;
}

std::string FloatBytes(const std::vector<float>& values) {
  // Not memcpy: data() of an empty vector may be null.
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

std::vector<RawTensor> ReadTensors(const std::string& path) {
  const absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  LSSAR_CHECK(file.ok());
  std::vector<RawTensor> tensors;
  for (const auto& [name, view] : file->Tensors()) {
    tensors.push_back({name,
                       std::string(NameOf(view.type)),
                       view.shape,
                       {reinterpret_cast<const char*>(view.bytes.data()), view.bytes.size()}});
  }
  return tensors;
}

std::unique_ptr<Backend> NewBackend(const std::string& name, int num_threads) {
  BackendOptions options;
  options.name = name;
  options.num_threads = num_threads;
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options);
  LSSAR_CHECK(backend.ok());
  return *std::move(backend);
}

TestModel LoadModel(std::string_view directory, std::unique_ptr<Backend> backend,
                    const LoadOptions& options) {
  absl::StatusOr<Checkpoint> checkpoint =
      LoadCheckpoint(std::string(directory), backend.get(), options);
  if (!checkpoint.ok()) std::cerr << checkpoint.status().message() << std::endl;
  LSSAR_CHECK(checkpoint.ok());
  return {.backend = std::move(backend), .checkpoint = *std::move(checkpoint)};
}

std::vector<int32_t> HeldOutTokens(size_t num_tokens) {
  const std::string bytes = ReadFile(std::string(kShippedModel) + "/held_out.bin");
  LSSAR_CHECK(num_tokens <= bytes.size() / sizeof(uint16_t));
  std::vector<uint16_t> ids(num_tokens);
  std::memcpy(ids.data(), bytes.data(), num_tokens * sizeof(uint16_t));
  return {ids.begin(), ids.end()};
}

std::vector<double> LogSoftmax(std::span<const float> logits) {
  const double max = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  std::vector<double> logprobs(logits.begin(), logits.end());
  for (double& logprob : logprobs) logprob -= max + std::log(sum);
  return logprobs;
}

double Divergence(std::span<const float> exact, std::span<const float> other) {
  const std::vector<double> p = LogSoftmax(exact), q = LogSoftmax(other);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

std::string MessageOf(const absl::Status& status) {
  LSSAR_CHECK(!status.ok());
  return std::string(status.message());
}

}  // namespace lssar::testing

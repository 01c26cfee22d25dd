// The error of each K/V type: log-probabilities of a text's next tokens beside those over fp32 K/V.
//
//   kv_error MODEL TEXT 1024 4096 16384     TEXT: token ids, 16 bits each, little-endian
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"

namespace lssar::bench {
namespace {

constexpr int kChunkSize = 512;
constexpr int kPageSize = 64;

std::vector<int32_t> ReadIds(const std::string& path, size_t count) {
  std::ifstream in(path, std::ios::binary);
  std::vector<int32_t> ids;
  for (char word[2]; ids.size() < count && in.read(word, 2);) {
    ids.push_back(int32_t{uint8_t(word[0])} | int32_t{uint8_t(word[1])} << 8);
  }
  return ids;
}

double Logprob(std::span<const float> logits, int32_t id) {
  const double largest = double{*std::ranges::max_element(logits)};
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x} - largest);
  return double{logits[size_t(id)]} - largest - std::log(sum);
}

// Log-probability of each token but the first, given those before it.
absl::StatusOr<std::vector<double>> Logprobs(const Checkpoint& checkpoint, Backend* backend,
                                             DType kv_cache_dtype,
                                             const std::vector<int32_t>& ids) {
  const ModelConfig& config = checkpoint.config;
  RETURN_IF_ERROR(CheckKvType(config, kv_cache_dtype));
  const int num_tokens = int(ids.size());
  ASSIGN_OR_RETURN(const PagePool pool,
                   MakePagePool(LayoutOf(config, kv_cache_dtype, kPageSize), num_tokens, backend));
  std::vector<int32_t> positions(ids.size() - 1);
  std::iota(positions.begin(), positions.end(), 0);
  const size_t vocab = size_t(config.vocab_size);
  std::vector<double> logprobs;
  std::vector<float> logits;
  const auto add = [&](const ForwardBatch& batch) -> absl::Status {
    const int num_rows = int(batch.logits_indices.size());
    logits.resize(size_t(num_rows) * vocab);
    RETURN_IF_ERROR(checkpoint.model->CopyLogits(batch, 0, num_rows, logits));
    for (size_t i = 0; i < size_t(num_rows); ++i) {
      const auto row = std::span<const float>(logits).subspan(i * vocab, vocab);
      logprobs.push_back(Logprob(row, ids[logprobs.size() + 1]));
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(RunChunkedPrefill({.tokens = ids,
                                     .pages = pool.pages,
                                     .rope_base = RopeBaseAtLength(config, num_tokens),
                                     .chunk_size = kChunkSize,
                                     .logits_positions = positions},
                                    pool.view, checkpoint.model.get(), add));
  return logprobs;
}

absl::Status Run(const std::string& model, const std::string& text,
                 const std::vector<int>& lengths) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeBackend({}));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   LoadCheckpoint(model, backend.get(), {.max_num_batched_tokens = kChunkSize}));
  std::printf("%s\n%7s %-5s %10s %10s %10s %11s\n", backend->Describe().c_str(), "tokens", "K/V",
              "mean", "p99.9", "max", "loss - fp32");
  for (const int length : lengths) {
    const std::vector<int32_t> ids = ReadIds(text, size_t(length));
    if (ids.size() < 2 || int(ids.size()) < length) {
      return absl::InvalidArgumentError(text + " is too short");
    }
    ASSIGN_OR_RETURN(const std::vector<double> exact,
                     Logprobs(checkpoint, backend.get(), DType::kF32, ids));
    for (const DType type : {DType::kF16, DType::kFx16, DType::kI8}) {
      if (!CheckKvType(checkpoint.config, type).ok()) continue;
      ASSIGN_OR_RETURN(const std::vector<double> actual,
                       Logprobs(checkpoint, backend.get(), type, ids));
      std::vector<double> errors;
      double sum = 0, loss = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        errors.push_back(std::fabs(actual[i] - exact[i]));
        sum += errors.back();
        loss += exact[i] - actual[i];
      }
      std::ranges::sort(errors);
      const double count = double(errors.size());
      std::printf("%7d %-5s %10.2e %10.2e %10.2e %+11.2e\n", length,
                  std::string(NameOf(type)).c_str(), sum / count,
                  errors[size_t(0.999 * (count - 1))], errors.back(), loss / count);
      std::fflush(stdout);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar::bench

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: kv_error MODEL TEXT LENGTH...\n");
    return 2;
  }
  std::vector<int> lengths;
  for (int i = 3; i < argc; ++i) lengths.push_back(std::atoi(argv[i]));
  const absl::Status status = lssar::bench::Run(argv[1], argv[2], lengths);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

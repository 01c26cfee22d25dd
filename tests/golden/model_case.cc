#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/str_cat.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "models/rope.h"
#include "models/safetensors.h"
#include "tests/golden/golden_case.h"

namespace lssar {
namespace {

// Rows of one step: several chunks even of the short cases, so that chunking is part of the check.
constexpr int kChunkRows = 48;

// Measured on this project's own vectors with a margin of about ten (README.md has the figures).
double Tolerance(DType kv_cache_dtype) {
  switch (kv_cache_dtype) {
    case DType::kF32: return 5e-4;
    case DType::kF16: return 5e-2;
    case DType::kBF16: break;  // not a K/V type
    case DType::kI8: return 6e-1;
  }
  return 0;
}

struct Expected {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens.size(), vocab]
};

absl::StatusOr<Expected> ReadExpected(const std::string& path, int vocab_size) {
  absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  if (!file.ok()) return file.status();
  const TensorView* tokens = file->Find("tokens");
  const TensorView* logits = file->Find("logits");
  if (tokens == nullptr || tokens->shape.size() != 1 || tokens->NumElements() == 0) {
    return absl::InvalidArgumentError(path + ": tensor \"tokens\" must be a row of ids");
  }
  if (logits == nullptr ||
      logits->shape != std::vector<int64_t>{tokens->NumElements(), vocab_size}) {
    return absl::InvalidArgumentError(StrCat(path, ": tensor \"logits\" must have shape [",
                                             tokens->NumElements(), ", ", vocab_size, "]"));
  }
  Expected expected{.tokens = tokens->ToInts(), .logits = logits->ToFloats()};
  for (const int32_t id : expected.tokens) {
    if (id >= 0 && id < vocab_size) continue;
    return absl::InvalidArgumentError(
        StrCat(path, ": tokens hold ", id, ", must be in [0, ", vocab_size, ")"));
  }
  return expected;
}

double RowError(std::span<const float> logits, std::span<const float> expected) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = std::fabs(double(logits[i]) - double(expected[i]));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
    largest = std::max(largest, std::fabs(double(expected[i])));
  }
  return worst / largest;
}

// Worst error of the last forward's rows, which start at position `first`.
absl::StatusOr<double> ChunkError(LanguageModel& model, const ForwardBatch& batch,
                                  const Expected& expected, int first) {
  double worst = 0;
  const size_t num_rows = batch.logits_indices.size();
  const size_t vocab = size_t(model.Config().vocab_size);
  std::vector<float> logits(num_rows * vocab);
  const absl::Status copied = model.CopyLogits(batch, 0, int(num_rows), logits);
  if (!copied.ok()) return copied;
  for (size_t i = 0; i < num_rows; ++i) {
    const double error =
        RowError(std::span(logits).subspan(i * vocab, vocab),
                 std::span(expected.logits).subspan((size_t(first) + i) * vocab, vocab));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

}  // namespace

absl::StatusOr<GoldenError> RunModelCase(const std::string& directory, const GoldenCase& wanted,
                                         const GoldenSetup& setup) {
  const std::string folder = directory + "/" + wanted.name;
  absl::StatusOr<Checkpoint> checkpoint = LoadCheckpoint(
      folder, setup.backend, {.weights = std::nullopt, .max_num_batched_tokens = kChunkRows});
  if (!checkpoint.ok()) return checkpoint.status();
  const ModelConfig& config = checkpoint->config;
  absl::StatusOr<Expected> expected =
      ReadExpected(folder + "/expected.safetensors", config.vocab_size);
  if (!expected.ok()) return expected.status();
  const int num_tokens = int(expected->tokens.size());
  absl::StatusOr<PagePool> pool = MakePagePool(
      LayoutOf(config, setup.kv_cache_dtype, setup.page_size), num_tokens, setup.backend);
  if (!pool.ok()) return pool.status();

  GoldenError result{.worst = 0, .tolerance = Tolerance(setup.kv_cache_dtype)};
  for (int first = 0; first < num_tokens; first += kChunkRows) {
    const int count = std::min(kChunkRows, num_tokens - first);
    ForwardBatch batch;
    const auto begin = expected->tokens.begin() + first;
    batch.token_ids.assign(begin, begin + count);
    batch.sequences = {{.num_rows = count, .first_position = first, .pages = pool->pages}};
    batch.rope_bases = {RopeBaseAtLength(config, num_tokens)};
    for (int r = 0; r < count; ++r) batch.logits_indices.push_back(r);
    batch.logits_sequences.assign(size_t(count), 0);
    const absl::Status status = checkpoint->model->Forward(batch, pool->view, nullptr);
    if (!status.ok()) return status;
    absl::StatusOr<double> error = ChunkError(*checkpoint->model, batch, *expected, first);
    if (!error.ok()) return error.status();
    if (!(*error <= result.worst)) result.worst = *error;
    if (std::isnan(result.worst)) return result;
  }
  return result;
}

}  // namespace lssar

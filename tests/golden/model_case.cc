#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "models/safetensors.h"
#include "tests/golden/golden_case.h"

namespace lssar {
namespace {

// Tokens of a step: small, so that even the short cases run in several chunks.
constexpr int kChunkSize = 48;

// About ten times the measured errors (README.md).
double Tolerance(DType kv_cache_dtype) {
  switch (kv_cache_dtype) {
    case DType::kF32: return 5e-4;
    case DType::kF16: return 5e-2;
    case DType::kBF16:
    case DType::kI4: break;  // no K/V types
    case DType::kFx16: return 5e-2;
    case DType::kI8: return 6e-1;
  }
  return 0;
}

// ln(sum(e^x)).
double LogSum(std::span<const float> logits) {
  double max = logits[0], sum = 0;
  for (const float x : logits) max = std::max(max, double{x});
  for (const float x : logits) sum += std::exp(double{x} - max);
  return max + std::log(sum);
}

// max |d| of a log-probability; NaN where one is NaN.
double LogprobError(std::span<const float> logits, std::span<const float> expected) {
  const double shift = LogSum(logits) - LogSum(expected);
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double d = std::fabs(double{logits[i]} - double{expected[i]} - shift);
    if (!(d <= worst)) worst = d;
    if (std::isnan(d)) break;
  }
  return worst;
}

// Keeps the larger error, or a NaN.
void Worsen(double error, double* worst) {
  if (!std::isnan(*worst) && !(error <= *worst)) *worst = error;
}

struct Expected {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens.size(), vocab]
};

absl::StatusOr<Expected> ReadExpected(const std::string& path, int vocab_size) {
  ASSIGN_OR_RETURN(const TensorFile file, TensorFile::Open(path));
  const TensorView* tokens = file.Find("tokens");
  const TensorView* logits = file.Find("logits");
  if (tokens == nullptr || tokens->shape.size() != 1 || tokens->NumElements() == 0) {
    return absl::InvalidArgumentError(
        path + ": tensor \"tokens\" must have one dimension and at least one id");
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

}  // namespace

absl::StatusOr<GoldenError> RunModelCase(const std::string& directory, const GoldenCase& wanted,
                                         const GoldenSetup& setup) {
  const std::string folder = directory + "/" + wanted.name;
  ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                   LoadCheckpoint(folder, setup.backend, {.max_num_batched_tokens = kChunkSize}));
  const ModelConfig& config = checkpoint.config;
  RETURN_IF_ERROR(CheckKvType(config, setup.kv_cache_dtype));
  ASSIGN_OR_RETURN(const Expected expected,
                   ReadExpected(folder + "/expected.safetensors", config.vocab_size));
  const int num_tokens = int(expected.tokens.size());
  ASSIGN_OR_RETURN(const PagePool pool,
                   MakePagePool(LayoutOf(config, setup.kv_cache_dtype, setup.page_size), num_tokens,
                                setup.backend));

  GoldenError result{.worst = 0, .tolerance = Tolerance(setup.kv_cache_dtype)};
  const size_t vocab = size_t(config.vocab_size);
  std::vector<int32_t> positions(expected.tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<float> logits;
  size_t next = 0;  // position
  const auto compare = [&](const ForwardBatch& batch) -> absl::Status {
    const int num_rows = int(batch.logits_indices.size());
    logits.resize(size_t(num_rows) * vocab);
    RETURN_IF_ERROR(checkpoint.model->CopyLogits(batch, 0, num_rows, logits));
    for (size_t i = 0; i < size_t(num_rows); ++i, ++next) {
      const auto got = std::span<const float>(logits).subspan(i * vocab, vocab);
      const auto want = std::span<const float>(expected.logits).subspan(next * vocab, vocab);
      Worsen(LogitsError(got, want), &result.worst);
      Worsen(LogprobError(got, want), &result.worst_logprob);
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(RunChunkedPrefill({.tokens = expected.tokens,
                                     .pages = pool.pages,
                                     .rope_base = RopeBaseAtLength(config, num_tokens),
                                     .chunk_size = kChunkSize,
                                     .logits_positions = positions},
                                    pool.view, checkpoint.model.get(), compare));
  return result;
}

}  // namespace lssar

// SelfCheck (checkpoint.h): the golden rows of a checkpoint, run through the model as it will be
// served.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "models/safetensors.h"

namespace lssar {
namespace {

// Limits: measured on lssar-6m against its float64 logits, with a margin (BENCHMARKS.md). That of
// fp32 is the error of the arithmetic alone: 3e-6, and 3.3e-5 with random weights at p = 15.
// erf-GELU taken for tanh-GELU is 3.2e-4.
constexpr double kToleranceFp32 = 5e-5;
constexpr double kToleranceFp16 = 3e-2;
constexpr double kToleranceBf16 = 2e-1;
constexpr double kToleranceInt8 = 2e-1;
constexpr double kToleranceInt4 = 1.0;
// Wider than int8 weights': rounding K can flip a near tie of two keys at one position.
constexpr double kToleranceInt8Kv = 4e-1;

// For weights of `dtype`, and for K/V of a float `dtype`.
double ToleranceOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kToleranceFp32;
    case DType::kF16: return kToleranceFp16;
    case DType::kBF16: return kToleranceBf16;
    case DType::kI8: return kToleranceInt8;
    case DType::kI4: return kToleranceInt4;
    case DType::kFx16: return kToleranceFp16;  // K/V alone; V is fp16
  }
  LSSAR_CHECK(false);
}

// fp16 weights add no error: the golden logits were computed with them.
double Tolerance(DType kv_cache_dtype, DType dtype) {
  const double kv_tolerance =
      kv_cache_dtype == DType::kI8 ? kToleranceInt8Kv : ToleranceOf(kv_cache_dtype);
  return dtype == DType::kF16 ? kv_tolerance : std::max(kv_tolerance, ToleranceOf(dtype));
}

// What rounding alone changes of this checkpoint's golden logits (README.md): `conditioning`.
struct Conditioning {
  double fp32;
  double fp16;
  double int8;
};

// Limits by what was measured for this checkpoint. The server sums in another order than the
// measurement, and the least limits leave room for backends that compute in tiles.
constexpr double kArithmeticFactor = 30;
constexpr double kRoundingFactor = 5;
constexpr double kLeastToleranceFp16 = 3e-3;
constexpr double kLeastToleranceInt8 = 3e-2;

double Tolerance(const Conditioning& conditioning, DType kv_cache_dtype, DType dtype) {
  const double arithmetic = kArithmeticFactor * conditioning.fp32;
  const double int8 =
      std::max(kLeastToleranceInt8, kRoundingFactor * conditioning.int8 + arithmetic);
  double tolerance = std::max(kToleranceFp32, arithmetic);
  if (kv_cache_dtype == DType::kF16 || kv_cache_dtype == DType::kFx16) {
    tolerance = std::max(kLeastToleranceFp16, kRoundingFactor * conditioning.fp16 + arithmetic);
  }
  if (kv_cache_dtype == DType::kI8) tolerance = int8;
  if (dtype == DType::kF32 || dtype == DType::kF16) return tolerance;
  return std::max({tolerance, ToleranceOf(dtype), int8});  // rounded weights
}

// A row of tokens and the logits at some of its positions.
struct GoldenRow {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // ascending
  std::vector<float> logits;       // [positions.size(), vocab]
};

absl::Status TensorError(const TensorFile& file, std::string_view name, std::string_view problem) {
  return absl::InvalidArgumentError(
      StrCat(file.Paths().front(), ": tensor \"", name, "\" ", problem));
}

// The integers of tensor `name`, all in [0, limit).
absl::StatusOr<std::vector<int32_t>> ReadIds(const TensorFile& file, const std::string& name,
                                             int64_t limit) {
  const TensorView* tensor = file.Find(name);
  if (tensor == nullptr || tensor->type != TensorType::kI32 || tensor->shape.size() != 1 ||
      tensor->NumElements() == 0) {
    return TensorError(file, name, "must be I32 with at least one element");
  }
  std::vector<int32_t> ids = tensor->ToInts();
  for (const int32_t id : ids) {
    if (id >= 0 && id < limit) continue;
    return TensorError(file, name, StrCat("holds ", id, ", must be in [0, ", limit, ")"));
  }
  return ids;
}

absl::StatusOr<std::optional<Conditioning>> ReadConditioning(const TensorFile& file) {
  const std::string name = "conditioning";
  const TensorView* tensor = file.Find(name);
  if (tensor == nullptr) return std::nullopt;
  if (tensor->type != TensorType::kF32 || tensor->shape != std::vector<int64_t>{3}) {
    return TensorError(file, name, "must be F32 [3]");
  }
  const std::vector<float> values = tensor->ToFloats();
  for (const float value : values) {
    if (value >= 0 && value <= 1) continue;
    return TensorError(file, name, StrCat("holds ", value, ", must be in [0, 1]"));
  }
  return Conditioning{.fp32 = values[0], .fp16 = values[1], .int8 = values[2]};
}

absl::StatusOr<GoldenRow> ReadGoldenRow(const TensorFile& file, int index, int vocab_size) {
  GoldenRow row;
  ASSIGN_OR_RETURN(row.tokens, ReadIds(file, StrCat("tokens_", index), vocab_size));
  const std::string positions = StrCat("rows_", index);
  ASSIGN_OR_RETURN(row.positions, ReadIds(file, positions, std::ssize(row.tokens)));
  if (!std::is_sorted(row.positions.begin(), row.positions.end())) {
    return TensorError(file, positions, "must be in ascending order");
  }
  const std::string name = StrCat("logits_", index);
  const TensorView* logits = file.Find(name);
  if (logits == nullptr || logits->type != TensorType::kF32 ||
      logits->shape != std::vector<int64_t>{std::ssize(row.positions), vocab_size}) {
    return TensorError(file, name,
                       StrCat("must be F32 [", row.positions.size(), ", ", vocab_size, "]"));
  }
  row.logits = logits->ToFloats();
  return row;
}

// The size of all rows, within the bounds.
absl::StatusOr<SelfCheckProgress> MeasureRows(const TensorFile& file) {
  SelfCheckProgress size;
  for (const TensorView* tokens = nullptr;
       (tokens = file.Find(StrCat("tokens_", size.num_rows))) != nullptr; ++size.num_rows) {
    const std::string name = StrCat("tokens_", size.num_rows);
    if (tokens->NumElements() > kMaxGoldenRowTokens) {
      return TensorError(file, name,
                         StrCat("holds ", tokens->NumElements(), " tokens, must hold at most ",
                                kMaxGoldenRowTokens));
    }
    size.num_tokens += tokens->NumElements();
    if (size.num_tokens > kMaxGoldenTokens) {
      return TensorError(file, name,
                         StrCat("and the rows before it hold ", size.num_tokens,
                                " tokens, must hold at most ", kMaxGoldenTokens));
    }
  }
  return size;
}

struct WorstError {
  double error = 0;
  int32_t position = 0;
};

// The worst error over the row's golden positions.
absl::StatusOr<WorstError> RunGoldenRow(const GoldenRow& row, const Checkpoint& checkpoint,
                                        const PagePool& pool,
                                        const std::function<void(size_t)>& on_tokens) {
  const ModelConfig& config = checkpoint.config;
  const size_t vocab = size_t(config.vocab_size);
  std::vector<float> logits(vocab);
  WorstError worst;
  size_t next = 0;  // in row.positions
  const auto compare = [&](const ForwardBatch& batch) -> absl::Status {
    for (int i = 0; i < int(batch.logits_indices.size()); ++i, ++next) {
      RETURN_IF_ERROR(checkpoint.model->CopyLogits(batch, i, 1, logits));
      const double error = LogitsError(logits, std::span(row.logits).subspan(next * vocab, vocab));
      if (std::isnan(worst.error) || error <= worst.error) continue;
      worst = {.error = error, .position = row.positions[next]};
    }
    on_tokens(batch.token_ids.size());
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(RunChunkedPrefill({.tokens = row.tokens,
                                     .pages = pool.pages,
                                     .rope_base = RopeBaseAtLength(config, int(row.tokens.size())),
                                     .chunk_size = checkpoint.max_num_batched_tokens,
                                     .logits_positions = row.positions},
                                    pool.view, checkpoint.model.get(), compare));
  return worst;
}

}  // namespace

absl::StatusOr<SelfCheckReport> SelfCheck(const std::string& directory,
                                          const Checkpoint& checkpoint, Backend* backend,
                                          DType kv_cache_dtype, int page_size,
                                          const OnSelfCheckProgress& on_progress) {
  const std::string path = StrCat(directory, "/golden.safetensors");
  SelfCheckReport report{.tolerance = Tolerance(kv_cache_dtype, checkpoint.dtype)};
  absl::StatusOr<TensorFile> opened = TensorFile::Open(path);
  if (absl::IsNotFound(opened.status())) return report;
  RETURN_IF_ERROR(CheckKvType(checkpoint.config, kv_cache_dtype));
  ASSIGN_OR_RETURN(const TensorFile file, std::move(opened));
  ASSIGN_OR_RETURN(const std::optional<Conditioning> conditioning, ReadConditioning(file));
  if (conditioning) report.tolerance = Tolerance(*conditioning, kv_cache_dtype, checkpoint.dtype);
  ASSIGN_OR_RETURN(SelfCheckProgress progress, MeasureRows(file));
  if (on_progress) on_progress(progress);
  const auto on_tokens = [&](size_t num_tokens) {
    progress.num_tokens_done += int64_t(num_tokens);
    if (on_progress) on_progress(progress);
  };
  for (int i = 0; file.Find(StrCat("tokens_", i)) != nullptr; ++i) {
    ASSIGN_OR_RETURN(const GoldenRow row, ReadGoldenRow(file, i, checkpoint.config.vocab_size));
    if (const std::optional<int> longest = checkpoint.config.MaxLength();
        longest && std::ssize(row.tokens) > *longest) {
      return TensorError(
          file, StrCat("tokens_", i),
          StrCat("holds ", row.tokens.size(), " tokens, but config.json has learned ",
                 "positions for ", *longest));
    }
    ASSIGN_OR_RETURN(const PagePool pool,
                     MakePagePool(LayoutOf(checkpoint.config, kv_cache_dtype, page_size),
                                  int(row.tokens.size()), backend));
    ASSIGN_OR_RETURN(const WorstError worst, RunGoldenRow(row, checkpoint, pool, on_tokens));
    if (!(worst.error <= report.tolerance)) {
      return absl::FailedPreconditionError(
          StrCat(path, ": row ", i, ", position ", worst.position,
                 ": the logits differ from the golden ones by ", worst.error,
                 " of the largest golden logit; the error must be within ", report.tolerance,
                 " for K/V ", NameOf(kv_cache_dtype), " and weights ", NameOf(checkpoint.dtype),
                 ". This build does not compute the function that the checkpoint was trained "
                 "with, or the files are damaged"));
    }
    report.worst_error = std::max(report.worst_error, worst.error);
    report.num_rows += int(row.positions.size());
  }
  RETURN_IF_ERROR(file.CheckUnchanged());
  if (report.num_rows == 0) {
    return absl::InvalidArgumentError(StrCat(path, ": tensor \"tokens_0\" is missing"));
  }
  return report;
}

}  // namespace lssar

// The golden rows that came with a checkpoint, through the model as it will be served
// (checkpoint.h).
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/check.h"
#include "kernels/str_cat.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "models/rope.h"
#include "models/safetensors.h"

namespace lssar {
namespace {

// Measured on lssar-6m against its float64 logits: see models/README.md for the figures and the
// margin.
constexpr double kToleranceFp32 = 2e-4;
constexpr double kToleranceFp16 = 3e-2;
constexpr double kToleranceBf16 = 2e-1;
constexpr double kToleranceInt8 = 2e-1;
// A golden row is one text, and the worst of its positions a near tie that the steps of keys
// decide.
constexpr double kToleranceInt8Kv = 4e-1;

// What weights may cost, and K/V of the same float type.
double ToleranceOf(DType type) {
  switch (type) {
    case DType::kF32: return kToleranceFp32;
    case DType::kF16: return kToleranceFp16;
    case DType::kBF16: return kToleranceBf16;
    case DType::kI8: return kToleranceInt8;
  }
  LSSAR_CHECK(false);
}

// fp16 weights are those that the golden logits were computed with.
double Tolerance(DType kv_cache_dtype, DType weights) {
  const double of_kv =
      kv_cache_dtype == DType::kI8 ? kToleranceInt8Kv : ToleranceOf(kv_cache_dtype);
  return weights == DType::kF16 ? of_kv : std::max(of_kv, ToleranceOf(weights));
}

// One token row and the logits at some of its positions.
struct GoldenRow {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;  // rising
  std::vector<float> logits;       // [positions.size(), vocab]
};

// Integers of tensor `name`, all in [0, limit).
absl::StatusOr<std::vector<int32_t>> ReadIds(const TensorFile& file, const std::string& name,
                                             int64_t limit) {
  const TensorView* tensor = file.Find(name);
  if (tensor == nullptr || tensor->type != TensorType::kI32 || tensor->shape.size() != 1 ||
      tensor->NumElements() == 0) {
    return absl::InvalidArgumentError(StrCat(file.Paths().front(), ": tensor \"", name,
                                             "\" must be I32 with at least one element"));
  }
  std::vector<int32_t> ids = tensor->ToInts();
  for (const int32_t id : ids) {
    if (id >= 0 && id < limit) continue;
    return absl::InvalidArgumentError(StrCat(file.Paths().front(), ": tensor \"", name, "\" holds ",
                                             id, ", must be in [0, ", limit, ")"));
  }
  return ids;
}

absl::StatusOr<GoldenRow> ReadGoldenRow(const TensorFile& file, int index, int vocab_size) {
  GoldenRow row;
  absl::StatusOr<std::vector<int32_t>> ids = ReadIds(file, StrCat("tokens_", index), vocab_size);
  if (!ids.ok()) return ids.status();
  row.tokens = *std::move(ids);
  ids = ReadIds(file, StrCat("rows_", index), int64_t(row.tokens.size()));
  if (!ids.ok()) return ids.status();
  row.positions = *std::move(ids);
  if (!std::is_sorted(row.positions.begin(), row.positions.end())) {
    return absl::InvalidArgumentError(
        StrCat(file.Paths().front(), ": tensor \"rows_", index, "\" must rise"));
  }
  const std::string name = StrCat("logits_", index);
  const TensorView* logits = file.Find(name);
  if (logits == nullptr || logits->type != TensorType::kF32 ||
      logits->shape != std::vector<int64_t>{int64_t(row.positions.size()), vocab_size}) {
    return absl::InvalidArgumentError(StrCat(file.Paths().front(), ": tensor \"", name,
                                             "\" must be F32 [", row.positions.size(), ", ",
                                             vocab_size, "]"));
  }
  row.logits = logits->ToFloats();
  return row;
}

// max |d| in units of the golden row's max |logit|; NaN where a logit is NaN.
double RowError(std::span<const float> logits, std::span<const float> golden) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double d = std::fabs(double(logits[i]) - double(golden[i]));
    if (!(d <= worst)) worst = d;
    if (std::isnan(d)) return d;
    largest = std::max(largest, std::fabs(double(golden[i])));
  }
  return worst / largest;
}

// Worst error over the row's golden positions; `at` its position.
absl::StatusOr<double> RunGoldenRow(const GoldenRow& row, Checkpoint& checkpoint,
                                    const PagePool& pool, int32_t& at) {
  LanguageModel& model = *checkpoint.model;
  const int num_tokens = int(row.tokens.size());
  const size_t vocab = size_t(checkpoint.config.vocab_size);
  std::vector<float> logits(vocab);
  double worst = 0;
  size_t next = 0;  // golden position
  for (int first = 0; first < num_tokens; first += checkpoint.max_num_batched_tokens) {
    const int count = std::min(checkpoint.max_num_batched_tokens, num_tokens - first);
    ForwardBatch batch;
    batch.token_ids.assign(row.tokens.begin() + first, row.tokens.begin() + first + count);
    batch.sequences = {{.num_rows = count, .first_position = first, .pages = pool.pages}};
    batch.rope_bases = {RopeBaseAtLength(checkpoint.config, num_tokens)};
    const size_t first_golden = next;
    for (; next < row.positions.size() && row.positions[next] < first + count; ++next) {
      batch.logits_indices.push_back(row.positions[next] - first);
      batch.logits_sequences.push_back(0);
    }
    const absl::Status status = model.Forward(batch, pool.view, nullptr);
    if (!status.ok()) return status;
    for (size_t i = 0; i < batch.logits_indices.size(); ++i) {
      const absl::Status copied = model.CopyLogits(batch, int(i), 1, logits);
      if (!copied.ok()) return copied;
      const double error =
          RowError(logits, std::span(row.logits).subspan((first_golden + i) * vocab, vocab));
      if (!(error <= worst)) {
        worst = error;
        at = row.positions[first_golden + i];
      }
      if (std::isnan(worst)) return worst;
    }
  }
  return worst;
}

}  // namespace

absl::StatusOr<SelfCheckReport> SelfCheck(const std::string& directory, Checkpoint& checkpoint,
                                          Backend* backend, DType kv_cache_dtype, int page_size) {
  const std::string path = StrCat(directory, "/golden.safetensors");
  SelfCheckReport report{.tolerance = Tolerance(kv_cache_dtype, checkpoint.weights)};
  if (access(path.c_str(), F_OK) != 0) return report;
  absl::StatusOr<TensorFile> file = TensorFile::Open(path);
  if (!file.ok()) return file.status();
  for (int i = 0; file->Find(StrCat("tokens_", i)) != nullptr; ++i) {
    absl::StatusOr<GoldenRow> row = ReadGoldenRow(*file, i, checkpoint.config.vocab_size);
    if (!row.ok()) return row.status();
    absl::StatusOr<PagePool> pool = MakePagePool(
        LayoutOf(checkpoint.config, kv_cache_dtype, page_size), int(row->tokens.size()), backend);
    if (!pool.ok()) return pool.status();
    int32_t at = 0;
    absl::StatusOr<double> error = RunGoldenRow(*row, checkpoint, *pool, at);
    if (!error.ok()) return error.status();
    if (!(*error <= report.tolerance)) {
      return absl::FailedPreconditionError(
          StrCat(path, ": row ", i, ", position ", at, ": logits are off by ", *error,
                 " of the row's largest, must be within ", report.tolerance, " with ",
                 NameOf(kv_cache_dtype), " K/V and ", NameOf(checkpoint.weights),
                 " weights: this build does not compute what the checkpoint was trained with"));
    }
    report.worst_error = std::max(report.worst_error, *error);
    report.num_rows += int(row->positions.size());
  }
  if (report.num_rows == 0) {
    return absl::InvalidArgumentError(StrCat(path, ": tensor \"tokens_0\" is missing"));
  }
  return report;
}

}  // namespace lssar

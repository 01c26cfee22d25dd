#include "kernels/reference/dense.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/float_bits.h"
#include "kernels/host_buffer.h"
#include "kernels/pack_check.h"
#include "kernels/quantize.h"

namespace lssar {
namespace {

class ReferenceMatrix final : public PackedMatrix {
 public:
  ReferenceMatrix(const MatrixView& view, DType stored, std::unique_ptr<Buffer> buffer)
      : num_rows_(view.num_rows),
        num_cols_(view.num_cols),
        stored_(stored),
        buffer_(std::move(buffer)) {}

  int NumRows() const override { return num_rows_; }
  int NumCols() const override { return num_cols_; }
  DType StoredType() const override { return stored_; }
  size_t NumBytes() const override { return buffer_->NumBytes(); }

  const float* Row(int row) const { return buffer_->As<float>() + size_t(row) * size_t(num_cols_); }

 private:
  int num_rows_;
  int num_cols_;
  DType stored_;
  std::unique_ptr<Buffer> buffer_;
};

const ReferenceMatrix& Matrix(const PackedMatrix* packed) {
  return static_cast<const ReferenceMatrix&>(*packed);
}

// norm(x), or x without a norm.
std::vector<double> Normalized(const float* x, int size, const NormView& norm) {
  std::vector<double> y(x, x + size);
  ReferenceNormInPlace(norm, &y);
  return y;
}

double Dot(const std::vector<double>& x, const float* w) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * double{w[i]};
  return sum;
}

double Activate(Activation activation, double x) {
  const double relu = x < 0 ? 0.0 : x;  // NaN stays NaN
  switch (activation) {
    case Activation::kNone: return x;
    case Activation::kGeluTanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::kGeluErf: return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kRelu: return relu;
    case Activation::kRelu2: return relu * relu;
    case Activation::kSilu: return x / (1 + std::exp(-x));
  }
  return x;
}

}  // namespace

void ReferenceNormInPlace(const NormView& norm, std::vector<double>* y) {
  if (norm.kind == NormKind::kNone) return;
  const double size = double(y->size());
  double mean = 0, variance = 0;
  if (norm.kind == NormKind::kLayerNorm) {
    for (const double element : *y) mean += element / size;
  }
  for (const double element : *y) variance += (element - mean) * (element - mean) / size;
  const double scale = 1.0 / std::sqrt(variance + double{norm.epsilon});
  for (size_t i = 0; i < y->size(); ++i) {
    const double weight = norm.weight != nullptr ? double{norm.weight[i]} : 1.0;
    const double bias = norm.bias != nullptr ? double{norm.bias[i]} : 0.0;
    (*y)[i] = ((*y)[i] - mean) * scale * weight + bias;
  }
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> ReferencePack(const MatrixView& view, DType stored) {
  RETURN_IF_ERROR(CheckPack(view));
  const size_t num_rows = size_t(view.num_rows);
  const size_t num_cols = size_t(view.num_cols);
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                   AllocateHostBuffer(num_rows * num_cols * sizeof(float)));
  for (size_t row = 0; row < num_rows; ++row) {
    const std::span<float> to(buffer->As<float>() + row * num_cols, num_cols);
    LoadRow(view, int(row), to.data());
    if (view.dtype != stored && !RoundWeights(to, stored)) return WeightDoesNotFit(stored);
  }
  return std::make_unique<ReferenceMatrix>(view, stored, std::move(buffer));
}

void ReferenceEmbed(const EmbedArgs& args) {
  const ReferenceMatrix& table = Matrix(args.table);
  float* out = args.out;
  const int size = table.NumCols();
  for (size_t row = 0; row < args.ids.size(); ++row, out += size) {
    std::copy_n(table.Row(args.ids[row]), size, out);
    if (args.position_table == nullptr) continue;
    const float* position = args.position_table + size_t(args.positions[row]) * size_t(size);
    for (int i = 0; i < size; ++i) out[i] += position[i];
  }
}

void ReferenceNorm(const NormArgs& args) {
  LSSAR_CHECK(args.norm.kind != NormKind::kNone);
  const size_t size = size_t(args.size);
  for (size_t row = 0; row < size_t(args.num_rows); ++row) {
    const std::vector<double> y = Normalized(args.x + row * size, args.size, args.norm);
    for (size_t i = 0; i < size; ++i) {
      const double residual = args.residual != nullptr ? args.residual[row * size + i] : 0.0;
      args.out[row * size + i] = float(residual + double{args.scale} * y[i]);
    }
  }
}

void ReferenceLinear(const LinearArgs& args) {
  const ReferenceMatrix& weight = Matrix(args.weight);
  const int num_in = weight.NumCols();
  const int num_out = weight.NumRows();
  for (int row = 0; row < args.num_rows; ++row) {
    const float* x = args.x + size_t(row) * size_t(num_in);
    const std::vector<double> y = Normalized(x, num_in, args.norm);
    for (int i = 0; i < num_out; ++i) {
      const size_t at = size_t(row) * size_t(num_out) + size_t(i);
      const double bias = args.bias != nullptr ? args.bias[i] : 0.0;
      const double residual = args.residual != nullptr ? args.residual[at] : 0.0;
      const double factor = args.multiply != nullptr ? args.multiply[at] : 1.0;
      const double sum = Dot(y, weight.Row(i)) + bias;
      const double value = Activate(args.activation, sum) * factor;
      args.out[at] = float(residual + double{args.scale} * value);
    }
  }
}

void ReferenceLogits(const LogitsArgs& args) {
  const ReferenceMatrix& weight = Matrix(args.weight);
  float* logits = args.logits;
  for (int32_t row : args.row_ids) {
    const float* x = args.x + size_t(row) * size_t(weight.NumCols());
    const std::vector<double> y = Normalized(x, weight.NumCols(), args.norm);
    for (int i = 0; i < weight.NumRows(); ++i) {
      const double logit = Dot(y, weight.Row(i)), cap = double{args.softcap};
      *logits++ = float(cap > 0 ? cap * std::tanh(logit / cap) : logit);
    }
  }
}

}  // namespace lssar

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/two_planes.h"
#include "models/config.h"
#include "models/page_pool.h"
#include "models/safetensors.h"
#include "tests/golden/golden_case.h"

namespace lssar {
namespace {

// About ten times the measured errors (README.md). Rounding q and k moves a score, and the power p
// multiplies that error. cuda rounds each weight to one fp16, which alone is 2.3e-4 (same_keys).
// Over fx16, whose keys are more exact than that, its limit is larger.
double Tolerance(const GoldenCase& c, DType kv_cache_dtype, const Backend& backend) {
  const double gain = std::max(1.0, c.p / 15);
  switch (kv_cache_dtype) {
    case DType::kF32: return 4e-5 * gain;
    case DType::kF16: return 5e-3 * gain;
    case DType::kBF16: return 5e-2 * gain;
    case DType::kI8: return 1.5e-1 * gain;
    case DType::kI4: break;  // no K/V type
    case DType::kFx16: return (backend.Name().starts_with("cuda") ? 4e-4 : 3e-4) * gain;
  }
  return 0;
}

absl::StatusOr<AttentionSpec> SpecOf(const GoldenCase& c) {
  AttentionSpec spec{.p = c.p, .max_position_embeddings = c.num_keys};
  const std::optional<AttentionKind> kind = ParseAttentionKind(c.kind);
  if (!kind)
    return absl::InvalidArgumentError("kind \"" + c.kind + "\" is not a kind of attention");
  spec.kind = *kind;
  if (*kind == AttentionKind::kPhi) {
    const std::optional<Phi> phi = ParsePhi(c.phi);
    if (!phi) return absl::InvalidArgumentError("phi \"" + c.phi + "\" is not a phi");
    spec.phi = *phi;
  }
  return spec;
}

absl::StatusOr<std::vector<float>> ReadTensor(const TensorFile& file, const char* name,
                                              const std::vector<int64_t>& shape) {
  const TensorView* tensor = file.Find(name);
  if (tensor == nullptr || tensor->shape != shape) {
    return absl::InvalidArgumentError(StrCat(file.Paths().front(), ": tensor \"", name,
                                             "\" must have shape [", StrJoin(shape), "]"));
  }
  return tensor->ToFloats();
}

// Copies floats to the backend's memory.
absl::StatusOr<std::unique_ptr<Buffer>> Upload(const std::vector<float>& values, Backend* backend) {
  const size_t num_bytes = values.size() * sizeof(float);
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, backend->Allocate(num_bytes));
  RETURN_IF_ERROR(backend->CopyIn(buffer->Address(), values.data(), num_bytes));
  return buffer;
}

absl::StatusOr<std::vector<float>> Download(Buffer* buffer, size_t first, size_t count,
                                            Backend* backend) {
  std::vector<float> values(count);
  RETURN_IF_ERROR(
      backend->CopyOut(values.data(), buffer->As<float>() + first, count * sizeof(float)));
  return values;
}

struct Tensors {
  std::vector<float> q, out;  // [heads, rows, dim]
  std::vector<float> k, v;    // [heads, keys, dim]
};

absl::StatusOr<Tensors> ReadTensors(const std::string& directory, const GoldenCase& c) {
  ASSIGN_OR_RETURN(const TensorFile file,
                   TensorFile::Open(directory + "/" + c.name + ".safetensors"));
  const std::vector<int64_t> rows{c.num_heads, c.num_rows, c.head_dim};
  const std::vector<int64_t> keys{c.num_heads, c.num_keys, c.head_dim};
  Tensors t;
  const struct {
    const char* name;
    const std::vector<int64_t>& shape;
    std::vector<float>& values;
  } wanted[] = {{"q", rows, t.q}, {"k", keys, t.k}, {"v", keys, t.v}, {"out", rows, t.out}};
  for (const auto& want : wanted) {
    ASSIGN_OR_RETURN(std::vector<float> values, ReadTensor(file, want.name, want.shape));
    want.values = std::move(values);
  }
  return t;
}

// [keys, 3 * heads * dim], as a model's QKV projection gives it; rows without a query have q = 0.
std::vector<float> JoinQkv(const GoldenCase& c, const Tensors& t) {
  const size_t dim = size_t(c.head_dim), hidden_size = size_t(c.num_heads) * dim;
  std::vector<float> qkv(size_t(c.num_keys) * 3 * hidden_size);
  for (size_t h = 0; h < size_t(c.num_heads); ++h) {
    for (size_t j = 0; j < size_t(c.num_keys); ++j) {
      float* const row = &qkv[j * 3 * hidden_size + h * dim];
      const size_t key = (h * size_t(c.num_keys) + j) * dim;
      std::copy_n(&t.k[key], dim, row + hidden_size);
      std::copy_n(&t.v[key], dim, row + 2 * hidden_size);
      if (j < size_t(c.first) || j >= size_t(c.first + c.num_rows)) continue;
      std::copy_n(&t.q[(h * size_t(c.num_rows) + j - size_t(c.first)) * dim], dim, row);
    }
  }
  return qkv;
}

// `out` [rows, heads, dim] against the case's [heads, rows, dim].
double WorstError(const GoldenCase& c, const Tensors& t, const std::vector<float>& out) {
  const size_t num_rows = size_t(c.num_rows), num_heads = size_t(c.num_heads);
  const size_t dim = size_t(c.head_dim);
  double largest_v = 0, worst = 0;
  for (const float v : t.v) largest_v = std::max(largest_v, std::fabs(double(v)));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t r = i / (num_heads * dim), h = i / dim % num_heads;
    const double error =
        std::fabs(double(out[i]) - double(t.out[(h * num_rows + r) * dim + i % dim]));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst / largest_v;
}

// RopeWrite of every key, then Attention of the query rows; out [rows, heads, dim].
absl::StatusOr<std::vector<float>> RunOps(const GoldenCase& c, const AttentionSpec& spec,
                                          const Tensors& t, const GoldenSetup& setup) {
  Backend* const backend = setup.backend;
  const size_t hidden_size = size_t(c.num_heads) * size_t(c.head_dim);
  ASSIGN_OR_RETURN(PagePool pool, MakePagePool({.num_layers = 1,
                                                .num_kv_heads = c.num_heads,
                                                .head_dim = c.head_dim,
                                                .page_size = setup.page_size,
                                                .num_pages = 0,
                                                .dtype = setup.kv_cache_dtype},
                                               c.num_keys, backend));
  std::reverse(pool.pages.begin(), pool.pages.end());  // so page ids are not positions

  std::vector<float> identity(size_t(c.num_keys) * size_t(c.head_dim));
  for (size_t i = 0; i < identity.size(); ++i) {
    identity[i] = i % size_t(c.head_dim) < size_t(c.head_dim) / 2 ? 1.0f : 0.0f;
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> qkv, Upload(JoinQkv(c, t), backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> rope, Upload(identity, backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> rotated,
                   backend->Allocate(size_t(c.num_keys) * hidden_size * sizeof(float)));

  const std::vector<SequenceSlice> all_keys{{.num_rows = c.num_keys, .pages = pool.pages}};
  const RaggedBatch key_rows{.num_rows = c.num_keys, .sequences = all_keys};
  backend->RopeWrite({.rows = &key_rows,
                      .num_heads = c.num_heads,
                      .qkv = qkv->As<float>(),
                      .rope = rope->As<float>(),
                      .normalize = spec.Form().is_length_scaled,
                      .kv = pool.view,
                      .q = rotated->As<float>()});

  const size_t out_floats = size_t(c.num_rows) * hidden_size;
  ASSIGN_OR_RETURN(const std::vector<float> queries,
                   Download(rotated.get(), size_t(c.first) * hidden_size, out_floats, backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> q, Upload(queries, backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> out,
                   backend->Allocate(out_floats * sizeof(float)));
  const std::vector<SequenceSlice> queried{
      {.num_rows = c.num_rows, .first_position = c.first, .pages = pool.pages}};
  const RaggedBatch query_rows{.num_rows = c.num_rows, .sequences = queried};
  backend->Attention({.rows = &query_rows,
                      .layer = 0,
                      .num_heads = c.num_heads,
                      .spec = spec,
                      .q = q->As<float>(),
                      .kv = pool.view,
                      .out = out->As<float>()});
  RETURN_IF_ERROR(backend->Synchronize());
  return Download(out.get(), 0, out_floats, backend);
}

}  // namespace

absl::StatusOr<GoldenError> RunAttentionCase(const std::string& directory, const GoldenCase& wanted,
                                             const GoldenSetup& setup) {
  ASSIGN_OR_RETURN(const AttentionSpec spec, SpecOf(wanted));
  RETURN_IF_ERROR(setup.backend->CheckAttention(spec));
  RETURN_IF_ERROR(CheckKvType(spec, setup.kv_cache_dtype));
  if (wanted.head_dim % 2 != 0) {
    return absl::UnimplementedError(
        StrCat("dim is ", wanted.head_dim, ", must be even: rotary embedding rotates pairs"));
  }
  ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(directory, wanted));
  ASSIGN_OR_RETURN(const std::vector<float> out, RunOps(wanted, spec, tensors, setup));
  return GoldenError{.worst = WorstError(wanted, tensors, out),
                     .tolerance = Tolerance(wanted, setup.kv_cache_dtype, *setup.backend)};
}

}  // namespace lssar

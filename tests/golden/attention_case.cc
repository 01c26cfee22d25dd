#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/str_cat.h"
#include "models/config.h"
#include "models/page_pool.h"
#include "models/safetensors.h"
#include "tests/golden/golden_case.h"

namespace lssar {
namespace {

// Measured on this project's own vectors with a margin of about ten (README.md has the figures).
// Rounding of q and k moves a score, and the power multiplies that: hence the factor of p.
double Tolerance(const GoldenCase& c, DType kv_cache_dtype) {
  const double sharpness = std::max(1.0, c.p / 15);
  switch (kv_cache_dtype) {
    case DType::kF32: return 4e-5 * sharpness;
    case DType::kF16: return 5e-3 * sharpness;
    case DType::kBF16: break;  // not a K/V type
    case DType::kI8: return 1.5e-1 * sharpness;
  }
  return 0;
}

absl::StatusOr<AttentionSpec> SpecOf(const GoldenCase& c) {
  AttentionSpec spec{.p = c.p, .max_position_embeddings = c.num_keys};
  const std::optional<AttentionKind> kind = ParseAttentionKind(c.kind);
  if (!kind) return absl::InvalidArgumentError("kind \"" + c.kind + "\" is none of the family");
  spec.kind = *kind;
  if (*kind == AttentionKind::kPhi) {
    const std::optional<Phi> phi = ParsePhi(c.phi);
    if (!phi) return absl::InvalidArgumentError("phi \"" + c.phi + "\" is none of the family");
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

// Floats in the backend's memory, filled from the host.
absl::StatusOr<std::unique_ptr<Buffer>> Upload(const std::vector<float>& values, Backend* backend) {
  const size_t num_bytes = values.size() * sizeof(float);
  absl::StatusOr<std::unique_ptr<Buffer>> buffer = backend->Allocate(num_bytes);
  if (!buffer.ok()) return buffer.status();
  const absl::Status copied = backend->CopyIn((*buffer)->Address(), values.data(), num_bytes);
  if (!copied.ok()) return copied;
  return buffer;
}

absl::StatusOr<std::vector<float>> Download(Buffer& buffer, size_t first, size_t count,
                                            Backend* backend) {
  std::vector<float> values(count);
  const absl::Status copied =
      backend->CopyOut(values.data(), buffer.As<float>() + first, count * sizeof(float));
  if (!copied.ok()) return copied;
  return values;
}

struct Tensors {
  std::vector<float> q, out;  // [heads, rows, dim]
  std::vector<float> k, v;    // [heads, keys, dim]
};

absl::StatusOr<Tensors> ReadTensors(const std::string& directory, const GoldenCase& c) {
  absl::StatusOr<TensorFile> file = TensorFile::Open(directory + "/" + c.name + ".safetensors");
  if (!file.ok()) return file.status();
  const std::vector<int64_t> rows{c.num_heads, c.num_rows, c.head_dim};
  const std::vector<int64_t> keys{c.num_heads, c.num_keys, c.head_dim};
  Tensors t;
  const struct {
    const char* name;
    const std::vector<int64_t>& shape;
    std::vector<float>& values;
  } wanted[] = {{"q", rows, t.q}, {"k", keys, t.k}, {"v", keys, t.v}, {"out", rows, t.out}};
  for (const auto& want : wanted) {
    absl::StatusOr<std::vector<float>> values = ReadTensor(*file, want.name, want.shape);
    if (!values.ok()) return values.status();
    want.values = *std::move(values);
  }
  return t;
}

// [keys, 3 * heads * dim] as a model's projection would give it; rows without a query have q = 0.
std::vector<float> JoinQkv(const GoldenCase& c, const Tensors& t) {
  const size_t dim = size_t(c.head_dim), width = size_t(c.num_heads) * dim;
  std::vector<float> qkv(size_t(c.num_keys) * 3 * width);
  for (size_t h = 0; h < size_t(c.num_heads); ++h) {
    for (size_t j = 0; j < size_t(c.num_keys); ++j) {
      float* const row = &qkv[j * 3 * width + h * dim];
      const size_t key = (h * size_t(c.num_keys) + j) * dim;
      std::copy_n(&t.k[key], dim, row + width);
      std::copy_n(&t.v[key], dim, row + 2 * width);
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
  const size_t width = size_t(c.num_heads) * size_t(c.head_dim);
  absl::StatusOr<PagePool> pool = MakePagePool({.num_layers = 1,
                                                .num_kv_heads = c.num_heads,
                                                .head_dim = c.head_dim,
                                                .page_size = setup.page_size,
                                                .num_pages = 0,
                                                .dtype = setup.kv_cache_dtype},
                                               c.num_keys, backend);
  if (!pool.ok()) return pool.status();
  std::reverse(pool->pages.begin(), pool->pages.end());  // page ids are not positions

  std::vector<float> identity(size_t(c.num_keys) * size_t(c.head_dim));
  for (size_t i = 0; i < identity.size(); ++i) {
    identity[i] = i % size_t(c.head_dim) < size_t(c.head_dim) / 2 ? 1.0f : 0.0f;
  }
  absl::StatusOr<std::unique_ptr<Buffer>> qkv = Upload(JoinQkv(c, t), backend);
  if (!qkv.ok()) return qkv.status();
  absl::StatusOr<std::unique_ptr<Buffer>> rope = Upload(identity, backend);
  if (!rope.ok()) return rope.status();
  absl::StatusOr<std::unique_ptr<Buffer>> rotated =
      backend->Allocate(size_t(c.num_keys) * width * sizeof(float));
  if (!rotated.ok()) return rotated.status();

  const std::vector<SequenceSlice> all_keys{{.num_rows = c.num_keys, .pages = pool->pages}};
  const RaggedBatch key_rows{.num_rows = c.num_keys, .sequences = all_keys};
  backend->RopeWrite({.rows = &key_rows,
                      .num_heads = c.num_heads,
                      .qkv = (*qkv)->As<float>(),
                      .rope = (*rope)->As<float>(),
                      .normalize = spec.Form().is_length_scaled,
                      .kv = pool->view,
                      .q = (*rotated)->As<float>()});

  const size_t out_floats = size_t(c.num_rows) * width;
  absl::StatusOr<std::vector<float>> queries =
      Download(**rotated, size_t(c.first) * width, out_floats, backend);
  if (!queries.ok()) return queries.status();
  absl::StatusOr<std::unique_ptr<Buffer>> q = Upload(*queries, backend);
  if (!q.ok()) return q.status();
  absl::StatusOr<std::unique_ptr<Buffer>> out = backend->Allocate(out_floats * sizeof(float));
  if (!out.ok()) return out.status();
  const std::vector<SequenceSlice> queried{
      {.num_rows = c.num_rows, .first_position = c.first, .pages = pool->pages}};
  const RaggedBatch query_rows{.num_rows = c.num_rows, .sequences = queried};
  backend->Attention({.rows = &query_rows,
                      .layer = 0,
                      .num_heads = c.num_heads,
                      .spec = spec,
                      .q = (*q)->As<float>(),
                      .kv = pool->view,
                      .out = (*out)->As<float>()});
  const absl::Status done = backend->Synchronize();
  if (!done.ok()) return done;
  return Download(**out, 0, out_floats, backend);
}

}  // namespace

absl::StatusOr<GoldenError> RunAttentionCase(const std::string& directory, const GoldenCase& wanted,
                                             const GoldenSetup& setup) {
  absl::StatusOr<AttentionSpec> spec = SpecOf(wanted);
  if (!spec.ok()) return spec.status();
  const absl::Status computed = setup.backend->CheckAttention(*spec);
  if (!computed.ok()) return computed;
  if (wanted.head_dim % 2 != 0) {
    return absl::UnimplementedError(
        StrCat("dim is ", wanted.head_dim, ", must be even: rotary positions turn pairs"));
  }
  absl::StatusOr<Tensors> tensors = ReadTensors(directory, wanted);
  if (!tensors.ok()) return tensors.status();
  absl::StatusOr<std::vector<float>> out = RunOps(wanted, *spec, *tensors, setup);
  if (!out.ok()) return out.status();
  return GoldenError{.worst = WorstError(wanted, *tensors, *out),
                     .tolerance = Tolerance(wanted, setup.kv_cache_dtype)};
}

}  // namespace lssar

// Fused causal LSSAR attention, forward and backward, for training small checkpoints on a CPU. It
// computes one head and one block of query rows at a time, so the length x length score matrix
// stays in the cache. It is a library of its own, over OpenBLAS (README.md), not part of the
// server.

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <vector>

// attention.py declares the same struct. All arrays are float32 and contiguous; q and k have unit
// length.
struct Tensors {
  const float *q, *k, *v;  // [heads, length, dim]
  float* out;              // [heads, length, dim]
  float* stats;  // [heads, length, 3]: softplus sum r, peak x_m, re-weighted sum z; z = 0: stage 1
  const float* grad_out;  // [heads, length, dim]; this and the rest: backward alone
  float *grad_q, *grad_k, *grad_v;
  int heads, length, dim;
  float p;
};

namespace {

constexpr int kRows = 64;            // query rows of a block
constexpr float kPeakFloor = 1e-6f;  // below it no key stands out: the weights are those of stage 1
constexpr int kAnyPower = 0;         // instead of a constant P: p at run time

inline float Softplus(float s) { return std::fmax(s, 0.f) + std::log1p(std::exp(-std::fabs(s))); }

// u^P, u >= 0.
template <int P>
inline float IntegerPow(float u) {
  if constexpr (P == 0) {
    return 1.f;
  } else if constexpr (P % 2 == 1) {
    return u * IntegerPow<P - 1>(u);
  } else {
    const float half = IntegerPow<P / 2>(u);
    return half * half;
  }
}

// u^p, and its derivative for u > 0.
template <int P>
inline float Pow(float u, float p) {
  return P == kAnyPower ? std::pow(u, p) : IntegerPow<P>(u);
}

template <int P>
inline float Slope(float u, float p) {
  if constexpr (P == kAnyPower) {
    return p * std::pow(u, p - 1.f);
  } else {
    return p * IntegerPow<P - 1>(u);
  }
}

// A block of query rows of one head. Its rows attend the keys before `cols`.
struct Block {
  size_t base;  // of the head in q, k, v
  int row0, rows, cols;
};

// Fills s [rows, cols] with ln(d) ln(N) <q, k>.
void Scores(const Tensors& t, const Block& b, float* s) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b.rows, b.cols, t.dim, 1.f,
              t.q + b.base + size_t(b.row0) * size_t(t.dim), t.dim, t.k + b.base, t.dim, 0.f, s,
              b.cols);
  for (int i = 0; i < b.rows; ++i) {
    const float scale = std::log(float(t.dim)) * std::log(float(b.row0 + i + 1));
    for (int j = 0; j < b.cols; ++j) s[i * b.cols + j] *= scale;
  }
}

// Turns the scores of row N = n in `a` into its weights, 0 for keys from n on, and writes r, x_m
// and z to `stats`.
template <int P>
void Weights(int n, int cols, float p, float* a, float* stats) {
  const float offset = n > 3 ? 1.f : 0.f;
  float r = 0.f, top = 0.f, z = 0.f;
#pragma omp simd
  for (int j = 0; j < cols; ++j) a[j] = Softplus(a[j]);
  for (int j = n; j < cols; ++j) a[j] = 0.f;
  for (int j = 0; j < cols; ++j) r += a[j];
  for (int j = 0; j < cols; ++j) top = a[j] > top ? a[j] : top;
  const float gain = float(n) / r;
  const float peak = top * gain - offset;
  float w = 1.f / r;
  if (peak > kPeakFloor) {
    const float inverse = 1.f / peak;
#pragma omp simd
    for (int j = 0; j < cols; ++j) a[j] = Pow<P>(std::max(a[j] * gain - offset, 0.f) * inverse, p);
    for (int j = n; j < cols; ++j) a[j] = 0.f;
    for (int j = 0; j < cols; ++j) z += a[j];
    w = 1.f / z;
  }
  for (int j = 0; j < cols; ++j) a[j] *= w;
  stats[0] = r;
  stats[1] = peak;
  stats[2] = z;
}

template <int P>
void Forward(const Tensors& t) {
#pragma omp parallel
  {
    std::vector<float> s(size_t(kRows) * size_t(t.length));
#pragma omp for schedule(dynamic) collapse(2)
    for (int h = 0; h < t.heads; ++h) {
      for (int row0 = 0; row0 < t.length; row0 += kRows) {
        const int rows = std::min(kRows, t.length - row0);
        const Block b{size_t(h) * size_t(t.length) * size_t(t.dim), row0, rows, row0 + rows};
        Scores(t, b, s.data());
        for (int i = 0; i < b.rows; ++i) {
          const size_t row = size_t(h) * size_t(t.length) + size_t(b.row0 + i);
          Weights<P>(b.row0 + i + 1, b.cols, t.p, &s[size_t(i) * size_t(b.cols)],
                     t.stats + row * 3);
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, b.rows, t.dim, b.cols, 1.f, s.data(),
                    b.cols, t.v + b.base, t.dim, 0.f,
                    t.out + b.base + size_t(b.row0) * size_t(t.dim), t.dim);
      }
    }
  }
}

// One row of a block, [cols]. x is relative to the row's peak.
struct Row {
  int n, cols;         // N; keys of the block
  const float* stats;  // written by Forward
  const float* s;      // scores
  float *a, *d;        // weights; gradient of the weights, then of <q, k>
  float *softplus, *x;
};

// Computes a row's weights and turns d from their gradient into the gradient of <q, k>.
template <int P>
void RowGradient(int dim, float p, const Row& row) {
  const auto [n, cols, stats, s, a, d, softplus, x] = row;
  const float offset = n > 3 ? 1.f : 0.f, r = stats[0];
  float dot = 0.f, mean = 0.f, gain = 1.f / r;
#pragma omp simd
  for (int j = 0; j < cols; ++j) softplus[j] = Softplus(s[j]);
  for (int j = n; j < cols; ++j) softplus[j] = 0.f;
  if (stats[2] == 0.f) {  // weights of stage 1: d stays their gradient
    for (int j = 0; j < cols; ++j) a[j] = softplus[j] * gain;
  } else {
    const float inverse = 1.f / stats[1], z_inverse = 1.f / stats[2];
    gain *= float(n);
    for (int j = 0; j < cols; ++j) x[j] = std::max(softplus[j] * gain - offset, 0.f) * inverse;
    for (int j = n; j < cols; ++j) x[j] = 0.f;
#pragma omp simd
    for (int j = 0; j < cols; ++j) a[j] = x[j] > 0.f ? Pow<P>(x[j], p) * z_inverse : 0.f;
    for (int j = 0; j < cols; ++j) dot += d[j] * a[j];
#pragma omp simd
    for (int j = 0; j < cols; ++j) {
      d[j] = x[j] > 0.f ? (d[j] - dot) * z_inverse * Slope<P>(x[j], p) * inverse : 0.f;
    }
  }
  for (int j = 0; j < cols; ++j) mean += d[j] * softplus[j];
  mean /= r;
  const float scale = std::log(float(dim)) * std::log(float(n));
#pragma omp simd
  for (int j = 0; j < cols; ++j) d[j] = scale * gain * (d[j] - mean) / (1.f + std::exp(-s[j]));
  for (int j = n; j < cols; ++j) d[j] = 0.f;
}

template <int P>
void Backward(const Tensors& t) {
#pragma omp parallel
  {
    const size_t length = size_t(t.length), dim = size_t(t.dim), size = size_t(kRows) * length;
    std::vector<float> s(size), a(size), d(size), softplus(length), x(length);
#pragma omp for schedule(dynamic)
    for (int h = 0; h < t.heads; ++h) {
      const size_t base = size_t(h) * length * dim;
      std::fill_n(t.grad_k + base, length * dim, 0.f);
      std::fill_n(t.grad_v + base, length * dim, 0.f);
      for (int row0 = 0; row0 < t.length; row0 += kRows) {
        const int rows = std::min(kRows, t.length - row0);
        const Block b{base, row0, rows, row0 + rows};
        const size_t first = base + size_t(row0) * dim;
        Scores(t, b, s.data());
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, b.cols, t.dim, 1.f,
                    t.grad_out + first, t.dim, t.v + base, t.dim, 0.f, d.data(), b.cols);
        for (int i = 0; i < rows; ++i) {
          const size_t at = size_t(i) * size_t(b.cols);
          const float* stats = t.stats + (size_t(h) * length + size_t(row0 + i)) * 3;
          RowGradient<P>(
              t.dim, t.p,
              {row0 + i + 1, b.cols, stats, &s[at], &a[at], &d[at], softplus.data(), x.data()});
        }
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, b.cols, t.dim, rows, 1.f, a.data(),
                    b.cols, t.grad_out + first, t.dim, 1.f, t.grad_v + base, t.dim);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, t.dim, b.cols, 1.f, d.data(),
                    b.cols, t.k + base, t.dim, 0.f, t.grad_q + first, t.dim);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, b.cols, t.dim, rows, 1.f, d.data(),
                    b.cols, t.q + first, t.dim, 1.f, t.grad_k + base, t.dim);
      }
    }
  }
}

}  // namespace

extern "C" void lssar_forward(const Tensors* t) {
  if (t->p == 3.f) return Forward<3>(*t);
  if (t->p == 15.f) return Forward<15>(*t);
  Forward<kAnyPower>(*t);
}

extern "C" void lssar_backward(const Tensors* t) {
  if (t->p == 3.f) return Backward<3>(*t);
  if (t->p == 15.f) return Backward<15>(*t);
  Backward<kAnyPower>(*t);
}

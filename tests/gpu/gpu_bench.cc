// Times attention on a GPU, as lssar-server runs it, and prints one JSON object. Measures copy
// bandwidth in the same run, for comparison. peers.py times other libraries on the same shapes.
//
//   gpu_bench [--batch-invariant]    as lssar-server --batch-invariant runs it
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/cublas_gemm.h"
#include "kernels/cuda/device/device_backend.h"
#include "kernels/cuda/device/device_kernels.h"
#include "kernels/two_planes.h"
#include "nlohmann/json.hpp"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

constexpr int kHeads = 12;
constexpr int kPageSize = 64;
constexpr int kContext = 16384;
constexpr int kRepeats = 5;

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_bench: %s\n", std::string(status.message()).c_str());
  std::exit(1);
}

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

// The backend, and its driver for timing.
struct Gpu {
  std::unique_ptr<Backend> backend;
  CudaDriver* driver = nullptr;

  static Gpu Open(bool batch_invariant) {
    CudaBackendParts parts{.name = "cuda",
                           .driver = MakeDeviceDriver(),
                           .kernels = DeviceKernels(),
                           .make_gemm_library = batch_invariant ? nullptr : &MakeCublasGemm};
    CudaDriver* const driver = parts.driver.get();
    return {.backend = Must(MakeCudaBackend(std::move(parts), 0)), .driver = driver};
  }

  // Milliseconds of one call: the lowest of kRepeats means over `calls` calls in a row.
  template <class F>
  double Time(int calls, const F& call) const {
    call();
    Must(backend->Synchronize());
    double best = 1e30;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      LSSAR_CHECK(driver->MarkTime(0) == kCudaSuccess);
      for (int i = 0; i < calls; ++i) call();
      LSSAR_CHECK(driver->MarkTime(1) == kCudaSuccess);
      float elapsed_ms = 0;
      LSSAR_CHECK(driver->ElapsedMs(elapsed_ms) == kCudaSuccess);
      best = std::min(best, double{elapsed_ms} / calls);
    }
    Must(backend->Synchronize());
    return best;
  }
};

// Bytes read and written per second, in GB/s, by a device copy of 2 GiB.
double CopyBandwidth(const Gpu& gpu) {
  constexpr size_t kBytes = size_t{2} << 30;
  const auto from = Must(gpu.backend->Allocate(kBytes)), to = Must(gpu.backend->Allocate(kBytes));
  const double ms = gpu.Time(5, [&] {
    LSSAR_CHECK(gpu.driver->CopyInside(to->Address(), from->Address(), {.row_bytes = kBytes}) ==
                kCudaSuccess);
  });
  return 2.0 * kBytes / ms / 1e6;
}

// Calls in a row read different memory until this much of K has passed: more than any L2 cache
// holds, as the layers of a model do.
constexpr size_t kRotatedBytes = size_t{200} << 20;

// `batch` sequences of kContext tokens, each on pages of its own, in as many layers as make
// kRotatedBytes of K. All sequences and layers have the same content: keys clustered by topic, with
// their own queries.
class Pool {
 public:
  Pool(const Gpu& gpu, int batch, int head_dim, DType dtype)
      : gpu_(gpu), vectors_(kContext, kHeads, head_dim, 1, Content::kTopical) {
    KvLayout& layout = view_.layout;
    layout = {.num_layers = 1,
              .num_kv_heads = kHeads,
              .head_dim = head_dim,
              .page_size = kPageSize,
              .num_pages = kPagesOfSequence,
              .dtype = dtype};
    Must(gpu.backend->FitLayout(layout));
    const KvLayout of_sequence = layout;
    std::vector<char> k(of_sequence.PoolBytes()), v(of_sequence.ValuePoolBytes());
    FillSequence({.layout = of_sequence, .k = k.data(), .v = v.data()});

    layout.num_pages *= batch;
    layout.num_layers = int((kRotatedBytes + layout.PoolBytes() - 1) / layout.PoolBytes());
    k_ = Must(gpu.backend->Allocate(layout.PoolBytes()));
    v_ = Must(gpu.backend->Allocate(layout.ValuePoolBytes()));
    // The pages of one head lie together: a sequence's are one piece of each layer and head.
    const size_t element = BytesOf(dtype), key_bytes = of_sequence.HeadStride() * element,
                 value_bytes = of_sequence.ValueHeadStride() * element;
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        const KvBlock from = of_sequence.Block(0, 0, head);
        for (int s = 0; s < batch; ++s) {
          const KvBlock to = layout.Block(layer, s * kPagesOfSequence, head);
          Must(gpu.backend->CopyIn(k_->As<char>() + to.k * element, &k[from.k * element],
                                   key_bytes));
          Must(gpu.backend->CopyIn(v_->As<char>() + to.v * element, &v[from.v * element],
                                   value_bytes));
        }
      }
    }
    view_.k = k_->Address();
    view_.v = v_->Address();
    pages_.resize(size_t(layout.num_pages));
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  struct Measured {
    double ms = 0;
    double share_read = 0;  // of V's rows
    double share_flat = 0;  // of rows and heads: the slow path in double
  };

  // The last `num_tokens` tokens of every sequence.
  Measured Attend(const AttentionSpec& spec, int num_tokens, int calls) const {
    const size_t batch = pages_.size() / size_t{kPagesOfSequence};
    std::vector<SequenceSlice> sequences;
    std::vector<float> q;
    for (size_t s = 0; s < batch; ++s) {
      sequences.push_back({.first_row = int(s) * num_tokens,
                           .num_rows = num_tokens,
                           .first_position = kContext - num_tokens,
                           .pages = std::span(pages_).subspan(s * size_t{kPagesOfSequence},
                                                              size_t{kPagesOfSequence})});
      const size_t num_floats = size_t(num_tokens) * vectors_.RowFloats();
      q.insert(q.end(), vectors_.q.end() - ptrdiff_t(num_floats), vectors_.q.end());
    }
    const RaggedBatch ragged{.num_rows = int(batch) * num_tokens, .sequences = sequences};
    Floats q_floats(*gpu_.backend, q), out(*gpu_.backend, q);
    AttentionArgs args{.rows = &ragged,
                       .layer = 0,
                       .num_heads = kHeads,
                       .spec = spec,
                       .q = q_floats.Address(),
                       .kv = view_,
                       .out = out.Address()};
    Measured measured{.ms = gpu_.Time(calls, [&] {
      gpu_.backend->Attention(args);
      args.layer = (args.layer + 1) % view_.layout.num_layers;
    })};
    Count(args, batch, &measured);
    return measured;
  }

  // What one layer reads: K, and the rows of V that are read. fx16: the high plane, and the low one
  // of those rows alone; a few candidates are not among them.
  double BytesRead(double share_read) const {
    const KvLayout& layout = view_.layout;
    const double pools = double(layout.PoolBytes()) + share_read * double(layout.ValuePoolBytes());
    return pools / double(layout.num_layers);
  }

 private:
  static constexpr int kPagesOfSequence = kContext / kPageSize;

  void FillSequence(const KvView& host) const {
    const size_t dim = size_t(host.layout.head_dim);
    for (int token = 0; token < kContext; ++token) {
      for (int head = 0; head < kHeads; ++head) {
        const size_t at = size_t(token * kHeads + head) * dim;
        const KvBlock block = host.layout.Block(0, token / kPageSize, head);
        KeyRow(host, block, token % kPageSize).Store({&vectors_.k[at], dim});
        ValueRow(host, block, token % kPageSize).Store({&vectors_.v[at], dim});
      }
    }
  }

  // The shares of `to`. Sequences are equal, so each reads the same number of V's rows; a different
  // number means that a sequence attends to keys that are not its own.
  void Count(AttentionArgs args, size_t batch, Measured* to) const {
    for (const int layer : {0, view_.layout.num_layers - 1}) {
      std::vector<AttentionStats> counters(batch);
      args.layer = layer;
      args.counters = counters.data();
      gpu_.backend->Attention(args);
      Must(gpu_.backend->Synchronize());
      const AttentionStats& first = counters[0];
      for (const AttentionStats& counted : counters) {
        LSSAR_CHECK(counted.num_value_rows == first.num_value_rows &&
                    counted.num_value_rows_read == first.num_value_rows_read &&
                    counted.num_flat_rows == first.num_flat_rows);
      }
      to->share_read = double(first.num_value_rows_read) / double(first.num_value_rows);
      const int num_tokens = args.rows->sequences[0].num_rows;
      to->share_flat = double(first.num_flat_rows) / double(num_tokens * kHeads);
    }
  }

  const Gpu& gpu_;
  SequenceVectors vectors_;
  KvView view_;
  std::unique_ptr<Buffer> k_, v_;
  std::vector<int32_t> pages_;
};

// p = 10: of layers of smollm2-lssar.
const std::pair<const char*, AttentionSpec> kKinds[] = {
    {"lssar", {.p = 15}}, {"lssar-10", {.p = 10}}, {"softmax", {.kind = AttentionKind::kSoftmax}}};

constexpr DType kTypes[] = {DType::kF16, DType::kI8, DType::kFx16};

nlohmann::json Decode(const Gpu& gpu, double copy_gbs) {
  nlohmann::json rows = nlohmann::json::array();
  for (const int batch : {1, 16, 64}) {
    for (const DType dtype : kTypes) {
      const Pool pool(gpu, batch, 64, dtype);
      for (const auto& [name, spec] : kKinds) {
        if (!CheckKvType(spec, dtype).ok()) continue;
        const Pool::Measured measured = pool.Attend(spec, 1, 20);
        const double bytes = pool.BytesRead(measured.share_read);
        const double gbs = bytes / measured.ms / 1e6;
        rows.push_back({{"work", "decode"},
                        {"kind", name},
                        {"kv", NameOf(dtype)},
                        {"batch", batch},
                        {"ms", measured.ms},
                        {"share_of_v_read", measured.share_read},
                        {"share_of_flat_rows", measured.share_flat},
                        {"bytes", bytes},
                        {"gb_per_s", gbs},
                        {"of_copy", gbs / copy_gbs}});
      }
    }
  }
  return rows;
}

nlohmann::json Prefill(const Gpu& gpu) {
  nlohmann::json rows = nlohmann::json::array();
  for (const DType dtype : kTypes) {
    const Pool pool(gpu, 1, 64, dtype);
    for (const auto& [name, spec] : kKinds) {
      if (!CheckKvType(spec, dtype).ok()) continue;
      const Pool::Measured measured = pool.Attend(spec, kContext, 2);
      // Q K^T and weights times V without masked pairs, as exact softmax computes them.
      const double flops = 2.0 * kContext * kContext * 64 * kHeads;
      rows.push_back({{"work", "prefill"},
                      {"kind", name},
                      {"kv", NameOf(dtype)},
                      {"batch", 1},
                      {"ms", measured.ms},
                      {"share_of_v_read", measured.share_read},
                      {"share_of_flat_rows", measured.share_flat},
                      {"tflop_per_s", flops / measured.ms / 1e9}});
    }
  }
  return rows;
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  using namespace lssar;  // NOLINT
  const bool batch_invariant = argc == 2 && std::strcmp(argv[1], "--batch-invariant") == 0;
  if (argc > 1 && !batch_invariant) {
    std::fprintf(stderr, "usage: gpu_bench [--batch-invariant]\n");
    return 2;
  }
  const Gpu gpu = Gpu::Open(batch_invariant);
  const double copy_gbs = CopyBandwidth(gpu);
  nlohmann::json rows = Decode(gpu, copy_gbs);
  for (const nlohmann::json& row : Prefill(gpu)) rows.push_back(row);
  const nlohmann::json report{{"device", gpu.backend->Describe()},
                              {"batch_invariant", batch_invariant},
                              {"context", kContext},
                              {"heads", kHeads},
                              {"head_dim", 64},
                              {"copy_gb_per_s", copy_gbs},
                              {"rows", rows}};
  std::printf("%s\n", report.dump(1).c_str());
  return 0;
}

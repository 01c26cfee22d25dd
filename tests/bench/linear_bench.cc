// Times our GEMM and oneDNN's at the shapes of a 124M model. Prints a Markdown table.
//
// Both multiply the same x by weights that no cache holds: each call uses the next of many copies,
// as the layers of a model do. oneDNN gets fp32 weights in its preferred layout. Samples of the two
// alternate, so other load on the machine affects both. Each figure is a median.
#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <oneapi/dnnl/dnnl.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/dtype.h"
#include "kernels/host_buffer.h"
#include "tests/bench/ceilings.h"
#include "tests/bench/median.h"
#include "tests/bench/pool_ceilings.h"

namespace lssar::bench {
namespace {

constexpr double kSampleSeconds = 0.04;
// libgomp's threads spin after a parallel region; ours must not share the cores with them.
constexpr auto kLetOthersSleep = std::chrono::milliseconds(15);

struct Shape {
  const char* name;
  int in;
  int out;
};
constexpr Shape kShapes[] = {{"qkv", 768, 2304},
                             {"attention out", 768, 768},
                             {"mlp up", 768, 3072},
                             {"mlp down", 3072, 768},
                             {"logits", 768, 50304}};

struct Options {
  int num_threads = 0;
  int num_samples = 7;
  std::string dtype = "fp16";
  std::vector<int> rows = {1, 4, 16, 64, 512};
  std::string json;
};

// Seconds per call, measured over kSampleSeconds.
double SecondsPerCall(const std::function<void()>& call) {
  const double start = Now();
  int num_calls = 0;
  double passed = 0;
  do {
    call();
    ++num_calls;
    passed = Now() - start;
  } while (passed < kSampleSeconds);
  return passed / num_calls;
}

std::vector<float> RandomFloats(size_t count) {
  std::minstd_rand random(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> floats(count);
  for (float& value : floats) value = uniform(random);
  return floats;
}

size_t NumCopies(size_t num_bytes) { return kColdBytes / num_bytes + 1; }

// Copies of one matrix [out, in], packed for our GEMM.
class OurGemm {
 public:
  OurGemm(const Shape& shape, DType stored, const std::vector<float>& w, ThreadPool& pool)
      : shape_(shape), pool_(pool), scratch_(pool.NumThreads()) {
    const MatrixView view = {
        .elements = w.data(), .num_rows = shape.out, .num_cols = shape.in, .transposed = true};
    do {
      auto matrix = PackForCpu(view, stored, pool);
      LSSAR_CHECK(matrix.ok());
      copies_.push_back(*std::move(matrix));
    } while (copies_.size() < NumCopies(copies_[0]->NumBytes()));
  }
  double NumBytes() const { return double(copies_[0]->NumBytes()); }
  void Multiply(int num_rows, const float* x, float* out) {
    const PackedMatrix* weight = copies_[next_++ % copies_.size()].get();
    LinearOnCpu({.num_rows = num_rows, .x = x, .norm = {}, .weight = weight, .out = out}, pool_,
                scratch_);
  }

 private:
  Shape shape_;
  ThreadPool& pool_;
  Scratch scratch_;
  std::vector<std::unique_ptr<PackedMatrix>> copies_;
  size_t next_ = 0;
};

// The same with oneDNN: fp32 weights in its preferred layout for this number of rows.
class PeerGemm {
 public:
  PeerGemm(const Shape& shape, int num_rows, const std::vector<float>& w)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    using dnnl::memory;
    const auto f32 = memory::data_type::f32;
    const auto ab = memory::format_tag::ab;
    const memory::desc x_desc({num_rows, shape.in}, f32, ab);
    const memory::desc w_any({shape.in, shape.out}, f32, memory::format_tag::any);
    const memory::desc w_plain({shape.in, shape.out}, f32, ab);
    const memory::desc out_desc({num_rows, shape.out}, f32, ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, w_any, out_desc), engine_);
    gemm_ = dnnl::matmul(desc);
    memory plain(w_plain, engine_, const_cast<float*>(w.data()));
    do {
      memory copy(desc.weights_desc(), engine_);
      dnnl::reorder(plain, copy).execute(stream_, plain, copy);
      copies_.push_back(copy);
    } while (copies_.size() < NumCopies(desc.weights_desc().get_size()));
    stream_.wait();
    x_ = memory(x_desc, engine_, nullptr);
    out_ = memory(out_desc, engine_, nullptr);
  }
  void Multiply(const float* x, float* out) {
    x_.set_data_handle(const_cast<float*>(x));
    out_.set_data_handle(out);
    gemm_.execute(stream_, {{DNNL_ARG_SRC, x_},
                            {DNNL_ARG_WEIGHTS, copies_[next_++ % copies_.size()]},
                            {DNNL_ARG_DST, out_}});
    stream_.wait();
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul gemm_;
  dnnl::memory x_, out_;
  std::vector<dnnl::memory> copies_;
  size_t next_ = 0;
};

std::vector<double> InMicroseconds(std::vector<double> seconds) {
  for (double& each : seconds) each *= 1e6;
  return seconds;
}

struct PoolCeilings {
  double read_gb;
  double fma_gflops;
};

// Prints a row of the table for each number of rows and adds it to `figures`.
void RunShape(const Shape& shape, const Options& options, const PoolCeilings& ceilings,
              ThreadPool& pool, nlohmann::json* figures) {
  const size_t in = size_t(shape.in), out_width = size_t(shape.out);
  const std::vector<float> w = RandomFloats(in * out_width);
  OurGemm ours(shape, *ParseDType(options.dtype), w, pool);
  for (const int num_rows : options.rows) {
    PeerGemm peer(shape, num_rows, w);
    const std::vector<float> x = RandomFloats(size_t(num_rows) * in);
    std::vector<float> out(size_t(num_rows) * out_width);
    std::vector<double> our_samples, peer_samples;
    for (int i = -1; i < options.num_samples; ++i) {
      std::this_thread::sleep_for(kLetOthersSleep);
      const double our_s = SecondsPerCall([&] { ours.Multiply(num_rows, x.data(), out.data()); });
      const double peer_s = SecondsPerCall([&] { peer.Multiply(x.data(), out.data()); });
      if (i < 0) continue;  // warm-up
      our_samples.push_back(our_s);
      peer_samples.push_back(peer_s);
    }
    const double seconds = Median(our_samples), peer_seconds = Median(peer_samples);
    const auto [best, worst] = std::minmax_element(our_samples.begin(), our_samples.end());
    const double gb = ours.NumBytes() / seconds * 1e-9;
    const double flops = 2.0 * num_rows * double(in) * double(out_width);
    const double gflops = flops / seconds * 1e-9;
    std::printf("| %s %dx%d | %d | %.1f | %.0f%% | %.1f | %.2f | %.1f | %.0f%% | %.0f | %.0f%% |\n",
                shape.name, shape.in, shape.out, num_rows, seconds * 1e6,
                (*worst - *best) / seconds * 100, peer_seconds * 1e6, peer_seconds / seconds, gb,
                gb / ceilings.read_gb * 100, gflops, gflops / ceilings.fma_gflops * 100);
    std::fflush(stdout);
    figures->push_back({{"gemm", shape.name},
                        {"in", shape.in},
                        {"out", shape.out},
                        {"rows", num_rows},
                        {"samples_us", InMicroseconds(our_samples)},
                        {"peer_samples_us", InMicroseconds(peer_samples)},
                        {"share_of_read", gb / ceilings.read_gb},
                        {"share_of_multiply_add", gflops / ceilings.fma_gflops}});
  }
}

int Run(const Options& options) {
  ThreadPool pool(options.num_threads > 0 ? options.num_threads : NumUsableCpus());
  omp_set_num_threads(pool.NumThreads());
  const PoolCeilings ceilings = {.read_gb = MeasureReadGb(pool, options.num_samples),
                                 .fma_gflops = MeasureFmaGflops(pool, options.num_samples)};
  std::printf("%s; weights %s; read ceiling %.1f GB/s, multiply-add ceiling %.0f GFLOP/s\n\n",
              MachineLine(pool.NumThreads()).c_str(), options.dtype.c_str(), ceilings.read_gb,
              ceilings.fma_gflops);
  std::printf(
      "| GEMM | rows | ours us | spread | oneDNN fp32 us | ratio | GB/s | of read | "
      "GFLOP/s | of multiply-add |\n|---|---|---|---|---|---|---|---|---|---|\n");
  nlohmann::json figures;
  for (const Shape& shape : kShapes) RunShape(shape, options, ceilings, pool, &figures);
  if (!options.json.empty()) {
    const nlohmann::json all = {{"weights", options.dtype},
                                {"read_gb_per_second", ceilings.read_gb},
                                {"multiply_add_gflops", ceilings.fma_gflops},
                                {"figures", figures}};
    std::ofstream(options.json) << all.dump(2) << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace lssar::bench

int main(int argc, char** argv) {
  lssar::bench::Options options;
  CLI::App app("Times our GEMM and oneDNN's");
  app.add_option("--threads", options.num_threads, "0: one per usable core")
      ->check(CLI::Range(0, 1024));
  app.add_option("--samples", options.num_samples, "samples of each figure")
      ->check(CLI::Range(5, 1001));
  app.add_option("--dtype", options.dtype, "type of our weights")
      ->check(CLI::IsMember({"fp32", "fp16", "bf16", "int8", "int4"}));
  app.add_option("--rows", options.rows, "numbers of rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  app.add_option("--json", options.json, "also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  return lssar::bench::Run(options);
}

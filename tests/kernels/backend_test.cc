#include "kernels/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/float_bits.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

void ExpectRefused(const BackendOptions& options, const std::string& text) {
  const absl::Status status = MakeBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(status.message().find(text), std::string::npos) << status;
}

TEST(BackendTest, RejectsUnknownOptions) {
  ExpectRefused({.name = "tpu"}, "\"tpu\"");
  ExpectRefused({.name = "cuda:one"}, "\"cuda:one\"");
  ExpectRefused({.num_threads = -1}, "-1");
  ExpectRefused({.num_threads = 1025}, "[0, 1024]");
  ExpectRefused({.instruction_set = "MMX"}, "\"MMX\"");
  ExpectRefused({.instruction_set = "MMX"}, InstructionSets().front());
  ExpectRefused({.name = "reference", .instruction_set = "AVX2"}, "cpu backend");
}

// With a GPU and a build with CUDA, device 0 exists and device 1000 does not. Otherwise: an error.
TEST(BackendTest, CudaIfAvailable) {
  const auto backend = MakeBackend({.name = "cuda"});
  if (backend.ok()) {
    EXPECT_EQ((*backend)->Name(), "cuda:0");
    ExpectRefused({.name = "cuda:1000"}, "device 1000 does not exist");
  } else {
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kFailedPrecondition) << backend.status();
  }
}

TEST(BackendTest, DescribesItself) {
  const std::unique_ptr<Backend> best = *MakeBackend({.num_threads = 3});
  EXPECT_EQ(best->Name(), "cpu");
  EXPECT_EQ(best->NumThreads(), 3);
  EXPECT_EQ(best->Describe(), "cpu " + InstructionSets().front() + ", 3 threads");
  EXPECT_EQ((*MakeBackend({.name = "reference"}))->Name(), "reference");
  EXPECT_GE((*MakeBackend({}))->NumThreads(), 1);
}

#if defined(__x86_64__)
// Cascade Lake and Cooper Lake have AVX-512 with VNNI, but not the rest of what Highway's target of
// that name asks for. A machine without VNNI does not run its code, whatever else it has.
TEST(BackendTest, Avx512WithVnniIsUsedWhereTheMachineHasIt) {
  const bool has_vnni = __builtin_cpu_supports("avx512vnni") != 0;
  EXPECT_EQ(InstructionSets().front() == "AVX3_DL", has_vnni) << InstructionSets().front();
}
#endif

// Every option of BackendOptions that a program offers is a BackendFlag.
TEST(BackendTest, FlagsParse) {
  BackendOptions options;
  const auto parse = [&](const std::string& name, const std::string& value) {
    for (const BackendFlag& flag : BackendFlags()) {
      if (flag.name == name) return flag.parse(value, &options);
    }
    return absl::NotFoundError(name);
  };
  EXPECT_TRUE(parse("device", "cuda:3").ok());
  EXPECT_EQ(options.name, "cuda:3");
  EXPECT_TRUE(parse("batch-invariant", "true").ok());
  EXPECT_TRUE(options.batch_invariant);
  EXPECT_TRUE(CheckBackendFlags(options).ok());
  EXPECT_TRUE(parse("threads", "7").ok());
  EXPECT_EQ(options.num_threads, 7);
  EXPECT_EQ(CheckBackendFlags(options).message(),
            "--threads 7: only --device cpu has threads; leave it out with --device cuda:3");
  EXPECT_TRUE(parse("device", "cpu").ok());
  EXPECT_TRUE(CheckBackendFlags(options).ok());  // where bits never depend on the batch
  for (const char* name : {"tpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cudas", ""}) {
    EXPECT_EQ(parse("device", name).message(),
              "it must be cpu, cuda, cuda:N such as cuda:0, or reference")
        << name;
  }
  EXPECT_EQ(parse("batch-invariant", "yes").message(), "it must be true or false");
  for (const char* count : {"-1", "1025", "x"}) {
    EXPECT_EQ(parse("threads", count).message(), "it must be a whole number in [0, 1024]");
  }
}

TEST(BackendTest, CpusAndThreadsFitTogether) {
  const int cpu = UsableCpus().front();
  const std::string list = std::to_string(cpu);
  EXPECT_TRUE(CheckBackendFlags({.cpus = {cpu}}).ok());
  EXPECT_TRUE(CheckBackendFlags({.num_threads = 1, .cpus = {cpu}}).ok());
  EXPECT_EQ(CheckBackendFlags({.num_threads = 3, .cpus = {cpu}}).message(),
            "--threads 3 and --cpus " + list +
                ": each CPU of the list gets one thread, 1 together; leave --threads out, or make "
                "them equal");
  EXPECT_EQ(
      CheckBackendFlags({.name = "reference", .cpus = {cpu}}).message(),
      "--cpus " + list + ": only --device cpu has threads; leave it out with --device reference");
  EXPECT_EQ(
      CheckBackendFlags({.cpus = {1023}}).message(),
      "--cpus 1023: this process may not use CPU 1023; it may use " + FormatCpuList(UsableCpus()));
  EXPECT_EQ(MakeBackend({.cpus = {1023}}).status().code(), absl::StatusCode::kInvalidArgument);
  const std::unique_ptr<Backend> pinned = *MakeBackend({.cpus = {cpu}});
  EXPECT_EQ(pinned->NumThreads(), 1);
  EXPECT_EQ(pinned->Describe(), "cpu " + InstructionSets().front() + ", 1 threads on CPUs " + list);
  EXPECT_TRUE(BackendWarnings({.cpus = {cpu}}).empty());
  EXPECT_FALSE(BackendWarnings({.num_threads = 1024}).empty());
  EXPECT_TRUE(BackendWarnings({.name = "reference", .num_threads = 1024}).empty());
}

TEST(BackendTest, BuffersAreAlignedAndZero) {
  for (const std::unique_ptr<Backend>& backend : AllBackends()) {
    for (size_t num_bytes : {size_t{1}, size_t{1000}, size_t{8} << 20}) {
      const std::unique_ptr<Buffer> buffer = *backend->Allocate(num_bytes);
      EXPECT_EQ(buffer->NumBytes(), num_bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->Address()) % 64, 0u);
      const std::vector<char> zeros(num_bytes);
      std::vector<char> content(num_bytes, 'x');
      ASSERT_TRUE(backend->CopyOut(content.data(), buffer->Address(), num_bytes).ok());
      EXPECT_EQ(content, zeros);
      content.assign(num_bytes, 'y');
      ASSERT_TRUE(backend->CopyIn(buffer->Address(), content.data(), num_bytes).ok());
      char last = 0;
      ASSERT_TRUE(backend->CopyOut(&last, buffer->As<char>() + num_bytes - 1, 1).ok());
      EXPECT_EQ(last, 'y');
    }
  }
}

TEST(BackendTest, AllocatingTooMuchMemoryFails) {
  for (const std::unique_ptr<Backend>& backend : AllBackends()) {
    const absl::Status status = backend->Allocate(size_t{1} << 60).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
}

TEST(FloatBitsTest, Fp16RoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float wide = FloatFromF16(half);
    if ((half & 0x7FFF) > 0x7C00) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_TRUE(std::isnan(FloatFromF16(F16FromFloat(wide))));
    } else {
      EXPECT_EQ(F16FromFloat(wide), half);
    }
  }
}

TEST(FloatBitsTest, Fp16RoundsToNearestTiesToEven) {
  // Neighbours lie symmetrically about the middle between two fp16 numbers, normal and subnormal.
  for (uint16_t half : {uint16_t{0x3C00}, uint16_t{0x3C01}, uint16_t{0x0001}, uint16_t{0x0002},
                        uint16_t{0x03FF}, uint16_t{0x7BFE}}) {
    const float low = FloatFromF16(half), high = FloatFromF16(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;
    const uint16_t even = static_cast<uint16_t>(half % 2 == 0 ? half : half + 1);
    EXPECT_EQ(F16FromFloat(middle), even);
    EXPECT_EQ(F16FromFloat(std::nextafter(middle, 0.0f)), half);
    EXPECT_EQ(F16FromFloat(std::nextafter(middle, 1e9f)), half + 1);
    EXPECT_EQ(F16FromFloat(-middle), even | 0x8000);
  }
  EXPECT_EQ(F16FromFloat(65519.0f), 0x7BFF);
  EXPECT_EQ(F16FromFloat(65520.0f), 0x7C00);  // the tie goes to the even one: infinity
  EXPECT_EQ(F16FromFloat(1e30f), 0x7C00);
  EXPECT_EQ(F16FromFloat(-std::numeric_limits<float>::infinity()), 0xFC00);
  EXPECT_EQ(F16FromFloat(1e-30f), 0);
}

TEST(FloatBitsTest, Bf16) {
  EXPECT_EQ(Bf16FromFloat(1.0f), 0x3F80);
  EXPECT_EQ(Bf16FromFloat(1.0f + 0x1p-8f), 0x3F80);      // tie to even
  EXPECT_EQ(Bf16FromFloat(1.0f + 3 * 0x1p-8f), 0x3F82);  // tie to even, upwards
  EXPECT_EQ(Bf16FromFloat(1.0f + 0x1p-8f + 0x1p-20f), 0x3F81);
  EXPECT_TRUE(std::isnan(FloatFromBf16(Bf16FromFloat(std::nanf("")))));
  EXPECT_EQ(FloatFromBf16(0xC040), -3.0f);
}

}  // namespace
}  // namespace lssar

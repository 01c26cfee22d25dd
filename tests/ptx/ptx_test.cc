// What the executor is for: the device's code has the bits of the emulation under random schedules,
// planted faults are found, and the work of attention is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "kernels/cuda/emulation/emulated_backend.h"
#include "kernels/cuda/emulation/stream.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"
#include "tests/kernels/sample_cases.h"
#include "tests/ptx/executor.h"
#include "tests/support/compare.h"

namespace lssar::ptx {
namespace {

using testing::HasSubstr;

constexpr int kDim = 64;

// One decode row of 11 splits: a cluster of two blocks.
std::vector<float> RunDecode(Backend& backend, DType dtype) {
  const SequenceVectors sequence(2600, 1, kDim, 1, Content::kTopical);
  const PagedKv kv(backend, {&sequence}, 16, dtype);
  return Attend(backend, {}, {&sequence}, kv, {{.first = 2599, .count = 1}});
}

// Rows in which no key stands out: AttendFlat.
std::vector<float> RunFlatRows(Backend& backend, DType dtype) {
  const SequenceVectors sequence(300, 1, 32, 2, Content::kNearlyEqualK);
  const PagedKv kv(backend, {&sequence}, 64, dtype);
  return Attend(backend, {}, {&sequence}, kv,
                {{.first = 0, .count = 80}, {.first = 299, .count = 1}});
}

// A prompt's last rows, two decode rows: attention of every kind of launch.
std::vector<float> RunAttention(Backend& backend, DType dtype) {
  const SequenceVectors sequence(600, 1, kDim, 1, Content::kTopical);
  const PagedKv kv(backend, {&sequence}, 16, dtype);
  return Attend(
      backend, {}, {&sequence}, kv,
      {{.first = 500, .count = 70}, {.first = 570, .count = 1}, {.first = 599, .count = 1}});
}

std::vector<float> RunLinear(Backend& backend, DType dtype, int num_rows, int num_cols) {
  constexpr int kIn = 512;
  const auto weight = Pack(backend, RandomFloats(size_t(num_cols * kIn), 2), num_cols, kIn, dtype);
  Floats x(backend, RandomFloats(size_t(num_rows) * kIn, 1));
  Floats out(backend, std::vector<float>(size_t(num_rows * num_cols)));
  Floats norm_weight(backend, RandomFloats(kIn, 3)), norm_bias(backend, RandomFloats(kIn, 4));
  backend.Linear({.num_rows = num_rows,
                  .x = x.Address(),
                  .norm = {.kind = NormKind::kLayerNorm,
                           .weight = norm_weight.Address(),
                           .bias = norm_bias.Address()},
                  .weight = weight.get(),
                  .out = out.Address()});
  EXPECT_TRUE(backend.Synchronize().ok());
  return out.Values();
}

std::vector<float> RunSampling(Backend& backend) {
  const std::vector<float> logits = RandomLogits(3000, 5);
  std::vector<float> drawn;
  const SamplingParams params{.temperature = 1, .top_k = 50, .top_p = 0.9f};
  for (int position = 0; position < 4; ++position) {
    const SampleResult result =
        RunSampleOfRow(backend, logits,
                       {.params = &params, .counts = {}, .position = position, .num_logprobs = 3});
    drawn.push_back(float(result.id));
    drawn.push_back(result.logprob);
  }
  return drawn;
}

// The device that the PTX is for.
std::unique_ptr<Backend> MakeTarget(bool has_library = false) {
  return MakeEmulatedBackend(Executor::Get().HasClusters() ? 90 : 80, has_library);
}

using Work = std::function<std::vector<float>(Backend&)>;

Work Attention(DType dtype) {
  return [=](Backend& backend) { return RunAttention(backend, dtype); };
}
Work Decode(DType dtype) {
  return [=](Backend& backend) { return RunDecode(backend, dtype); };
}
Work FlatRows(DType dtype) {
  return [=](Backend& backend) { return RunFlatRows(backend, dtype); };
}
Work Linear(DType dtype, int num_rows, int num_cols = 40) {
  return [=](Backend& backend) { return RunLinear(backend, dtype, num_rows, num_cols); };
}

std::vector<float> Emulated(const Work& work, bool has_library = false) {
  Executor::Get().SetEnabled(false);
  std::vector<float> out = work(*MakeEmulatedBackend(90, has_library));
  Executor::Get().SetEnabled(true);
  return out;
}

class PtxTest : public testing::Test {
 protected:
  ~PtxTest() override { Executor::Get().SetOptions({}); }
};

TEST_F(PtxTest, BitsOfTheEmulationUnderAnySchedule) {
  const std::pair<const char*, Work> works[] = {{"attention fp16", Attention(DType::kF16)},
                                                {"attention int8", Attention(DType::kI8)},
                                                {"attention fx16", Attention(DType::kFx16)},
                                                {"decode in a cluster", Decode(DType::kF16)},
                                                {"decode in a cluster, fx16", Decode(DType::kFx16)},
                                                {"flat rows", FlatRows(DType::kF16)},
                                                {"flat rows, fx16", FlatRows(DType::kFx16)},
                                                {"2 rows", Linear(DType::kF16, 2)},
                                                {"6 rows", Linear(DType::kBF16, 6)},
                                                {"20 rows", Linear(DType::kI8, 20)},
                                                {"sampling", &RunSampling},
                                                {"1,100 columns", Linear(DType::kI8, 2, 1100)}};
  for (const auto& [name, work] : works) {
    for (const bool has_library : {false, true}) {
      const std::vector<float> expected = Emulated(work, has_library);
      for (uint64_t seed = 0; seed < 4; ++seed) {
        Executor::Get().SetOptions({.seed = seed});
        EXPECT_TRUE(SameBits(work(*MakeTarget(has_library)), expected))
            << name << ", seed " << seed << (has_library ? ", library" : "");
      }
    }
  }
}

// Weights that no rule of an MMA's sum fixes: results stay within the tests' tolerances.
TEST_F(PtxTest, SumsOfTensorCoresMayBeAligned) {
  Executor::Get().SetOptions({.aligns_products = true});
  const Work work = Attention(DType::kF16);
  for (const bool has_library : {false, true}) {
    const std::vector<float> expected = Emulated(work, has_library);
    EXPECT_TRUE(AllNear(work(*MakeTarget(has_library)), expected, {72, 1, kDim}, 1e-3));
  }
}

// As those of a real device: other bits than the emulation's, within the tests' tolerances.
TEST_F(PtxTest, ApproximationsMayErr) {
  const Work work = Attention(DType::kF16);
  for (const bool has_library : {false, true}) {
    const std::vector<float> expected = Emulated(work, has_library);
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      Executor::Get().SetOptions({.approximation_seed = seed});
      const std::vector<float> actual = work(*MakeTarget(has_library));
      EXPECT_TRUE(AllNear(actual, expected, {72, 1, kDim}, 1e-3));
      EXPECT_FALSE(SameBits(actual, expected));
    }
  }
}

// The device's count of flat rows is the executor's of calls.
TEST_F(PtxTest, FlatRowsAreCounted) {
  const std::unique_ptr<Backend> backend = MakeTarget();
  const SequenceVectors sequence(300, 2, 32, 2, Content::kNearlyEqualK);
  const PagedKv kv(*backend, {&sequence}, 64, DType::kF16);
  Executor::Get().TakeReport();
  std::vector<AttentionStats> counters;
  Attend(*backend, {}, {&sequence}, kv, {{.first = 0, .count = 80}, {.first = 299, .count = 1}},
         &counters);
  const Report report = Executor::Get().TakeReport();
  EXPECT_TRUE(report.IsClean());
  EXPECT_EQ(counters[1].num_flat_rows, 2);
  EXPECT_EQ(counters[0].num_flat_rows + counters[1].num_flat_rows, report.Total().calls);
}

// Code without clusters that is launched in one, as on a device whose probe did not see it: the
// kernel stops, rather than leave `out` as it was.
TEST_F(PtxTest, CodeWithoutClustersStopsInACluster) {
  Executor& executor = Executor::Get();
  ASSERT_FALSE(executor.HasClusters()) << "for PTX of sm_80: CudaPtx.Executor.Sm80";
  CudaBackendParts parts = EmulatedParts(90);
  static CudaKernels kernels;
  kernels = parts.kernels;
  parts.kernels.probe = [](const CudaProbeArgs& args, void* stream) {
    const int launched = kernels.probe(args, stream);
    if (launched != kCudaSuccess) return launched;
    return static_cast<emulation::Stream*>(stream)->Submit(
        [args] { args.out[0].has_clusters = true; });
  };
  const std::unique_ptr<Backend> backend = *MakeCudaBackend(std::move(parts), 0);
  executor.TakeReport();
  RunDecode(*backend, DType::kF16);
  const Report report = executor.TakeReport();
  ASSERT_EQ(report.faults.size(), 1u);
  EXPECT_NE(report.faults[0].find("ClusterDecode"), std::string::npos) << report.faults[0];
  EXPECT_NE(report.faults[0].find("the kernel stopped itself"), std::string::npos)
      << report.faults[0];
}

// ---- Planted faults

// What shows it, whatever the schedule: races and faults do not depend on luck. kOtherBits: there
// is no access to compare, or the memory is that of a block that has ended.
enum class ShownBy { kCheck, kOtherBits };

struct PlantedFault {
  const char* name;
  const char* kernel;   // short name
  const char* pattern;  // in its PTX
  int occurrence;       // of the pattern; -1: all
  std::function<std::string(const std::string& statement)> changed;
  Work work;
  ShownBy shown_by = ShownBy::kCheck;
};

std::string Removed(const std::string&) { return ""; }
std::function<std::string(const std::string&)> Replaced(std::string from, std::string to) {
  return [=](const std::string& statement) {
    std::string text = statement;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << statement;
    return text.replace(at, from.size(), to);
  };
}
// Swaps the operands whose numbers are given, in a list of registers.
std::function<std::string(const std::string&)> Swapped(size_t a, size_t b) {
  return [=](const std::string& statement) {
    std::vector<std::pair<size_t, size_t>> registers;  // place and length
    for (size_t at = statement.find('%'); at != std::string::npos;
         at = statement.find('%', at + 1)) {
      registers.emplace_back(at, statement.find_first_of(",} ;", at) - at);
    }
    const auto [at_a, size_a] = registers.at(a);
    const auto [at_b, size_b] = registers.at(b);
    return statement.substr(0, at_a) + statement.substr(at_b, size_b) +
           statement.substr(at_a + size_a, at_b - at_a - size_a) + statement.substr(at_a, size_a) +
           statement.substr(at_b + size_b);
  };
}

// The PTX with the fault in it.
std::string WithFault(const std::string& text, const std::string& mangled,
                      const PlantedFault& fault) {
  const size_t kernel = text.find("entry " + mangled + "(");
  size_t at = text.find('{', kernel);
  size_t end = std::min({text.find(".entry ", at), text.find(".func ", at), text.size()});
  std::string changed = text;
  int found = 0;
  for (at = changed.find(fault.pattern, at); at != std::string::npos && at < end;
       at = changed.find(fault.pattern, at + 1)) {
    if (fault.occurrence >= 0 && found < fault.occurrence) {
      ++found;
      continue;
    }
    ++found;
    const size_t first = changed.rfind('\n', at) + 1, last = changed.find(';', at) + 1;
    const std::string statement = fault.changed(changed.substr(first, last - first));
    changed.replace(first, last - first, statement);
    end += statement.size();
    end -= last - first;
    at = first + statement.size();
    if (fault.occurrence >= 0) return changed;
  }
  EXPECT_GT(found, 0) << fault.name;
  EXPECT_LT(fault.occurrence, 0) << fault.name << ": " << found << " places";
  return changed;
}

const char* const kPrefill = "PrefillTiles<F16Element, 64, true, 1>";
const char* const kDecode = "ClusterDecode<F16Element, 64, false>";
const char* const kLinear = "Linear<F16Element, 2, 1>";
const char* const kLinearInt8 = "Linear<I8Element, 2, 1>";
const char* const kFused = "FusedLinear<F16Element, 1>";
const char* const kSample = "SampleRows";

std::vector<PlantedFault> PlantedFaults() {
  const Work attention = Attention(DType::kF16), rows = Linear(DType::kF16, 20);
  return {
      {"chains are added without a barrier", kLinear, "bar.sync", 0, &Removed, rows},
      {"a tile is read before its copies arrive", kPrefill, "cp.async.wait_group", 0,
       [](const std::string& s) { return StrCat(s.substr(0, s.rfind(' ')), " 8;"); }, attention},
      {"a block leaves its cluster too early", kDecode, "barrier.cluster.wait.aligned", 0, &Removed,
       Decode(DType::kF16), ShownBy::kOtherBits},
      {"operands of an MMA are swapped", kLinear, "mma.sync", -1, Swapped(5, 6), rows,
       ShownBy::kOtherBits},
      {"halves of a pair are swapped", kPrefill, "cvt.rn.f16x2.f32", -1, Swapped(1, 2), attention,
       ShownBy::kOtherBits},
      {"bytes are selected in another order", kLinearInt8, "0x4342", -1,
       Replaced("0x4342", "0x4243"), Linear(DType::kI8, 20), ShownBy::kOtherBits},
      {"marks of tiles are read while they are set", kPrefill, "bar.sync", 3, &Removed, attention},
      {"keys are overwritten while they are read", kDecode, "bar.warp.sync", 2, &Removed,
       attention},
      {"values are read without a barrier", kDecode, "bar.warp.sync", 5, &Removed, attention},
      {"a barrier's parity is wrong", kDecode, "mbarrier.try_wait", -1,
       [](const std::string& s) { return StrCat(s.substr(0, s.rfind(',')), ", 1;"); }, attention},
      {"a tile of keys is read without a barrier", kPrefill, "bar.sync", 0, &Removed, attention},
      {"a norm's sums are overwritten", kFused, "bar.sync", 0, &Removed, Linear(DType::kF16, 2)},
      {"a sum of sampling is overwritten", kSample, "bar.sync", 2, &Removed, &RunSampling},
  };
}

TEST_F(PtxTest, PlantedFaultsAreFound) {
  Executor& executor = Executor::Get();
  for (const PlantedFault& fault : PlantedFaults()) {
    const std::string mangled = executor.Kernels().Find(fault.kernel);
    const bool needs_clusters =
        fault.kernel == kDecode || std::string(fault.pattern).starts_with("barrier.cluster");
    if (needs_clusters && !executor.HasClusters()) continue;
    ASSERT_FALSE(mangled.empty()) << fault.kernel;
    // A batch-invariant backend has another kernel for prompts.
    const bool has_library = fault.kernel == kPrefill;
    const std::vector<float> expected = Emulated(fault.work, has_library);
    std::vector<std::string> texts = executor.Texts();
    for (std::string& text : texts) {
      if (text.find("entry " + mangled + "(") == std::string::npos) continue;
      text = WithFault(text, mangled, fault);
    }
    executor.Replace(texts);
    const std::vector<float> actual = fault.work(*MakeTarget(has_library));
    const Report report = executor.TakeReport();
    const bool differs = !SameBits(actual, expected);
    EXPECT_TRUE(fault.shown_by == ShownBy::kOtherBits ? differs : !report.IsClean()) << fault.name;
    std::printf("%-45s %s%zu races, %zu faults\n", fault.name, differs ? "other bits, " : "",
                report.races.size(), report.faults.size());
  }
  executor.Replace(executor.Texts());
}

// ---- The executor itself, on small programs

Kernel Assembled(const std::string& body) {
  Module module;
  module.Add(
      StrCat(".visible .entry small()\n{\n.reg .pred %p<2>;\n.reg .b16 %h<3>;\n"
             ".reg .b32 %r<6>;\n.reg .b64 %rd<4>;\n",
             body, "ret;\n}\n"));
  return module.Assemble(module.Find("small"));
}

// The races of a run, a line each.
std::string RacesOf(const std::string& body, const LaunchShape& shape) {
  Machine machine;
  machine.Run(Assembled(body), shape, nullptr, 0, /*must_wait=*/false);
  std::string races;
  for (const std::string& race : machine.races) races += race + "\n";
  return races;
}

TEST(MachineTest, AtomicOperationsAreOrderedAmongThemselvesAlone) {
  const LaunchShape two_warps{.num_threads = 64, .shared_bytes = 16};
  const std::string begin =
      "mov.u32 %r1, shared_memory;\n mov.u32 %r2, %tid.x;\n setp.eq.s32 %p1, %r2, 0;\n"
      "@%p1 st.shared.u32 [%r1], 0;\n";
  const std::string mark = "atom.shared.or.b32 %r3, [%r1], 1;\n";
  const std::string read = "ld.shared.u32 %r4, [%r1];\n", barrier = "bar.sync 0;\n";
  EXPECT_EQ(RacesOf(begin + barrier + mark + barrier + read, two_warps), "");
  EXPECT_THAT(RacesOf(begin + mark + barrier + read, two_warps), HasSubstr("atomic after write"));
  EXPECT_THAT(RacesOf(begin + barrier + mark + read, two_warps), HasSubstr("read after atomic"));
  EXPECT_THAT(RacesOf(begin + barrier + read + mark, two_warps), HasSubstr("atomic after read"));
  EXPECT_THAT(RacesOf(begin + barrier + mark + "@%p1 st.shared.u32 [%r1], 2;\n", two_warps),
              HasSubstr("write after atomic"));
}

TEST(MachineTest, ABlockKeepsWhatItsClusterReads) {
  const LaunchShape cluster{
      .num_blocks_x = 2, .num_threads = 32, .cluster_blocks = 2, .shared_bytes = 16};
  const std::string barrier =
      "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;\n";
  const std::string write = "@%p1 st.shared.u32 [%r1], 7;\n", read = "ld.u32 %r4, [%rd2];\n";
  const std::string begin =
      "mov.u32 %r1, shared_memory;\n mov.u32 %r2, %tid.x;\n setp.eq.s32 %p1, %r2, 0;\n"
      "mov.u64 %rd0, shared_memory;\n cvta.shared.u64 %rd1, %rd0;\n"
      "mov.u32 %r3, %cluster_ctarank;\n xor.b32 %r3, %r3, 1;\n mapa.u64 %rd2, %rd1, %r3;\n";
  EXPECT_EQ(RacesOf(begin + write + barrier + read + barrier + write + barrier, cluster), "");
  EXPECT_THAT(RacesOf(begin + write + read + barrier, cluster),
              HasSubstr("remote read after write"));
  EXPECT_THAT(RacesOf(begin + write + barrier + read + write + barrier, cluster),
              HasSubstr("write after remote read"));
}

// A rounding, a saturation, a width or a type that would run as another one.
TEST(MachineTest, FormsThatAreNotComputedAreNamed) {
  Assembled("add.rn.f32 %r1, %r2, %r3;\n");
  for (const char* const form :
       {"add.rz.f32 %r1, %r2, %r3", "add.rn.ftz.f32 %r1, %r2, %r3", "mul.rn.sat.f32 %r1, %r2, %r3",
        "fma.rz.f32 %r1, %r2, %r3, %r4", "fma.rm.f64 %rd1, %rd2, %rd3, %rd0",
        "max.NaN.f32 %r1, %r2, %r3", "ex2.approx.f32 %r1, %r2", "sqrt.approx.f32 %r1, %r2",
        "cvt.rz.f32.f64 %r1, %rd1", "cvt.rn.sat.f32.f64 %r1, %rd1", "popc.b64 %r1, %rd1",
        "clz.b64 %r1, %rd1", "atom.shared.add.f32 %r1, [%r2], %r3",
        "red.global.max.u64 [%rd1], %rd2", "setp.lt.ftz.f32 %p1, %r1, %r2",
        "ld.volatile.shared.u32 %r1, [%r2]", "add.s16x2 %r1, %r2, %r3",
        "mad.lo.sat.s32 %r1, %r2, %r3, %r4"}) {
    try {
      Assembled(StrCat(form, ";\n"));
      ADD_FAILURE() << form;
    } catch (const Fault& fault) {
      EXPECT_THAT(fault.what(), HasSubstr(form));
    }
  }
}

// ---- Counts. A change of a kernel that makes it slower shows here. README.md tells how to update.

struct CountedWork {
  const char* name;
  const char* kernel;
  int num_tokens, num_rows;
  DType dtype;
  int64_t max_instructions;  // of warps; 5% above what the compiler of CUDA 12.4 makes
  AttentionSpec spec = {};

  friend void PrintTo(const CountedWork& work, std::ostream* to) { *to << work.name; }
};

class CountsTest : public PtxTest, public testing::WithParamInterface<CountedWork> {};

TEST_P(CountsTest, AreWithinTheirBudgets) {
  ASSERT_TRUE(Executor::Get().HasClusters()) << "budgets are of sm_90";
  const CountedWork& work = GetParam();
  Executor::Get().SetOptions({.checks_races = false, .counts_memory = true});
  const std::unique_ptr<Backend> backend = MakeTarget(/*has_library=*/true);
  const SequenceVectors sequence(work.num_tokens, 1, kDim, 4, Content::kTopical);
  const PagedKv kv(*backend, {&sequence}, 64, work.dtype);
  Executor::Get().TakeReport();
  Attend(*backend, work.spec, {&sequence}, kv,
         {{.first = work.num_tokens - work.num_rows, .count = work.num_rows}});
  const Report report = Executor::Get().TakeReport();
  ASSERT_TRUE(report.IsClean());
  ASSERT_TRUE(report.by_kernel.count(work.kernel) == 1) << report.by_kernel.begin()->first;
  const Counts& counts = report.by_kernel.at(work.kernel);
  // Pairs of a row and a key that it attends to.
  const double num_pairs = (work.num_tokens - (work.num_rows - 1) / 2.0) * work.num_rows;
  std::printf("| %s | %lld | %lld | %lld | %lld | %lld | %.1f |\n", work.name,
              static_cast<long long>(counts.instructions), static_cast<long long>(counts.mmas),
              static_cast<long long>(counts.shared_waves),
              static_cast<long long>(counts.global_sectors), static_cast<long long>(counts.calls),
              32.0 * double(counts.instructions) / num_pairs);
  EXPECT_LE(counts.instructions, work.max_instructions);
  // Flat rows are a few of a prompt's first: 2% in a trained model.
  EXPECT_LE(counts.calls, work.num_rows / 20);
}

INSTANTIATE_TEST_SUITE_P(
    Attention, CountsTest,
    testing::Values(
        CountedWork{"decode, 1,024 keys, fp16", kDecode, 1024, 1, DType::kF16, 20'000},
        CountedWork{"decode, 4,096 keys, fp16", kDecode, 4096, 1, DType::kF16, 80'000},
        CountedWork{"decode, 4,096 keys, int8", "ClusterDecode<I8Element, 64, false>", 4096, 1,
                    DType::kI8, 105'000},
        CountedWork{"decode, 4,096 keys, fx16", "ClusterDecode<Fx16Element, 64, false>", 4096, 1,
                    DType::kFx16, 115'000},
        CountedWork{"prefill, 512 tokens, fp16", kPrefill, 512, 512, DType::kF16, 277'000},
        CountedWork{"prefill, 512 tokens, fp16, p = 10", kPrefill, 512, 512, DType::kF16, 282'000,
                    AttentionSpec{.p = 10}},
        CountedWork{"prefill, 512 tokens, fx16", "PrefillTiles<Fx16Element, 64, true, 1>", 512, 512,
                    DType::kFx16, 578'000}),
    [](const auto& test) { return "Work" + std::to_string(test.index); });

// Beside flash softmax: kernels/cuda/BENCHMARKS.md. Ten seconds each.
INSTANTIATE_TEST_SUITE_P(
    LongPrompts, CountsTest,
    testing::Values(CountedWork{"prefill, 4,096 tokens, fp16",
                                "PrefillTiles<F16Element, 64, true, 2>", 4096, 4096, DType::kF16,
                                11'700'000},
                    CountedWork{"prefill, 4,096 tokens, fp16, softmax",
                                "PrefillTiles<F16Element, 64, false, 1>", 4096, 4096, DType::kF16,
                                15'900'000, AttentionSpec{.kind = AttentionKind::kSoftmax}}),
    [](const auto& test) { return "Work" + std::to_string(test.index); });

}  // namespace
}  // namespace lssar::ptx

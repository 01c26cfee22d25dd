// Errors of the backend when any driver call fails, and that no memory leaks then.
#include "kernels/cuda/driver.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "runtime/kv_cache.h"
#include "tests/kernels/cuda/faulty_driver.h"
#include "tests/kernels/cuda/stepper.h"

namespace lssar {
namespace {

constexpr int kIllegalAddress = 700;

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& said) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.message().find(said), std::string::npos) << status;
}

TEST(CudaDriverTest, DevicesThatCannotBeOpened) {
  const auto error = [](const DriverScript& script, int device_idx = 0) {
    return MakeFaulty(std::make_shared<DriverScript>(script), device_idx).status();
  };
  const auto failing = [&](DriverCall call, int code) {
    return error({.failing = call, .num_good = 0, .code = code, .alive = {}});
  };
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  ExpectError(failing(DriverCall::kCountDevices, kCudaDriverTooOld), kPrecondition,
              "no NVIDIA driver");
  ExpectError(failing(DriverCall::kCountDevices, kCudaNoDevice), kPrecondition, "no CUDA device");
  ExpectError(error({.num_devices = 0, .alive = {}}), kPrecondition, "no CUDA device");
  ExpectError(error({.num_devices = 2, .alive = {}}, 2), absl::StatusCode::kInvalidArgument,
              "device 2 does not exist: this machine has 2");
  ExpectError(
      error({.device_name = "NVIDIA H100 MIG 1g.10gb", .alive = {}}, 1),
      absl::StatusCode::kInvalidArgument,
      "device 1 does not exist: this machine has 1, numbered from 0; a process sees one MIG "
      "slice, here NVIDIA H100 MIG 1g.10gb: choose it by CUDA_VISIBLE_DEVICES");
  ExpectError(error({}, -1), absl::StatusCode::kInvalidArgument, "-1");
  ExpectError(failing(DriverCall::kDescribe, kCudaInvalidValue), absl::StatusCode::kInternal,
              "reading the properties of CUDA device 0 failed: CUDA error 1, text of 1");
  ExpectError(failing(DriverCall::kOpen, kCudaOutOfMemory), absl::StatusCode::kResourceExhausted,
              "opening CUDA device 0 failed: CUDA error 2, text of 2");
  ExpectError(error({.driver_version = 12040, .alive = {}}), kPrecondition,
              "supports CUDA 12.4, this build needs 13.0");
  ExpectError(error({.compute_capability = 75, .alive = {}}), kPrecondition,
              "7.5; this build needs 8.0 or later");
  ExpectError(failing(DriverCall::kLaunchKernel, kCudaNoKernelForDevice), kPrecondition,
              "no kernels for emulated, compute capability 9.0");
  for (const int code :
       {kCudaJitCompilerNotFound, kCudaUnsupportedPtxVersion, kCudaJitCompilationDisabled}) {
    ExpectError(failing(DriverCall::kLaunchKernel, code), kPrecondition,
                "the NVIDIA driver, of CUDA 13.0, does not compile this build's kernels, of CUDA "
                "13.0, for emulated, compute capability 9.0 (text of " +
                    std::to_string(code) + "): update the driver");
  }
  ExpectError(failing(DriverCall::kLaunchKernel, kCudaInvalidValue), absl::StatusCode::kInternal,
              "the first kernel failed");
  EXPECT_TRUE(error({}).ok());
}

// A device that does not fit is refused by its properties: nothing is opened or allocated on it.
TEST(CudaDriverTest, DevicesThatDoNotFitAreNotOpened) {
  for (const DriverScript& unfit : {DriverScript{.driver_version = 12040, .alive = {}},
                                    DriverScript{.compute_capability = 75, .alive = {}}}) {
    const auto script = std::make_shared<DriverScript>(unfit);
    script->failing = DriverCall::kAllocate;
    EXPECT_FALSE(MakeFaulty(script).ok());
    EXPECT_EQ(script->opened_device, -1);
    EXPECT_EQ(script->num_calls, 0);
  }
}

TEST(CudaDriverTest, TheDeviceOfTheIndexIsOpened) {
  const auto script = std::make_shared<DriverScript>(DriverScript{.num_devices = 2, .alive = {}});
  EXPECT_TRUE(MakeFaulty(script, 1).ok());
  EXPECT_EQ(script->opened_device, 1);
}

CudaKernels kernels;  // of the emulation
int probed_clusters = 0;
int cluster_code = 0;  // of launches in clusters
bool has_cluster_code = true;

// Decode runs without clusters where the device or the build's code for it has none.
TEST(CudaDriverTest, ClustersAreTried) {
  kernels = EmulatedParts().kernels;
  const auto probe = [](int compute_capability, int code = 0, bool is_compiled = true) {
    probed_clusters = 0;
    cluster_code = code;
    has_cluster_code = is_compiled;
    CudaKernels tried = kernels;
    tried.probe = [](const CudaProbeArgs& args, void* stream) {
      probed_clusters += args.cluster_blocks > 1;
      if (args.cluster_blocks > 1 && cluster_code != 0) return cluster_code;
      const int launched = kernels.probe(args, stream);
      if (launched != 0 || has_cluster_code) return launched;
      return static_cast<emulation::Stream*>(stream)->Submit(
          [args] { args.out[0].has_clusters = false; });
    };
    const std::unique_ptr<CudaDriver> driver = MakeEmulatedDriver(compute_capability);
    CudaDevice device = *OpenCudaDevice(*driver, 0);
    LSSAR_CHECK(ProbeCudaDevice(*driver, tried, &device).ok());
    return device.has_clusters;
  };
  EXPECT_TRUE(probe(90));
  EXPECT_EQ(probed_clusters, 1);
  for (const int code :
       {kCudaInvalidConfiguration, kCudaLaunchOutOfResources, kCudaInvalidClusterSize}) {
    EXPECT_FALSE(probe(90, code)) << code;
  }
  EXPECT_FALSE(probe(90, 0, /*is_compiled=*/false));
  for (const int compute_capability : {80, 89, 120}) {
    EXPECT_FALSE(probe(compute_capability)) << compute_capability;
    EXPECT_EQ(probed_clusters, 0);
  }
}

// What opening a device gives whose approximations of 2^whole and its logarithm are these.
absl::Status Opened(int whole, float power, float log) {
  static struct {
    int whole;
    float power, log;
  } values;
  values = {whole, power, log};
  CudaBackendParts parts = EmulatedParts();
  parts.kernels.probe = [](const CudaProbeArgs& args, void* stream) {
    return static_cast<emulation::Stream*>(stream)->Submit([args] {
      for (int i = 0; i < kProbeValues; ++i) {
        args.out[i] = {args.power[i], args.whole[i]};
        if (args.whole[i] == float(values.whole)) args.out[i] = {values.power, values.log};
      }
    });
  };
  return MakeCudaBackend(std::move(parts), 0).status();
}

// A sum without terms is log2(1): a device that is not exact there is refused. Elsewhere the
// approximations need not be exact.
TEST(CudaDriverTest, ApproximationsThatAreNotExact) {
  ExpectError(Opened(0, 1, 0x1p-23f), absl::StatusCode::kFailedPrecondition,
              "emulated computes 2^0 as 1 and log2(1) as 1.1920929e-07; the kernels need exact");
  ExpectError(Opened(0, 0x1.000002p0f, 0), absl::StatusCode::kFailedPrecondition, "need exact");
  EXPECT_TRUE(Opened(-1, 0.5f, -0.9999999f).ok()) << "what an H200 computes";
  EXPECT_TRUE(Opened(30, 0x1.000002p30f, 30).ok());
  for (const auto& [power, log] :
       {std::pair(0.5f, -0.99999f), std::pair(0.5001f, -1.0f), std::pair(0.5f, NAN)}) {
    ExpectError(Opened(-1, power, log), absl::StatusCode::kFailedPrecondition,
                "the kernels need results within 2^-21");
  }
}

TEST(CudaDriverTest, OutOfMemory) {
  const auto script = std::make_shared<DriverScript>();
  const std::unique_ptr<Backend> backend = *MakeFaulty(script);
  script->is_lasting = true;
  script->Fail(DriverCall::kAllocate, kCudaOutOfMemory);
  ExpectError(backend->Allocate(1 << 20).status(), absl::StatusCode::kResourceExhausted,
              "cannot allocate 1048576 bytes on the device: 12345 bytes are free");
  const std::vector<float> w(64);
  const absl::Status packed =
      backend->Pack({.elements = w.data(), .num_rows = 1, .num_cols = 64}, DType::kF16).status();
  ExpectError(packed, absl::StatusCode::kResourceExhausted, "12345");
  EXPECT_FALSE(backend->IsLost());
}

TEST(CudaDriverTest, AModelThatDoesNotFitIsRefusedBeforeItIsLoaded) {
  const auto script = std::make_shared<DriverScript>();
  const std::unique_ptr<Backend> backend = *MakeFaulty(script);
  const size_t num_alive = script->alive.size();
  script->Fail(DriverCall::kAllocate, kCudaInvalidValue);  // nothing may be allocated
  ExpectError(
      LoadCheckpoint("tests/golden/gpt_lssar", backend.get(), {.dtype = DType::kF16}).status(),
      absl::StatusCode::kResourceExhausted,
      " bytes as fp16, but cuda-emulated has 12345 bytes free");
  EXPECT_EQ(script->num_calls, 0);
  EXPECT_EQ(script->alive.size(), num_alive);
}

// The weights fit, but not the KV cache of a sequence beside them.
TEST(CudaDriverTest, AModelWithoutRoomForItsKvCacheIsRefusedBeforeItIsLoaded) {
  const auto script = std::make_shared<DriverScript>();
  const std::unique_ptr<Backend> backend = *MakeFaulty(script);
  script->free_bytes = size_t{1} << 20;
  script->Fail(DriverCall::kAllocate, kCudaInvalidValue);  // nothing may be allocated
  const EngineOptions options{.max_model_len = 8192, .page_size = 64};
  const auto load = [&](const LoadOptions& load_options) {
    return LoadCheckpoint("tests/golden/gpt_lssar", backend.get(), load_options).status();
  };
  ExpectError(load({.dtype = DType::kF16,
                    .check_memory =
                        [&](const ModelConfig& config, int64_t weight_bytes) {
                          return KvCache::CheckFits(config, options, weight_bytes, backend.get());
                        }}),
              absl::StatusCode::kResourceExhausted,
              "the KV pool is too small: the device's free memory of 1048576 bytes less ");
  EXPECT_EQ(script->num_calls, 0);
}

const std::vector<SteppedSequence> kPrompt{{.num_rows = 24, .pages = {2, 0}}};
const std::vector<SteppedSequence> kNextRow{{.first_position = 24, .pages = {2, 0}}};

// Opens a device, allocates memory, packs weights, runs a prompt and decode steps until a graph is
// replayed.
absl::Status WholeLife(const std::shared_ptr<DriverScript>& script, bool* is_lost) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeFaulty(script);
  if (!backend.ok()) return backend.status();
  absl::StatusOr<std::unique_ptr<Stepper>> stepper = Stepper::Make(**backend);
  absl::Status status = stepper.status();
  if (status.ok()) status = (*stepper)->Step(kPrompt);
  for (int i = 0; i < 4; ++i) {
    if (status.ok()) status = (*stepper)->Step(kNextRow);
  }
  *is_lost = (*backend)->IsLost();
  return status;
}

// Calls until there is a backend, whose IsLost can be asked: the probe's are the last.
constexpr int kCallsOfOpen = 10;

class FailingCallTest : public testing::TestWithParam<int> {};

TEST_P(FailingCallTest, AnyFailingCallIsReportedAndNothingLeaks) {
  const int code = GetParam();
  const auto whole = std::make_shared<DriverScript>();
  bool is_lost = true;
  ASSERT_TRUE(WholeLife(whole, &is_lost).ok());
  EXPECT_FALSE(is_lost);
  EXPECT_TRUE(whole->alive.empty());
  ASSERT_GE(whole->num_calls, 60);

  for (int num_good = 0; num_good + 1 < whole->num_calls; ++num_good) {
    const auto script = std::make_shared<DriverScript>();
    script->is_sticky = IsStickyCudaError(code);
    script->Fail(DriverCall::kAny, code, num_good);
    is_lost = false;
    const absl::Status status = WholeLife(script, &is_lost);
    EXPECT_TRUE(script->alive.empty()) << "call " << num_good;
    if (script->is_optional && !script->is_sticky && status.ok()) continue;
    ASSERT_FALSE(status.ok()) << "call " << num_good;
    if (num_good >= kCallsOfOpen) {
      EXPECT_EQ(is_lost, script->is_sticky) << "call " << num_good;
    }
    if (code == kCudaOutOfMemory) {
      EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    } else if (num_good >= 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Codes, FailingCallTest,
                         testing::Values(kCudaInvalidValue, kCudaOutOfMemory, kIllegalAddress),
                         [](const auto& test) { return "Error" + std::to_string(test.param); });

class CudaStepTest : public testing::Test {
 protected:
  CudaStepTest()
      : script_(std::make_shared<DriverScript>()),
        backend_(*MakeFaulty(script_)),
        stepper_(*Stepper::Make(*backend_)) {}

  std::shared_ptr<DriverScript> script_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Stepper> stepper_;
};

TEST_F(CudaStepTest, OutOfMemoryFailsTheStepAndTheNextStepRecovers) {
  script_->is_lasting = true;
  script_->Fail(DriverCall::kAllocate, kCudaOutOfMemory);
  ExpectError(stepper_->Step(kPrompt), absl::StatusCode::kResourceExhausted, "cannot allocate");
  EXPECT_FALSE(backend_->IsLost());
  script_->Mend();
  EXPECT_TRUE(stepper_->Step(kPrompt).ok());
}

TEST_F(CudaStepTest, StickyErrorIsReturnedEveryTime) {
  EXPECT_TRUE(stepper_->Step(kPrompt).ok());
  script_->is_sticky = true;
  script_->Fail(DriverCall::kSynchronize, kIllegalAddress);
  for (int i = 0; i < 2; ++i) {
    ExpectError(stepper_->Step(kNextRow), absl::StatusCode::kInternal,
                "CUDA error 700, text of 700");
    EXPECT_TRUE(backend_->IsLost());
  }
  float host = 0;
  ExpectError(backend_->CopyOut(&host, stepper_->X().Address(), 4), absl::StatusCode::kInternal,
              "copying from the device failed");
}

TEST_F(CudaStepTest, KernelThatDoesNotLaunch) {
  script_->Fail(DriverCall::kLaunchKernel, kCudaNoKernelForDevice);
  ExpectError(stepper_->Step(kPrompt), absl::StatusCode::kFailedPrecondition, "embedding failed");
  EXPECT_TRUE(backend_->Synchronize().ok());
  EXPECT_FALSE(backend_->IsLost());
}

// A first run that failed loaded no kernels and reserved no workspaces: what is recorded behind it
// would fail too, and the steps of its shape would run without a graph for good.
TEST_F(CudaStepTest, AStepIsRecordedOnlyAfterItRan) {
  ASSERT_TRUE(stepper_->Step(kPrompt).ok());
  script_->Fail(DriverCall::kLaunchKernel, kCudaNoKernelForDevice);
  ASSERT_FALSE(stepper_->Step(kNextRow).ok());
  script_->Mend();
  script_->failing = DriverCall::kEndCapture;
  script_->num_calls = 0;
  EXPECT_TRUE(stepper_->Step(kNextRow).ok());
  EXPECT_EQ(script_->num_calls, 0);
  EXPECT_TRUE(stepper_->Step(kNextRow).ok());
  EXPECT_EQ(script_->num_calls, 1);
}

// What is left after a model is loaded goes to the KV cache: its longest steps must not need more.
TEST(CudaDriverTest, ALoadedModelsLongestStepAllocatesNoRows) {
  for (const bool has_library : {false, true}) {
    const std::unique_ptr<Backend> backend = MakeEmulatedBackend(90, has_library);
    constexpr int kMostTokens = 400, kPageSize = 16;
    const Checkpoint checkpoint =
        *LoadCheckpoint("tests/golden/gpt_lssar", backend.get(),
                        {.dtype = DType::kF16, .max_num_batched_tokens = kMostTokens});
    const PagePool pool = *MakePagePool(LayoutOf(checkpoint.config, DType::kF16, kPageSize),
                                        kMostTokens, backend.get());
    const int64_t before = **backend->FreeBytes();
    ForwardBatch batch;
    batch.token_ids.assign(kMostTokens, 7);
    batch.sequences = {{.num_rows = kMostTokens, .pages = pool.pages}};
    batch.rope_bases = {10000};
    batch.attention = {nullptr};
    ASSERT_TRUE(checkpoint.model->Forward(batch, pool.view, nullptr).ok());
    ASSERT_TRUE(checkpoint.model->Synchronize().ok());
    // Ids, tables of rows and pages.
    EXPECT_LE(before - **backend->FreeBytes(), kMostTokens * 128) << has_library;
  }
}

// Every shape of a model's decode steps is recorded before its first request.
TEST(CudaDriverTest, AModelsStepsAreRecordedAtItsStart) {
  const auto script = std::make_shared<DriverScript>();
  script->free_bytes = size_t{1} << 30;
  const std::unique_ptr<Backend> backend = *MakeFaulty(script);
  Checkpoint checkpoint =
      *LoadCheckpoint("tests/golden/gpt_lssar", backend.get(), {.dtype = DType::kF16});
  const PagePool pool =
      *MakePagePool(LayoutOf(checkpoint.config, DType::kF16, 16), 600, backend.get());
  script->failing = DriverCall::kEndCapture;
  script->num_calls = 0;
  ASSERT_TRUE(checkpoint.model->PrepareSteps(pool.view, 4, 600).ok());
  EXPECT_EQ(script->num_calls, 3 * 3);                         // 1, 2 and 4 rows; 1, 2 and 4 splits
  script->Fail(DriverCall::kLaunchKernel, kCudaInvalidValue);  // a graph is not a launch of kernels
  ForwardBatch batch;
  batch.token_ids = {7};
  batch.sequences = {{.num_rows = 1, .first_position = 500, .pages = pool.pages}};
  batch.rope_bases = {10000};
  batch.attention = {nullptr};
  AttentionStats stats;
  EXPECT_TRUE(checkpoint.model->Forward(batch, pool.view, &stats).ok());
  EXPECT_TRUE(checkpoint.model->Synchronize().ok());
  EXPECT_GT(stats.num_value_rows_read, 0);
}

// Codes of cuda_runtime_api.h.
TEST(StickyErrorTest, KernelFaultsAreStickyAndUsageErrorsAreNot) {
  for (const int code : {214, 700, 702, 715, 716, 719}) EXPECT_TRUE(IsStickyCudaError(code));
  for (const int code : {kCudaSuccess, kCudaInvalidValue, kCudaOutOfMemory, kCudaNoDevice,
                         kCudaNoKernelForDevice, kCudaCaptureUnsupported}) {
    EXPECT_FALSE(IsStickyCudaError(code));
  }
}

// The emulation reads host memory when the stream runs, as a driver may read pageable memory. A
// copy from memory that its caller frees must wait for that.
TEST(EmulatedDriverTest, HostMemoryMayChangeAfterACopyThatIsNotAsynchronous) {
  const std::unique_ptr<CudaDriver> driver = MakeEmulatedDriver();
  void* memory = nullptr;
  ASSERT_EQ(driver->Allocate(4, memory), kCudaSuccess);
  int host = 5, on_device = 0;
  ASSERT_EQ(driver->CopyIn(memory, &host, 4), kCudaSuccess);
  host = 6;
  ASSERT_EQ(driver->CopyOut(&on_device, memory, 4), kCudaSuccess);
  EXPECT_EQ(on_device, 5);
  ASSERT_EQ(driver->CopyInAsync(memory, &host, 4), kCudaSuccess);
  host = 7;
  ASSERT_EQ(driver->CopyOut(&on_device, memory, 4), kCudaSuccess);
  EXPECT_EQ(on_device, 7) << "asynchronous copies do not read late: this test shows nothing";
  driver->Free(memory);
}

// Recorded work runs at each launch, with the contents of its addresses at that time.
TEST(EmulatedDriverTest, GraphReplaysRecordedWork) {
  const std::unique_ptr<CudaDriver> driver = MakeEmulatedDriver();
  ASSERT_EQ(driver->Open(0), kCudaSuccess);
  void *memory = nullptr, *pinned = nullptr, *graph = nullptr;
  ASSERT_EQ(driver->Allocate(16, memory), kCudaSuccess);
  ASSERT_EQ(driver->AllocateHost(16, pinned), kCudaSuccess);
  int* const host = static_cast<int*>(pinned);
  int* const on_device = static_cast<int*>(memory);

  host[0] = 1;
  ASSERT_EQ(driver->BeginCapture(), kCudaSuccess);
  EXPECT_EQ(driver->CopyInAsync(on_device, host, 4), kCudaSuccess);
  EXPECT_EQ(driver->CopyInside(on_device + 1, on_device, {.row_bytes = 4}), kCudaSuccess);
  EXPECT_EQ(driver->CopyOutAsync(host + 1, on_device + 1, 4), kCudaSuccess);
  ASSERT_EQ(driver->EndCapture(graph), kCudaSuccess);
  host[1] = -1;
  EXPECT_EQ(driver->Synchronize(), kCudaSuccess);
  EXPECT_EQ(host[1], -1);
  for (const int value : {5, 6}) {
    host[0] = value;
    EXPECT_EQ(driver->LaunchGraph(graph), kCudaSuccess);
    EXPECT_NE(host[1], value);
    EXPECT_EQ(driver->Synchronize(), kCudaSuccess);
    EXPECT_EQ(host[1], value);
  }
  driver->DestroyGraph(graph);
  driver->Free(memory);
  driver->FreeHost(pinned);
}

TEST(EmulatedDriverTest, ForbiddenCallsInvalidateACapture) {
  const std::unique_ptr<CudaDriver> driver = MakeEmulatedDriver();
  void *memory = nullptr, *graph = nullptr;
  ASSERT_EQ(driver->BeginCapture(), kCudaSuccess);
  EXPECT_EQ(driver->BeginCapture(), kCudaCaptureUnsupported);
  EXPECT_EQ(driver->Allocate(16, memory), kCudaCaptureUnsupported);
  EXPECT_EQ(driver->EndCapture(graph), kCudaCaptureInvalidated);
  ASSERT_EQ(driver->BeginCapture(), kCudaSuccess);
  EXPECT_EQ(driver->Synchronize(), kCudaCaptureUnsupported);
  EXPECT_EQ(driver->EndCapture(graph), kCudaCaptureInvalidated);
  EXPECT_EQ(driver->EndCapture(graph), kCudaCaptureInvalidated);
  EXPECT_EQ(driver->Synchronize(), kCudaSuccess);
}

}  // namespace
}  // namespace lssar

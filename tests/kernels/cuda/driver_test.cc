// What the backend says when a call to the driver fails.
#include "kernels/cuda/driver.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/emulation/emulated_backend.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/dense_cases.h"

namespace lssar {
namespace {

constexpr int kIllegalAddress = 700;

// What goes wrong; 0 is nothing.
struct Faults {
  int count_devices = 0;
  int num_devices = 1;
  int open = 0;
  int compute_capability = 90;
  int driver_version = 13000;
  int allocate = 0;
  int copy = 0;
  int synchronize = 0;
};

class FaultyDriver final : public CudaDriver {
 public:
  explicit FaultyDriver(std::shared_ptr<Faults> faults)
      : faults_(std::move(faults)), driver_(MakeEmulatedDriver()) {}

  int CountDevices(int& count) override {
    count = faults_->num_devices;
    return faults_->count_devices;
  }
  int Open(int device_idx, CudaDevice& device) override {
    if (faults_->open != 0) return faults_->open;
    const int code = driver_->Open(device_idx, device);
    device.compute_capability = faults_->compute_capability;
    device.driver_version = faults_->driver_version;
    return code;
  }
  void* Stream() const override { return nullptr; }
  int Allocate(size_t num_bytes, void*& address) override {
    return faults_->allocate != 0 ? faults_->allocate : driver_->Allocate(num_bytes, address);
  }
  void Free(void* address) override { driver_->Free(address); }
  int FreeMemory(size_t& num_bytes) override {
    num_bytes = 12345;
    return kCudaSuccess;
  }
  int Clear(void* address, size_t num_bytes) override { return driver_->Clear(address, num_bytes); }
  int CopyIn(void* to, const void* from, size_t num_bytes) override {
    return faults_->copy != 0 ? faults_->copy : driver_->CopyIn(to, from, num_bytes);
  }
  int CopyOut(void* to, const void* from, size_t num_bytes) override {
    return faults_->copy != 0 ? faults_->copy : driver_->CopyOut(to, from, num_bytes);
  }
  int CopyInside(void* to, const void* from, size_t num_bytes) override {
    return faults_->copy != 0 ? faults_->copy : driver_->CopyInside(to, from, num_bytes);
  }
  int Synchronize() override { return faults_->synchronize; }
  int MarkTime(int) override { return kCudaSuccess; }
  int ElapsedMs(float&) override { return kCudaSuccess; }
  std::string ErrorText(int code) const override { return "text of " + std::to_string(code); }

 private:
  std::shared_ptr<Faults> faults_;
  std::unique_ptr<CudaDriver> driver_;
};

absl::StatusOr<std::unique_ptr<Backend>> Make(const std::shared_ptr<Faults>& faults,
                                              int device_idx = 0) {
  CudaBackendParts parts = EmulatedParts();
  parts.driver = std::make_unique<FaultyDriver>(faults);
  return MakeCudaBackend(std::move(parts), device_idx);
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& said) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(status.message().find(said), std::string::npos) << status;
}

TEST(CudaDriverTest, DevicesThatCannotBeOpened) {
  const auto error = [](const Faults& faults, int device_idx = 0) {
    return Make(std::make_shared<Faults>(faults), device_idx).status();
  };
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  ExpectError(error({.count_devices = kCudaDriverTooOld}), kPrecondition, "no NVIDIA driver");
  ExpectError(error({.count_devices = kCudaNoDevice}), kPrecondition, "no CUDA device");
  ExpectError(error({.num_devices = 0}), kPrecondition, "no CUDA device");
  ExpectError(error({.num_devices = 2}, 2), absl::StatusCode::kInvalidArgument,
              "device 2 does not exist: this machine has 2");
  ExpectError(error({}, -1), absl::StatusCode::kInvalidArgument, "-1");
  ExpectError(error({.open = kCudaOutOfMemory}), absl::StatusCode::kResourceExhausted,
              "opening CUDA device 0 failed: CUDA error 2, text of 2");
  ExpectError(error({.driver_version = 12040}), kPrecondition,
              "supports CUDA 12.4, this build needs 13.0");
  ExpectError(error({.compute_capability = 75}), kPrecondition, "7.5; 8.0 is the oldest");
  EXPECT_TRUE(error({}).ok());
}

TEST(CudaDriverTest, OutOfMemory) {
  const auto faults = std::make_shared<Faults>();
  const std::unique_ptr<Backend> backend = *Make(faults);
  faults->allocate = kCudaOutOfMemory;
  ExpectError(backend->Allocate(1 << 20).status(), absl::StatusCode::kResourceExhausted,
              "cannot allocate 1048576 bytes on the device, which has 12345 bytes free");
  const std::vector<float> w(64);
  const absl::Status packed =
      backend->Pack({.elements = w.data(), .num_rows = 1, .num_cols = 64}, DType::kF16).status();
  ExpectError(packed, absl::StatusCode::kResourceExhausted, "12345");
}

class CudaStepTest : public testing::Test {
 protected:
  CudaStepTest()
      : faults_(std::make_shared<Faults>()),
        backend_(*Make(faults_)),
        sequence_(40, 1, 32, 1, Content::kTopical),
        kv_(*backend_, {&sequence_}, 16, DType::kF16),
        view_(kv_.Upload()),
        q_(*backend_, sequence_.q),
        out_(*backend_, sequence_.q) {}

  absl::Status Step() {
    const std::vector<SequenceRows> rows{{.num_rows = 40, .pages = kv_.Pages(0)}};
    const RaggedRows ragged{.num_rows = 40, .sequences = rows};
    backend_->Attention({.rows = &ragged,
                         .layer = kCaseLayer,
                         .spec = {},
                         .q = q_.Address(),
                         .kv = view_,
                         .out = out_.Address()});
    return backend_->Synchronize();
  }

  std::shared_ptr<Faults> faults_;
  std::unique_ptr<Backend> backend_;
  SequenceVectors sequence_;
  PagedKv kv_;
  KvView view_;
  Floats q_, out_;
};

TEST_F(CudaStepTest, AStepThatFindsNoMemorySaysSoAndTheNextMayGoWell) {
  faults_->allocate = kCudaOutOfMemory;
  ExpectError(Step(), absl::StatusCode::kResourceExhausted, "cannot allocate");
  EXPECT_FALSE(backend_->IsLost());
  faults_->allocate = 0;
  EXPECT_TRUE(Step().ok());
}

TEST_F(CudaStepTest, AStickyErrorIsGivenEveryTime) {
  EXPECT_TRUE(Step().ok());
  faults_->synchronize = faults_->copy = kIllegalAddress;
  for (int i = 0; i < 2; ++i) {
    ExpectError(Step(), absl::StatusCode::kInternal, "CUDA error 700, text of 700");
  }
  float host = 0;
  ExpectError(backend_->CopyOut(&host, q_.Address(), 4), absl::StatusCode::kInternal,
              "copying from the device failed");
  EXPECT_TRUE(backend_->IsLost());
  faults_->copy = 0;  // for the fixture's end
}

TEST(CudaLaunchTest, AKernelThatDoesNotStart) {
  CudaBackendParts parts = EmulatedParts();
  parts.kernels.embed = [](const CudaEmbedArgs&, void*) { return kCudaNoKernelForDevice; };
  const std::unique_ptr<Backend> backend = *MakeCudaBackend(std::move(parts), 0);
  const auto table = Pack(*backend, std::vector<float>(64), 1, 64, DType::kF16);
  Floats out(*backend, std::vector<float>(64));
  const int32_t id = 0;
  backend->Embed({.ids = {&id, 1}, .table = table.get(), .out = out.Address()});
  ExpectError(backend->Synchronize(), absl::StatusCode::kFailedPrecondition, "embedding failed");
  EXPECT_TRUE(backend->Synchronize().ok());
}

}  // namespace
}  // namespace lssar

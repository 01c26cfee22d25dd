// Backends by the names that tests use.
#ifndef LSSAR_TESTS_SUPPORT_TEST_DEVICE_H_
#define LSSAR_TESTS_SUPPORT_TEST_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// The names of MakeBackend; "cuda-emulated": the GPU kernels emulated on the host, with GEMMs of
// many rows by the emulated library unless batch_invariant.
absl::StatusOr<std::unique_ptr<Backend>> OpenTestDevice(const BackendOptions& options);

// "cpu", "cuda-emulated" and, where there is a GPU, "cuda".
std::vector<std::string> TestDevices();

// A model for a device test, small enough for that device.
struct DeviceCase {
  std::string device;
  std::string checkpoint;

  bool IsGpu() const { return device == "cuda"; }
};

// A tiny model on "cpu" and "cuda-emulated"; with a GPU also on "cuda", and the shipped model.
std::vector<DeviceCase> DeviceCases();

// "cuda_emulated", "cuda_emulated_gpt_lssar": valid gtest names.
std::string NameOfDevice(std::string device);
std::string NameOfCase(const DeviceCase& device_case);

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_TEST_DEVICE_H_

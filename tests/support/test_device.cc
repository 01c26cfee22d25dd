#include "tests/support/test_device.h"

#include <algorithm>

#include "kernels/cuda/emulation/emulated_backend.h"

namespace lssar {
namespace {

constexpr char kTiny[] = "tests/golden/gpt_lssar";
constexpr char kShipped[] = "models/zoo/lssar-6m";

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenTestDevice(const BackendOptions& options) {
  if (options.name == "cuda-emulated") {
    return MakeEmulatedBackend(90, /*has_library=*/!options.batch_invariant);
  }
  return MakeBackend(options);
}

std::vector<std::string> TestDevices() {
  std::vector<std::string> devices = {"cpu", "cuda-emulated"};
  if (MakeBackend({.name = "cuda", .batch_invariant = true}).ok()) devices.emplace_back("cuda");
  return devices;
}

std::vector<DeviceCase> DeviceCases() {
  std::vector<DeviceCase> cases;
  for (const std::string& device : TestDevices()) {
    cases.push_back({device, kTiny});
    if (device == "cuda") cases.push_back({device, kShipped});
  }
  return cases;
}

std::string NameOfDevice(std::string device) {
  std::ranges::replace(device, '-', '_');
  return device;
}

std::string NameOfCase(const DeviceCase& device_case) {
  const std::string& path = device_case.checkpoint;
  return NameOfDevice(device_case.device + "_" + path.substr(path.rfind('/') + 1));
}

}  // namespace lssar

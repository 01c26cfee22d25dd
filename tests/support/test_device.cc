#include "tests/support/test_device.h"

#include <algorithm>

#include "kernels/cuda/emulation/emulated_backend.h"

namespace lssar {
namespace {

constexpr char kTiny[] = "tests/golden/gpt_lssar";
constexpr char kShipped[] = "models/zoo/lssar-6m";

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> OpenTestDevice(const BackendOptions& options) {
  if (options.name == "cuda-emulated") return MakeEmulatedBackend();
  return MakeBackend(options);
}

std::vector<DeviceCase> DeviceCases() {
  std::vector<DeviceCase> cases = {{"cpu", kTiny}, {"cuda-emulated", kTiny}};
  if (MakeBackend({.name = "cuda"}).ok()) {
    cases.push_back({"cuda", kTiny});
    cases.push_back({"cuda", kShipped});
  }
  return cases;
}

std::string NameOfCase(const DeviceCase& device_case) {
  const std::string& path = device_case.checkpoint;
  std::string name = device_case.device + "_" + path.substr(path.rfind('/') + 1);
  std::ranges::replace(name, '-', '_');
  return name;
}

}  // namespace lssar

#include "kernels/backend.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#if LSSAR_WITH_CUDA
#include "kernels/cuda/device/device_backend.h"
#endif
#include "kernels/reference/reference_backend.h"

namespace lssar {
namespace {

constexpr int kMaxThreads = ThreadPool::kMaxThreads;

absl::StatusOr<std::unique_ptr<Backend>> MakeCpu(const BackendOptions& options, int /*index*/) {
  return MakeCpuBackend(options);
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCuda([[maybe_unused]] const BackendOptions& options,
                                                  [[maybe_unused]] int index) {
#if LSSAR_WITH_CUDA
  return MakeDeviceBackend(index, options.batch_invariant, options.log);
#else
  return absl::FailedPreconditionError(
      "this build has no cuda backend: build with LSSAR_WITH_CUDA=ON");
#endif
}

absl::StatusOr<std::unique_ptr<Backend>> MakeReference(const BackendOptions& options,
                                                       int /*index*/) {
  if (!options.instruction_set.empty()) {
    return absl::InvalidArgumentError("only the cpu backend has an instruction_set");
  }
  return MakeReferenceBackend();
}

// A backend that MakeBackend knows. A new one is a row of kDevices.
struct Device {
  std::string_view name;
  bool is_numbered;       // "name:N" is the Nth device
  std::string_view help;  // in parentheses behind the name; may be empty
  bool has_threads;       // num_threads applies
  absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendOptions& options, int index);
};
constexpr Device kDevices[] = {
    {"cpu", false, "", /*has_threads=*/true, &MakeCpu},
    {"cuda", true, "the Nth NVIDIA GPU, from 0", false, &MakeCuda},
    {"reference", false, "slow, double precision", false, &MakeReference},
};

struct DeviceChoice {
  const Device* device;
  int index;
};

// "cpu", "cuda, cuda:N such as cuda:0", "or reference".
std::string DeviceNames() {
  std::string names;
  for (const Device& device : kDevices) {
    if (!names.empty()) names += &device == std::end(kDevices) - 1 ? ", or " : ", ";
    names += device.name;
    if (device.is_numbered) {
      names += StrCat(", ", device.name, ":N such as ", device.name, ":0");
    }
  }
  return names;
}

absl::StatusOr<DeviceChoice> ParseDevice(std::string_view name) {
  for (const Device& device : kDevices) {
    if (name == device.name) return DeviceChoice{&device, 0};
    if (!device.is_numbered || !name.starts_with(device.name)) continue;
    const std::string suffix(name.substr(device.name.size()));
    int index = 0;
    if (suffix.starts_with(":") && absl::SimpleAtoi(suffix.substr(1), &index) && index >= 0) {
      return DeviceChoice{&device, index};
    }
  }
  return absl::InvalidArgumentError(StrCat("it must be ", DeviceNames()));
}

// "cpu", "cpu and another".
std::string DevicesWithThreads() {
  std::string names;
  for (const Device& device : kDevices) {
    if (!device.has_threads) continue;
    if (!names.empty()) names += " and ";
    names += device.name;
  }
  return names;
}

std::string DeviceHelp() {
  std::string help = "Where the model runs: ";
  for (const Device& device : kDevices) {
    if (&device != kDevices) help += &device == std::end(kDevices) - 1 ? ", or " : ", ";
    help += device.name;
    if (device.is_numbered) help += StrCat(" or ", device.name, ":N");
    if (!device.help.empty()) help += StrCat(" (", device.help, ")");
  }
  return StrCat(help, "; default ", BackendOptions().name);
}

absl::Status ParseDeviceFlag(const std::string& value, BackendOptions* options) {
  RETURN_IF_ERROR(ParseDevice(value).status());
  options->name = value;
  return absl::OkStatus();
}

absl::Status ParseBatchInvariantFlag(const std::string& value, BackendOptions* options) {
  if (value != "true" && value != "false") {
    return absl::InvalidArgumentError("it must be true or false");
  }
  options->batch_invariant = value == "true";
  return absl::OkStatus();
}

absl::Status ParseThreadsFlag(const std::string& value, BackendOptions* options) {
  int count = 0;
  if (!absl::SimpleAtoi(value, &count) || count < 0 || count > kMaxThreads) {
    return absl::InvalidArgumentError(
        StrCat("it must be a whole number in [0, ", kMaxThreads, "]"));
  }
  options->num_threads = count;
  return absl::OkStatus();
}

absl::Status ParseCpusFlag(const std::string& value, BackendOptions* options) {
  ASSIGN_OR_RETURN(options->cpus, ParseCpuList(value));
  return absl::OkStatus();
}

// Errors  INVALID_ARGUMENT: threads and CPUs do not fit together, or this process may not use a CPU
absl::Status CheckCpus(const BackendOptions& options) {
  if (options.cpus.empty()) return absl::OkStatus();
  const std::string flag = StrCat("--cpus ", FormatCpuList(options.cpus));
  if (options.num_threads != 0 && size_t(options.num_threads) != options.cpus.size()) {
    return absl::InvalidArgumentError(StrCat("--threads ", options.num_threads, " and ", flag,
                                             ": each CPU of the list gets one thread, ",
                                             options.cpus.size(),
                                             " together; leave --threads out, or make them equal"));
  }
  const std::vector<int> usable = UsableCpus();
  for (const int cpu : options.cpus) {
    if (usable.empty() || std::ranges::binary_search(usable, cpu)) continue;
    return absl::InvalidArgumentError(StrCat(flag, ": this process may not use CPU ", cpu,
                                             "; it may use ", FormatCpuList(usable)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckFeatures(const Backend& backend, std::span<const Feature> features) {
  for (const Feature feature : features) {
    if (backend.Supports(feature)) continue;
    const FeatureInfo& wanted = InfoOf(feature);
    std::string computed;
    for (const FeatureInfo& info : kFeatures) {
      if (info.field != wanted.field || !backend.Supports(info.feature)) continue;
      computed += StrCat(computed.empty() ? "; it computes " : ", ", info.value);
    }
    return absl::UnimplementedError(StrCat(wanted.field, " is ", wanted.value, ", which the ",
                                           backend.Name(), " backend does not compute", computed,
                                           ". Use --device cpu, which computes every value"));
  }
  return absl::OkStatus();
}

std::vector<BackendFlag> BackendFlags() {
  return {
      {"device", "DEVICE", DeviceHelp(), &ParseDeviceFlag},
      {"batch-invariant", "",
       "A request gives the same bits in any batch on --device cuda too, where prompts become "
       "several times slower (no cuBLASLt); --device cpu and reference always do; default off",
       &ParseBatchInvariantFlag},
      {"threads", "COUNT",
       StrCat("Threads of --device ", DevicesWithThreads(), ", [0, ", kMaxThreads,
              "]; default 0: one for each CPU of --cpus, or else for each CPU that this process "
              "may use, at most the CPU quota of its cgroup"),
       &ParseThreadsFlag},
      {"cpus", "LIST",
       StrCat("CPUs of --device ", DevicesWithThreads(),
              ", such as 0-7,16-23: one thread runs on each and stays there, and memory is placed "
              "on its socket; default: the kernel places threads"),
       &ParseCpusFlag},
  };
}

absl::Status CheckBackendFlags(const BackendOptions& options) {
  const absl::StatusOr<DeviceChoice> choice = ParseDevice(options.name);
  if (!choice.ok()) {
    return absl::InvalidArgumentError(
        StrCat("--device \"", options.name, "\": ", choice.status().message()));
  }
  const Device& device = *choice->device;
  if (options.num_threads != 0 && !device.has_threads) {
    return absl::InvalidArgumentError(
        StrCat("--threads ", options.num_threads, ": only --device ", DevicesWithThreads(),
               " has threads; leave it out with --device ", options.name));
  }
  if (!options.cpus.empty() && !device.has_threads) {
    return absl::InvalidArgumentError(
        StrCat("--cpus ", FormatCpuList(options.cpus), ": only --device ", DevicesWithThreads(),
               " has threads; leave it out with --device ", options.name));
  }
  RETURN_IF_ERROR(CheckCpus(options));
  return absl::OkStatus();
}

std::vector<std::string> BackendWarnings(const BackendOptions& options) {
  const absl::StatusOr<DeviceChoice> choice = ParseDevice(options.name);
  if (!choice.ok() || !choice->device->has_threads) return {};
  const int num_threads = options.cpus.empty() ? options.num_threads : int(options.cpus.size());
  return DescribeTooManyThreads(num_threads, UsableCpus().size(), CpuQuota());
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        StrCat("num_threads is ", options.num_threads, ", must be in [0, ", kMaxThreads, "]"));
  }
  RETURN_IF_ERROR(CheckCpus(options));
  const absl::StatusOr<DeviceChoice> choice = ParseDevice(options.name);
  if (!choice.ok()) {
    return absl::InvalidArgumentError(
        StrCat("backend is \"", options.name, "\": ", choice.status().message()));
  }
  return choice->device->make(options, choice->index);
}

}  // namespace lssar

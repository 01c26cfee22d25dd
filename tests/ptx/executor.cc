#include "tests/ptx/executor.h"

#include <elf.h>
#include <link.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/str_cat.h"
#include "kernels/cuda/emulation/machine.h"

namespace lssar::ptx {
namespace {

// Functions of this program by address, from the symbol table of its file: the kernels are in an
// anonymous namespace, which dladdr does not know.
std::map<uint64_t, std::string> ReadFunctions() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto read = [&]<typename T>(uint64_t at, T* to) { std::memcpy(to, &bytes[at], sizeof(T)); };
  uint64_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<uint64_t*>(to) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &base);
  Elf64_Ehdr header;
  read(0, &header);
  const auto section = [&](uint64_t i) {
    Elf64_Shdr found;
    read(header.e_shoff + i * header.e_shentsize, &found);
    return found;
  };
  std::map<uint64_t, std::string> names;
  for (uint64_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr symbols = section(i);
    if (symbols.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr strings = section(symbols.sh_link);
    for (uint64_t at = 0; at < symbols.sh_size; at += sizeof(Elf64_Sym)) {
      Elf64_Sym symbol;
      read(symbols.sh_offset + at, &symbol);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
      const char* const mangled = &bytes[strings.sh_offset + symbol.st_name];
      if (std::strstr(mangled, "cuda_emulated") != nullptr) names[base + symbol.st_value] = mangled;
    }
  }
  return names;
}

}  // namespace

Counts Report::Total() const {
  Counts total;
  for (const auto& [kernel, counts] : by_kernel) total.Add(counts);
  return total;
}

Executor::Executor() : names_(ReadFunctions()) { emulation::SetKernelRunner(&RunLaunch); }

Executor& Executor::Get() {
  static Executor* const executor = new Executor();
  return *executor;
}

bool Executor::Start(const std::string& folder, const std::string& target, const Options& options) {
  texts_.clear();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().ends_with("." + target + ".ptx")) continue;
    std::ifstream file(entry.path());
    texts_.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  Replace(texts_);
  has_clusters_ = target == "90";
  SetOptions(options);
  is_enabled_ = true;
  return !texts_.empty();
}

void Executor::Replace(const std::vector<std::string>& texts) {
  module_ = {};
  kernels_.clear();
  for (const std::string& text : texts) module_.Add(text);
}

void Executor::SetOptions(const Options& options) {
  machine_.options = options;
  machine_.random.seed(uint32_t(options.seed + 1));
}

Report Executor::TakeReport() { return std::exchange(report_, {}); }

const Kernel& Executor::KernelOf(const void* function) {
  const std::string name = ShortName(names_[reinterpret_cast<uint64_t>(function)]);
  std::unique_ptr<Kernel>& kernel = kernels_[name];
  if (kernel == nullptr) {
    const std::string mangled = module_.Find(name);
    if (mangled.empty()) throw Fault(StrCat("no PTX of kernel \"", name, "\""));
    kernel = std::make_unique<Kernel>(module_.Assemble(mangled));
  }
  return *kernel;
}

bool Executor::RunLaunch(const void* function, const LaunchShape& shape, const void* args,
                         size_t num_bytes) {
  Executor& self = Get();
  if (!self.is_enabled_) return false;
  Machine& machine = self.machine_;
  std::string name = "?";
  machine.counts = {};
  machine.races.clear();
  try {
    const Kernel& kernel = self.KernelOf(function);
    name = kernel.name;
    machine.Run(kernel, shape, args, num_bytes, self.has_clusters_);
  } catch (const Fault& fault) {
    self.report_.faults.push_back(StrCat(name, ": ", fault.what()));
  }
  self.report_.by_kernel[name].Add(machine.counts);
  self.report_.races.merge(machine.races);
  return true;
}

}  // namespace lssar::ptx

// One program with every fuzz target. The name that it is called by, a symbolic link, selects the
// target: libFuzzer starts its own path again for -jobs, -merge and -minimize_crash.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerRunDriver(int* argc, char*** argv,
                                   int (*run)(const uint8_t* data, size_t size));

namespace lssar {
namespace {

std::map<std::string, FuzzFunction>& Targets() {
  static std::map<std::string, FuzzFunction> targets;
  return targets;
}

FuzzFunction selected = nullptr;

int RunSelected(const uint8_t* data, size_t size) {
  selected({data, size});
  return 0;
}

}  // namespace

bool RegisterFuzzTarget(const char* name, FuzzFunction run) {
  return Targets().emplace(name, run).second;
}

bool FaultIsPlanted() {
  static const bool is_planted = [] {
    const char* value = std::getenv("LSSAR_PLANTED_FAULT");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return is_planted;
}

const std::string& FuzzFolder() {
  static const std::string& folder = *new std::string([] {  // for atexit: never destroyed
    const bool has_memory_folder = std::filesystem::is_directory("/dev/shm");
    std::string path = std::string(has_memory_folder ? "/dev/shm" : "/tmp") + "/lssar-fuzz-XXXXXX";
    LSSAR_CHECK(mkdtemp(path.data()) != nullptr);
    std::atexit([] { std::filesystem::remove_all(FuzzFolder()); });
    return path;
  }());
  return folder;
}

void WriteFuzzFile(const std::string& name, std::string_view text) {
  std::ofstream file(FuzzFolder() + "/" + name, std::ios::binary | std::ios::trunc);
  file.write(text.data(), std::streamsize(text.size()));
  LSSAR_CHECK(file.flush().good());
}

int FuzzMain(int argc, char** argv) {
  const std::string name = std::filesystem::path(argv[0]).filename();
  const auto found = Targets().find(name);
  if (found != Targets().end()) {
    selected = found->second;
    return LLVMFuzzerRunDriver(&argc, &argv, RunSelected);
  }
  const bool lists = argc == 2 && std::string_view(argv[1]) == "--list";
  for (const auto& [target, run] : Targets()) std::puts(target.c_str());
  if (!lists) std::fputs("call this program by the name of one of these targets\n", stderr);
  return lists ? 0 : 2;
}

}  // namespace lssar

int main(int argc, char** argv) { return lssar::FuzzMain(argc, argv); }

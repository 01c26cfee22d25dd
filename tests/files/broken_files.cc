// Reads damaged files of every kind that the programs read and finds signals, hangs and leaks.
//
//   broken_files --count 100000 [--seed 1] [--kind NAME]... [--skip NAME]... [--keep DIR]
//   broken_files --kind NAME --replay FILE
//
// Prints a table and each finding. Exit code 0: no finding; 1: findings; 2: usage. The bytes of a
// finding are written to --keep, for --replay.
#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/str_cat.h"
#include "tests/files/file_kinds.h"
#include "tests/files/mutate.h"
#include "tests/models/fixture.h"

namespace lssar::testing {
namespace {

constexpr size_t kMaxDamagedBytes = size_t{8} << 20;  // of a damaged file
constexpr int kMaxKinds = 32;
constexpr int kMaxFindings = 50;
constexpr auto kHangTime = std::chrono::seconds(60);  // also on a busy machine
constexpr int64_t kMaxPeakMib = 1024;
constexpr int64_t kMaxLeakBytes = int64_t{16} << 20;

struct Options {
  int64_t count = 5000;
  uint64_t seed = 1;
  std::vector<std::string> kinds, skipped;
  std::string keep = ".";
  std::string replay;
};

// One kind's counts.
struct Row {
  char name[32];
  int64_t num_files, num_accepted;
  double slowest_ms;
};

// What the reading process tells the watching one.
struct Shared {
  std::atomic<int64_t> index;  // of the file being read
  bool is_done;
  int num_rows;
  Row rows[kMaxKinds];
  int64_t allocated_early, allocated_late;  // bytes, after a tenth of the files and at the end
  char kind[32];
  size_t num_bytes;
  char bytes[kMaxDamagedBytes];
};

std::vector<FileKind> SelectKinds(const Options& options, const std::string& directory) {
  std::vector<FileKind> kinds = MakeFileKinds(directory);
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::erase_if(kinds, [&](const FileKind& kind) {
    return contains(options.skipped, kind.name) ||
           (!options.kinds.empty() && !contains(options.kinds, kind.name));
  });
  return kinds;
}

int64_t AllocatedBytes() {
  const struct mallinfo2 info = mallinfo2();
  return int64_t(info.uordblks + info.hblkhd);
}

void ReadFiles(const Options& options, const std::string& directory, int64_t first,
               Shared* shared) {
  const std::vector<FileKind> kinds = SelectKinds(options, directory);
  LSSAR_CHECK(!kinds.empty() && kinds.size() <= kMaxKinds);
  shared->num_rows = int(kinds.size());
  for (size_t k = 0; k < kinds.size(); ++k) {
    std::snprintf(shared->rows[k].name, sizeof(Row::name), "%s", kinds[k].name.c_str());
    // A kind whose good files are refused would test nothing.
    for (const std::string& example : kinds[k].examples) LSSAR_CHECK(kinds[k].read(example));
  }
  for (int64_t index = first; index < options.count; ++index) {
    const size_t k = size_t(index) % kinds.size();
    const FileKind& kind = kinds[k];
    const std::string& example = kind.examples[size_t(index) / kinds.size() % kind.examples.size()];
    const std::string bytes =
        Mutate(example, kind.words, options.seed * 1'000'000'007 + uint64_t(index));
    LSSAR_CHECK(bytes.size() <= kMaxDamagedBytes);
    std::snprintf(shared->kind, sizeof(shared->kind), "%s", kind.name.c_str());
    std::memcpy(shared->bytes, bytes.data(), bytes.size());
    shared->num_bytes = bytes.size();
    shared->index = index;
    const Clock::time_point start = Clock::now();
    const bool is_accepted = kind.read(bytes);
    const std::chrono::duration<double, std::milli> time = Clock::now() - start;
    Row& row = shared->rows[k];
    ++row.num_files;
    row.num_accepted += is_accepted;
    row.slowest_ms = std::max(row.slowest_ms, time.count());
    if (index == first + (options.count - first) / 10) shared->allocated_early = AllocatedBytes();
  }
  shared->allocated_late = AllocatedBytes();
  shared->is_done = true;
}

// Waits for the reading process. "": it came to its end; else what happened.
std::string Watch(pid_t child, const Shared& shared) {
  int64_t index = -1;
  Clock::time_point since = Clock::now();
  for (;;) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) {
      if (WIFSIGNALED(status)) return strsignal(WTERMSIG(status));
      if (shared.is_done) return "";
      return StrCat("the process ended with exit code ", WEXITSTATUS(status));
    }
    if (shared.index != index) {
      index = shared.index;
      since = Clock::now();
    } else if (Clock::now() - since > kHangTime) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "a hang";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

void Report(const Options& options, const Shared& shared, const std::string& what) {
  const std::string path = StrCat(options.keep, "/broken-", shared.index.load());
  std::ofstream(path, std::ios::binary) << std::string_view(shared.bytes, shared.num_bytes);
  std::printf("FINDING: %s in kind \"%s\": broken_files --kind \"%s\" --replay %s\n", what.c_str(),
              shared.kind, shared.kind, path.c_str());
}

int RunAll(const Options& options) {
  void* const memory =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  LSSAR_CHECK(memory != MAP_FAILED);
  Shared* const shared = new (memory) Shared();
  int num_findings = 0;
  for (int64_t first = 0; num_findings < kMaxFindings && !shared->is_done;) {
    const ScratchDirectory directory;
    shared->index = first - 1;
    const pid_t child = fork();
    LSSAR_CHECK(child >= 0);
    if (child == 0) {
      ReadFiles(options, directory.Path(), first, shared);
      std::fflush(nullptr);
      _exit(0);
    }
    const std::string what = Watch(child, *shared);
    if (what.empty()) break;
    if (shared->index < first) {
      std::printf("FAILED: %s before the first file\n", what.c_str());
      return 1;
    }
    Report(options, *shared, what);
    ++num_findings;
    first = shared->index + 1;
  }
  std::printf("%-20s %10s %10s %12s\n", "kind", "files", "accepted", "slowest ms");
  for (int k = 0; k < shared->num_rows; ++k) {
    const Row& row = shared->rows[k];
    std::printf("%-20s %10lld %10lld %12.1f\n", row.name, static_cast<long long>(row.num_files),
                static_cast<long long>(row.num_accepted), row.slowest_ms);
  }
  rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  const int64_t peak_mib = usage.ru_maxrss >> 10;
  const int64_t leaked = shared->allocated_late - shared->allocated_early;
  std::printf("peak memory %lld MiB, allocated at the end %+lld KiB\n",
              static_cast<long long>(peak_mib), static_cast<long long>(leaked >> 10));
  if (peak_mib > kMaxPeakMib) {
    std::printf("FINDING: more than %lld MiB\n", static_cast<long long>(kMaxPeakMib));
    ++num_findings;
  }
  if (leaked > kMaxLeakBytes) {
    std::printf("FINDING: memory is not given back\n");
    ++num_findings;
  }
  std::printf("%d findings\n", num_findings);
  return num_findings == 0 ? 0 : 1;
}

int Replay(const Options& options) {
  const ScratchDirectory directory;
  for (const FileKind& kind : SelectKinds(options, directory.Path())) {
    std::printf("%s: %s\n", kind.name.c_str(),
                kind.read(ReadFile(options.replay)) ? "accepted" : "refused");
  }
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Reads damaged files of every kind.", "broken_files");
  app.add_option("--count", options.count, "Files, of all kinds together; default 5000");
  app.add_option("--seed", options.seed, "Another seed damages other places; default 1");
  app.add_option("--kind", options.kinds, "Only this kind; may be repeated");
  app.add_option("--skip", options.skipped, "All but this kind; may be repeated");
  app.add_option("--keep", options.keep, "Directory for the files of findings; default .");
  app.add_option("--replay", options.replay, "Reads this file instead, in this process");
  CLI11_PARSE(app, argc, argv);
  return options.replay.empty() ? RunAll(options) : Replay(options);
}

}  // namespace
}  // namespace lssar::testing

int main(int argc, char** argv) { return lssar::testing::Main(argc, argv); }

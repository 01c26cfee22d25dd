// The main function of GoogleTest programs whose emulated CUDA backend runs nvcc's PTX.
//
//   program --ptx FOLDER --target 90|80 [--seed N] [--approximations N] [GoogleTest's options]
//
// FOLDER has NAME.TARGET.ptx of each kernel file. The numbers are Options::seed and
// approximation_seed. A race or a fault fails the test in which it happens. At the end, one line
// tells what ran; where no kernel did, the exit code is 3.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/ptx/executor.h"

namespace lssar::ptx {
namespace {

class CheckEachTest final : public testing::EmptyTestEventListener {
 public:
  bool HasRun() const { return total_.instructions > 0; }

 private:
  void OnTestEnd(const testing::TestInfo&) override {
    const Report report = Executor::Get().TakeReport();
    for (const std::string& race : report.races) ADD_FAILURE() << "race: " << race;
    for (const std::string& fault : report.faults) ADD_FAILURE() << fault;
    total_.Add(report.Total());
  }
  void OnTestProgramEnd(const testing::UnitTest&) override {
    std::printf("PTX: %s\n", total_.Text().c_str());
  }

  Counts total_;
};

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);  // takes its options away
  std::string folder, target;
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--ptx") folder = argv[i + 1];
    if (name == "--target") target = argv[i + 1];
    if (name == "--seed") options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (name == "--approximations") {
      options.approximation_seed = std::strtoull(argv[i + 1], nullptr, 10);
    }
  }
  const bool is_known = target == "90" || target == "80";
  if (argc % 2 == 0 || !is_known || !Executor::Get().Start(folder, target, options)) {
    std::fprintf(stderr,
                 "usage: --ptx FOLDER --target 90|80 [--seed N] [--approximations N] [options of "
                 "GoogleTest]\n"
                 "FOLDER has files NAME.TARGET.ptx\n");
    return 2;
  }
  auto* const checks = new CheckEachTest;
  testing::UnitTest::GetInstance()->listeners().Append(checks);
  const int code = RUN_ALL_TESTS();
  if (code != 0 || GTEST_FLAG_GET(list_tests) || checks->HasRun()) return code;
  std::printf("PTX: no kernel ran\n");
  return 3;  // tests whose names have changed would pass
}

}  // namespace
}  // namespace lssar::ptx

int main(int argc, char** argv) { return lssar::ptx::Main(argc, argv); }

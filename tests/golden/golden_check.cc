// Runs every case of a folder of golden vectors and prints a table.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "kernels/backend.h"
#include "nlohmann/json.hpp"
#include "tests/golden/golden_case.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

constexpr int kExitPass = 0;
constexpr int kExitFail = 1;
constexpr int kExitUsage = 2;

struct Options {
  std::string directory;
  BackendOptions backend;
  std::string kv = "fp32";
  int page_size = 64;
  std::string filter;
  bool json = false;
};

struct Outcome {
  std::string name;
  std::string result;  // "pass" | "fail" | "refused"
  bool is_model = false;
  GoldenError error;
  std::string message;  // the reason, where there is no error to print
};

Outcome RunCase(const Options& options, const GoldenCase& c, const GoldenSetup& setup) {
  const absl::StatusOr<GoldenError> error = c.is_model
                                                ? RunModelCase(options.directory, c, setup)
                                                : RunAttentionCase(options.directory, c, setup);
  if (error.ok()) return {c.name, error->Passes() ? "pass" : "fail", c.is_model, *error, ""};
  const bool refused = absl::IsUnimplemented(error.status());
  return {
      c.name, refused ? "refused" : "fail", c.is_model, {}, std::string(error.status().message())};
}

void PrintRow(const Outcome& o, const std::string& backend) {
  if (o.message.empty()) {
    std::printf("%-24s %-10s %11.3g %11.3g  %s\n", o.name.c_str(), backend.c_str(), o.error.worst,
                o.error.tolerance, o.result.c_str());
  } else {
    std::printf("%-24s %-10s %11s %11s  %s: %s\n", o.name.c_str(), backend.c_str(), "-", "-",
                o.result.c_str(), o.message.c_str());
  }
  std::fflush(stdout);
}

nlohmann::json AsJson(const Outcome& o, const std::string& backend) {
  nlohmann::json row{{"case", o.name}, {"backend", backend}, {"result", o.result}};
  if (o.message.empty()) {
    row["worst_error"] = o.error.worst;  // null for NaN
    row["tolerance"] = o.error.tolerance;
    if (o.is_model) row["worst_logprob_error"] = o.error.worst_logprob;
  } else {
    row["message"] = o.message;
  }
  return row;
}

int Check(const Options& options) {
  const std::optional<DType> kv_cache_dtype = ParseDType(options.kv);
  absl::StatusOr<std::unique_ptr<Backend>> backend = OpenTestDevice(options.backend);
  absl::StatusOr<std::vector<GoldenCase>> cases = ReadGoldenIndex(options.directory);
  if (!backend.ok() || !cases.ok()) {
    const absl::Status status = backend.ok() ? cases.status() : backend.status();
    std::fprintf(stderr, "golden_check: %s\n", std::string(status.message()).c_str());
    return kExitUsage;
  }
  const GoldenSetup setup{
      .backend = backend->get(), .kv_cache_dtype = *kv_cache_dtype, .page_size = options.page_size};

  int num_pass = 0, num_fail = 0, num_refused = 0;
  nlohmann::json rows = nlohmann::json::array();
  if (!options.json) {
    std::printf("%-24s %-10s %11s %11s  %s\n", "case", "backend", "worst error", "tolerance",
                "result");
  }
  for (const GoldenCase& c : *cases) {
    if (c.name.find(options.filter) == std::string::npos) continue;
    const Outcome outcome = RunCase(options, c, setup);
    num_pass += outcome.result == "pass";
    num_fail += outcome.result == "fail";
    num_refused += outcome.result == "refused";
    if (options.json) {
      rows.push_back(AsJson(outcome, options.backend.name));
    } else {
      PrintRow(outcome, options.backend.name);
    }
  }
  if (options.json) {
    const nlohmann::json report{{"cases", std::move(rows)},
                                {"passed", num_pass},
                                {"failed", num_fail},
                                {"refused", num_refused}};
    std::printf("%s\n", report.dump(1).c_str());
  } else {
    std::printf("%d passed, %d failed, %d refused (%s, %s K/V, pages of %d)\n", num_pass, num_fail,
                num_refused, (*backend)->Describe().c_str(), options.kv.c_str(), options.page_size);
  }
  if (num_pass + num_fail + num_refused == 0) {
    std::fprintf(stderr, "golden_check: no case in %s matches \"%s\"\n", options.directory.c_str(),
                 options.filter.c_str());
    return kExitUsage;
  }
  return num_fail == 0 ? kExitPass : kExitFail;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Runs every case of DIR/index.json and compares the result with the golden one.\n"
      "Exit code: 0 no case failed, 1 a case failed, 2 usage. A kind that the backend does not\n"
      "compute is printed as refused and does not fail the run.");
  app.add_option("DIR", options.directory, "folder with index.json")->required();
  app.add_option(
         "--backend", options.backend.name,
         "reference, cpu, cuda, cuda:N, or cuda-emulated (the GPU kernels, emulated on the host)")
      ->capture_default_str();
  app.add_option("--kv", options.kv, "element type of the K/V pages")
      ->check(CLI::IsMember({"fp32", "fp16", "int8", "fx16"}))
      ->capture_default_str();
  app.add_option("--page-size", options.page_size, "tokens per page")
      ->check(CLI::IsMember({16, 32, 64, 128, 256}))
      ->capture_default_str();
  app.add_option("--threads", options.backend.num_threads, "0: one per core")
      ->capture_default_str();
  app.add_option("--instruction-set", options.backend.instruction_set,
                 "instruction set of the cpu backend");
  app.add_flag("--batch-invariant", options.backend.batch_invariant, "cuda without cuBLASLt");
  app.add_option("--filter", options.filter, "run only the cases whose name contains this");
  app.add_flag("--json", options.json, "print one JSON object instead of the table");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitPass : kExitUsage;
  }
  return Check(options);
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) { return lssar::Main(argc, argv); }

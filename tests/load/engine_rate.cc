// Throughput of the engine without gRPC: the requests of `lssar bench`, in a closed loop, submitted
// to an engine in this process. Prints output tokens per second, the process's CPU time per token
// (it does not depend on what else the machine does) and the tokens of an engine step.
#include <time.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "clients/cli/bench_workload.h"
#include "server/api/parse_request.h"
#include "server/config/options.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

struct Options {
  ModelOptions model;
  std::string input = "fixed:256";
  std::string output = "fixed:64";
  int concurrency = 16;
  int64_t num_requests = 64;
};

// Bounds the number of requests in flight.
class ConcurrencyLimit {
 public:
  explicit ConcurrencyLimit(int count) : num_left_(count) {}

  void Acquire() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_left_ > 0; });
    --num_left_;
  }

  void Release() {
    const std::lock_guard lock(mutex_);
    ++num_left_;
    changed_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_left_;
};

class CountingSink final : public OutputSink {
 public:
  CountingSink(std::shared_ptr<ConcurrencyLimit> limit,
               std::shared_ptr<std::atomic<int64_t>> num_tokens)
      : limit_(std::move(limit)), num_tokens_(std::move(num_tokens)) {}

  void OnAdmitted(const RequestStats&) override {}
  void OnResult(EngineResult result) override {
    *num_tokens_ += std::ssize(std::get<GenerateDelta>(result).tokens);
  }
  void OnDone(const absl::Status& status, const RequestStats&) override {
    LSSAR_CHECK(status.ok());
    limit_->Release();
  }

 private:
  const std::shared_ptr<ConcurrencyLimit> limit_;
  const std::shared_ptr<std::atomic<int64_t>> num_tokens_;
};

v1::GetInfoReply DescribeModel(const LoadedModel& model) {
  v1::GetInfoReply served;
  served.set_max_model_len(model.MaxModelLen());
  const ModelConfig& config = model.GetCheckpoint().config;
  served.set_vocab_size(config.vocab_size);
  if (config.bos_id) served.set_bos_id(*config.bos_id);
  if (config.eos_id) served.set_eos_id(*config.eos_id);
  return served;
}

absl::Status Submit(const LoadedModel& model, const v1::GenerateRequest& message,
                    std::shared_ptr<OutputSink> sink) {
  auto call = ParseGenerate(message, ContextOf(model));
  if (!call.ok()) return call.status();
  return model.GetEngine().Submit(std::move(call->request), std::move(sink)).status();
}

struct Rate {
  double tokens_per_s = 0;
  double cpu_us_per_token = 0;
  double tokens_per_step = 0;
};

double CpuSeconds() {
  timespec time = {};
  LSSAR_CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
  return double(time.tv_sec) + double(time.tv_nsec) * 1e-9;
}

// The rate over requests [first_idx, first_idx + num_requests) of the workload.
absl::StatusOr<Rate> MeasureRate(const LoadedModel& model, const cli::BenchWorkload& workload,
                                 int64_t first_idx, const Options& options) {
  // Each finished request releases the limit, so all are done when the whole limit can be acquired.
  const auto limit = std::make_shared<ConcurrencyLimit>(options.concurrency);
  const auto num_tokens = std::make_shared<std::atomic<int64_t>>(0);
  const auto begin = std::chrono::steady_clock::now();
  const double cpu_begin = CpuSeconds();
  const int64_t first_step = model.GetEngine().Stats().num_steps;
  for (int64_t idx = first_idx; idx < first_idx + options.num_requests; ++idx) {
    limit->Acquire();
    RETURN_IF_ERROR(
        Submit(model, workload.Request(idx), std::make_shared<CountingSink>(limit, num_tokens)));
  }
  for (int i = 0; i < options.concurrency; ++i) limit->Acquire();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const auto count = double(num_tokens->load());
  const int64_t num_steps = model.GetEngine().Stats().num_steps - first_step;
  return Rate{.tokens_per_s = count / elapsed.count(),
              .cpu_us_per_token = (CpuSeconds() - cpu_begin) * 1e6 / count,
              .tokens_per_step = count / double(num_steps)};
}

absl::Status Run(const Options& options) {
  ASSIGN_OR_RETURN(auto input, cli::LengthDistribution::Parse("--random-input-len", options.input));
  ASSIGN_OR_RETURN(auto output,
                   cli::LengthDistribution::Parse("--random-output-len", options.output));
  ASSIGN_OR_RETURN(const auto model, LoadedModel::Load(options.model));
  ASSIGN_OR_RETURN(const auto workload, cli::BenchWorkload::Make({.input = std::move(input),
                                                                  .output = std::move(output)},
                                                                 DescribeModel(*model)));

  // A first run that is not measured: the first touch of the pages costs as much as the work.
  RETURN_IF_ERROR(MeasureRate(*model, workload, options.num_requests, options).status());
  ASSIGN_OR_RETURN(const Rate rate, MeasureRate(*model, workload, 0, options));
  std::printf(
      "{\"output_tokens_per_s\": %.1f, \"cpu_us_per_token\": %.2f, \"tokens_per_step\": %.3f}\n",
      rate.tokens_per_s, rate.cpu_us_per_token, rate.tokens_per_step);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Options options;
  CLI::App app("Throughput of the engine without gRPC.");
  lssar::AddModelFlags(app, options.model);
  app.add_option("--random-input-len", options.input, "as of lssar bench");
  app.add_option("--random-output-len", options.output, "as of lssar bench");
  app.add_option("--max-concurrency", options.concurrency)->check(CLI::Range(1, 1024));
  app.add_option("--num-prompts", options.num_requests)->check(CLI::Range(1, 1000000));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lssar::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "engine_rate: %s\n", std::string(status.message()).c_str());
  return 1;
}

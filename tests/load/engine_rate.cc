// What the engine does without gRPC: the requests that `lssar bench` sends, in a closed loop, given
// to the engine in this process. Prints the output tokens of a second.
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
#include "clients/cli/bench_lengths.h"
#include "clients/cli/bench_workload.h"
#include "kernels/check.h"
#include "server/options.h"
#include "server/parse_request.h"
#include "server/served_model.h"

namespace lssar {
namespace {

struct Options {
  ModelOptions model;
  std::string input = "fixed:256";
  std::string output = "fixed:64";
  int concurrency = 16;
  int64_t num_requests = 64;
};

// Requests under way.
class Places {
 public:
  explicit Places(int count) : num_left_(count) {}

  void Take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_left_ > 0; });
    --num_left_;
  }

  void GiveBack() {
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
  CountingSink(std::shared_ptr<Places> places, std::shared_ptr<std::atomic<int64_t>> num_tokens)
      : places_(std::move(places)), num_tokens_(std::move(num_tokens)) {}

  void OnAdmitted(const RequestStats&) override {}
  void OnTokens(GenerateDelta delta) override {
    *num_tokens_ += static_cast<int64_t>(delta.tokens.size());
  }
  void OnDone(const absl::Status& status, const RequestStats&) override {
    LSSAR_CHECK(status.ok());
    places_->GiveBack();
  }

 private:
  const std::shared_ptr<Places> places_;
  const std::shared_ptr<std::atomic<int64_t>> num_tokens_;
};

v1::GetInfoReply DescribeModel(const ServedModel& model) {
  v1::GetInfoReply served;
  served.set_max_model_len(model.MaxModelLen());
  const ModelConfig& config = model.GetCheckpoint().config;
  served.set_vocab_size(config.vocab_size);
  if (config.bos_id) served.set_bos_id(*config.bos_id);
  if (config.eos_id) served.set_eos_id(*config.eos_id);
  return served;
}

absl::Status Submit(const ServedModel& model, const v1::GenerateRequest& message,
                    std::shared_ptr<OutputSink> sink) {
  auto call = ParseGenerate(message, ContextOf(model));
  if (!call.ok()) return call.status();
  return model.GetEngine().Submit(std::move(call->request), std::move(sink)).status();
}

// Requests [first_idx, first_idx + num_requests) of the workload. -> output tokens a second
absl::StatusOr<double> MeasureRate(const ServedModel& model, const cli::BenchWorkload& workload,
                                   int64_t first_idx, const Options& options) {
  // A request's end gives its place back, so that all are done when every place can be taken.
  const auto places = std::make_shared<Places>(options.concurrency);
  const auto num_tokens = std::make_shared<std::atomic<int64_t>>(0);
  const auto begin = std::chrono::steady_clock::now();
  for (int64_t idx = first_idx; idx < first_idx + options.num_requests; ++idx) {
    places->Take();
    const absl::Status status =
        Submit(model, workload.Request(idx), std::make_shared<CountingSink>(places, num_tokens));
    if (!status.ok()) return status;
  }
  for (int i = 0; i < options.concurrency; ++i) places->Take();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(num_tokens->load()) / elapsed.count();
}

absl::Status Run(const Options& options) {
  auto input = cli::LengthDistribution::Parse("--input", options.input);
  if (!input.ok()) return input.status();
  auto output = cli::LengthDistribution::Parse("--output", options.output);
  if (!output.ok()) return output.status();
  const auto model = ServedModel::Load(options.model);
  if (!model.ok()) return model.status();
  const auto workload = cli::BenchWorkload::Make(
      {.input = *std::move(input), .output = *std::move(output)}, DescribeModel(**model));
  if (!workload.ok()) return workload.status();

  // Once before it counts: the first touch of the pages costs as much as the work.
  absl::StatusOr<double> rate = MeasureRate(**model, *workload, options.num_requests, options);
  if (rate.ok()) rate = MeasureRate(**model, *workload, 0, options);
  if (!rate.ok()) return rate.status();
  std::printf("{\"output_tokens_per_s\": %.1f}\n", *rate);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Options options;
  CLI::App app("Throughput of the engine without gRPC.");
  lssar::AddModelFlags(app, options.model);
  app.add_option("--input", options.input, "lengths, as of lssar bench");
  app.add_option("--output", options.output, "lengths, as of lssar bench");
  app.add_option("--concurrency", options.concurrency)->check(CLI::Range(1, 1024));
  app.add_option("--requests", options.num_requests)->check(CLI::Range(1, 1000000));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lssar::Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "engine_rate: %s\n", std::string(status.message()).c_str());
  return 1;
}

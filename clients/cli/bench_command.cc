// `lssar bench`: latencies and throughput of a server under load.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "clients/cli/bench_load.h"
#include "clients/cli/bench_plot.h"
#include "clients/cli/bench_report.h"
#include "clients/cli/bench_statistics.h"
#include "clients/cli/bench_workload.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/read_text.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::microseconds;

constexpr int kMostConcurrency = 4096;
constexpr double kMostRate = 1e5;

absl::StatusOr<std::vector<double>> ParseRates(const std::string& list) {
  std::vector<double> rates;
  for (const std::string& entry : std::vector<std::string>(absl::StrSplit(list, ','))) {
    double rate = 0;
    if (!absl::SimpleAtod(entry, &rate) || !(rate > 0 && rate <= kMostRate)) {
      return absl::InvalidArgumentError(
          StrCat("--rates: '", entry, "' is not a number over 0 and up to ", kMostRate));
    }
    rates.push_back(rate);
  }
  return rates;
}

// "10s", "1m30s", "250ms".
absl::StatusOr<microseconds> ParseTime(absl::string_view flag, const std::string& text,
                                       absl::Duration least) {
  absl::Duration time;
  if (!absl::ParseDuration(text, &time) || time < least || time > absl::Hours(24)) {
    return absl::InvalidArgumentError(StrCat(flag, ": '", text, "' is not a time from ",
                                             absl::FormatDuration(least),
                                             " to 24h, as in 10s or 250ms"));
  }
  return microseconds(absl::ToInt64Microseconds(time));
}

class BenchCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    AddLoadFlags(app);
    AddRequestFlags(app);
    app->add_option("--goodput", targets_text_,
                    "count requests within these: ttft:TIME, tpot:TIME, e2e:TIME [default: none]")
        ->option_text("LIST")
        ->group("Output");
    json_option_ =
        app->add_option("--json", json_path_, "JSON to a file; without a name or -: stdout")
            ->option_text("[FILE]")
            ->expected(0, 1)
            ->group("Output");
    app->add_option("--plot", plot_path_, "a picture of the latencies against the load, as SVG")
        ->option_text("FILE")
        ->group("Output");
    AddConnectionFlags(app, &connection_);
    app->footer(
        "TTFT: to the first token; TPOT: the mean time of the others; ITL: between tokens; E2E: to "
        "the\n"
        "last token. At --rates they count from when a request was due, not from when it could be "
        "sent.\n\n"
        "Examples:\n"
        "  lssar bench --model models/zoo/lssar-6m --concurrency 1,4,16 --duration 5s\n"
        "  lssar bench --rates 2,8,32 --input lognormal:256,0.8 --goodput ttft:200ms --plot "
        "load.svg");
  }

  absl::Status Run() override {
    absl::Status status = ParseFlags();
    if (!status.ok()) return status;
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    v1::Inference::StubInterface* stub = (*connection)->Stub();
    const auto served = DescribeServer(stub);
    if (!served.ok()) return served.status();
    const auto workload = BenchWorkload::Make(*options_, *served);
    if (!workload.ok()) return workload.status();
    status = RunPoints(stub, *workload);
    if (!status.ok()) return status;
    return Show(*served);
  }

 private:
  void AddLoadFlags(CLI::App* app) {
    const auto add = [app](const char* name, auto& value, const char* text, const char* about) {
      return app->add_option(name, value, about)->option_text(text)->group("Load");
    };
    add("--concurrency", concurrency_, "LIST",
        "closed loop: requests under way at all times [1 to 4096; default 1,4,16]");
    add("--rates", rates_, "LIST",
        "open loop: arrivals a second, at random (Poisson) [over 0 to 100000; default: closed "
        "loop]")
        ->excludes("--concurrency");
    add("--duration", duration_, "TIME", "of each load [over 0 to 24h; default 10s]");
    add("--requests", num_requests_, "N", "of each load, instead of a duration [1 to 10000000]")
        ->check(CLI::Range(int64_t{1}, int64_t{10000000}))
        ->excludes("--duration");
    add("--warmup", warmup_, "TIME", "before each load: sent, not counted [0 to 24h; default 1s]");
    add("--deadline", deadline_, "TIME", "of each request [over 0 to 24h; default: none]");
    add("--seed", seed_, "N", "same seed, same requests and arrivals [0 to 2^64-1; default 1]");
  }

  void AddRequestFlags(CLI::App* app) {
    const auto add = [app](const char* name, auto& value, const char* text, const char* about) {
      return app->add_option(name, value, about)->option_text(text)->group("Requests");
    };
    add("--input", input_, "LENGTHS",
        "prompt: fixed:N, uniform:A,B or lognormal:MEAN,SIGMA [tokens, random; default fixed:256]");
    add("--output", output_, "LENGTHS", "text, in the same words [tokens; default fixed:64]");
    add("--shared-prefix", num_shared_tokens_, "N",
        "the same tokens before the prompts [0 to 1048576; default 0]")
        ->check(CLI::Range(0, 1 << 20));
    add("--shared-fraction", shared_fraction_, "X",
        "share of the prompts that begin with them [0 to 1; default 1]")
        ->check(CLI::Range(0.0, 1.0));
    add("--prompts", prompts_path_, "FILE",
        "JSON lines {\"prompt\": text, \"max_tokens\": n} instead of random tokens; - is stdin")
        ->excludes("--input")
        ->excludes("--shared-prefix");
    add("--temperature", temperature_, "X", "0 takes the best token [0 to 100; default 0]");
    add("--stream-interval", stream_interval_, "N",
        "engine steps whose tokens come in one message [1 to 1024; default 1]");
    app->add_flag("--stop-at-eos", stop_at_eos_,
                  "end texts where the model does [default: all have their full length]")
        ->group("Requests");
    app->add_flag("--no-prefix-cache", no_prefix_cache_, "compute every prompt in full")
        ->group("Requests");
  }

  absl::Status ParseFlags() {
    absl::Status status = ParseLoads();
    if (!status.ok()) return status;
    status = ParseTimes();
    if (!status.ok()) return status;
    const auto targets = ParseLatencyTargets("--goodput", targets_text_);
    if (!targets.ok()) return targets.status();
    targets_ = *targets;
    report_.has_targets = targets_.Any();
    return ParseRequests();
  }

  absl::Status ParseLoads() {
    report_.is_open_loop = !rates_.empty();
    if (report_.is_open_loop) {
      auto rates = ParseRates(rates_);
      if (!rates.ok()) return rates.status();
      loads_ = *std::move(rates);
      return absl::OkStatus();
    }
    const auto counts = ParseCounts("--concurrency", concurrency_, 1, kMostConcurrency);
    if (!counts.ok()) return counts.status();
    loads_.assign(counts->begin(), counts->end());
    return absl::OkStatus();
  }

  absl::Status ParseTimes() {
    const auto duration = ParseTime("--duration", duration_, absl::Microseconds(1));
    if (!duration.ok()) return duration.status();
    const auto warmup = ParseTime("--warmup", warmup_, absl::ZeroDuration());
    if (!warmup.ok()) return warmup.status();
    plan_.duration = *duration;
    plan_.warmup = *warmup;
    plan_.num_requests = num_requests_;
    plan_.seed = seed_;
    if (deadline_.empty()) return absl::OkStatus();
    const auto deadline = ParseTime("--deadline", deadline_, absl::Microseconds(1));
    if (!deadline.ok()) return deadline.status();
    plan_.deadline = *deadline;
    return absl::OkStatus();
  }

  absl::Status ParseRequests() {
    auto input = LengthDistribution::Parse("--input", input_);
    if (!input.ok()) return input.status();
    auto output = LengthDistribution::Parse("--output", output_);
    if (!output.ok()) return output.status();
    options_.emplace(WorkloadOptions{.input = *std::move(input),
                                     .output = *std::move(output),
                                     .num_shared_tokens = num_shared_tokens_,
                                     .shared_fraction = shared_fraction_,
                                     .prompts = {},
                                     .ignore_eos = !stop_at_eos_,
                                     .temperature = temperature_,
                                     .use_prefix_cache = !no_prefix_cache_,
                                     .stream_interval = stream_interval_,
                                     .seed = seed_});
    if (prompts_path_.empty()) return absl::OkStatus();
    const auto lines = ReadText(prompts_path_);
    if (!lines.ok()) return lines.status();
    auto prompts = ParseBenchPrompts(*lines);
    if (!prompts.ok()) return prompts.status();
    options_->prompts = *std::move(prompts);
    return absl::OkStatus();
  }

  absl::Status RunPoints(v1::Inference::StubInterface* stub, const BenchWorkload& workload) {
    Interrupt interrupt;
    // Every load asks for the same requests and finds none of another's pages, nor of another
    // run's, in the prefix cache.
    const std::string salt = StrCat("bench-", std::random_device()(), "-");
    for (const double load : loads_) {
      plan_.cache_salt = StrCat(salt, report_.points.size());
      if (report_.is_open_loop) {
        plan_.rate = load;
      } else {
        plan_.concurrency = static_cast<int>(load);
      }
      const auto records = RunPoint(stub, workload, load, &interrupt);
      if (!records.ok()) return records.status();
      report_.points.push_back({.load = load, .summary = Summarise(*records, targets_)});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<BenchRecord>> RunPoint(v1::Inference::StubInterface* stub,
                                                    const BenchWorkload& workload, double load,
                                                    Interrupt* interrupt) {
    constexpr int kBarUnits = 1000;
    ProgressBar bar(absl::StrFormat("%s %g", LoadName(report_), load), kBarUnits);
    const auto begin = std::chrono::steady_clock::now();
    int num_shown = 0;
    return RunLoad(stub, workload, plan_, interrupt, [&](const LoadProgress& progress) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      const int num_units = static_cast<int>(progress.share * kBarUnits);
      bar.Advance(num_units - num_shown,
                  absl::StrFormat("%d done, %d failed, %d under way, %.0f tokens/s",
                                  progress.num_ended, progress.num_failed, progress.num_running,
                                  static_cast<double>(progress.num_tokens) / elapsed.count()));
      num_shown = num_units;
    });
  }

  Json ToJson(const v1::GetInfoReply& served) const {
    Json json = {{"model_name", served.model_name()},
                 {"checkpoint_hash", served.checkpoint_hash()},
                 {"backend", served.backend()},
                 {"version", served.version()},
                 {"seed", seed_},
                 {"warmup_s", static_cast<double>(plan_.warmup.count()) / 1e6},
                 {"output", options_->output.Text()}};
    if (prompts_path_.empty()) {
      json["input"] = options_->input.Text();
      json["shared_prefix"] = num_shared_tokens_;
      json["shared_fraction"] = shared_fraction_;
    } else {
      json["prompts"] = prompts_path_;
    }
    json["goodput"] = targets_text_;
    json["points"] = PointsToJson(report_);
    return json;
  }

  absl::Status Show(const v1::GetInfoReply& served) const {
    const bool is_json_wanted = json_option_->count() > 0;
    if (is_json_wanted && (json_path_.empty() || json_path_ == "-")) {
      PrintJson(ToJson(served));
    } else {
      std::printf("%s\n%s", RenderReport(report_).c_str(),
                  RenderBars(report_, StdoutTerminal()).c_str());
    }
    const bool has_completed = std::ranges::any_of(
        report_.points, [](const BenchPoint& point) { return point.summary.num_completed > 0; });
    if (is_json_wanted && !json_path_.empty() && json_path_ != "-") {
      absl::Status status = WriteText(json_path_, StrCat(ToJson(served).dump(2), "\n"));
      if (!status.ok()) return status;
    }
    if (!plot_path_.empty() && has_completed) {
      absl::Status status = WriteText(plot_path_, RenderSvg(report_));
      if (!status.ok()) return status;
    }
    if (!has_completed) return absl::UnavailableError("no request completed");
    return absl::OkStatus();
  }

  std::string concurrency_ = "1,4,16";
  std::string rates_;
  std::string duration_ = "10s";
  std::optional<int64_t> num_requests_;
  std::string warmup_ = "1s";
  std::string deadline_;
  uint64_t seed_ = 1;
  std::string input_ = "fixed:256";
  std::string output_ = "fixed:64";
  std::string prompts_path_;
  int num_shared_tokens_ = 0;
  double shared_fraction_ = 1;
  float temperature_ = 0;
  int stream_interval_ = 1;
  bool stop_at_eos_ = false;
  bool no_prefix_cache_ = false;
  std::string targets_text_;
  CLI::Option* json_option_ = nullptr;
  std::string json_path_;
  std::string plot_path_;
  ConnectionFlags connection_;

  std::vector<double> loads_;
  LatencyTargets targets_;
  LoadPlan plan_;
  std::optional<WorkloadOptions> options_;
  BenchReport report_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchCommand() { return std::make_unique<BenchCommand>(); }

}  // namespace lssar::cli

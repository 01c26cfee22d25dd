// `lssar bench`: latency and throughput of a server under load, as `vllm bench serve`.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/bench_load.h"
#include "clients/cli/bench_report.h"
#include "clients/cli/bench_statistics.h"
#include "clients/cli/bench_workload.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/figure.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::microseconds;

constexpr int kMaxConcurrency = 4096;
constexpr double kMaxRate = 1e5;

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
  void AddFlags(ArgumentParser* parser) override {
    AddLoadFlags(parser);
    AddRequestFlags(parser);
    parser
        ->Add("--goodput", targets_text_,
              "targets of good requests: ttft:TIME, tpot:TIME, e2e:TIME [default: none]")
        .ValueName("LIST")
        .Group("Output");
    json_option_ =
        parser->Add("--json", json_path_, "write JSON to a file; without FILE or with -: to stdout")
            .ValueName("[FILE]")
            .OptionalValue()
            .Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "TTFT: time to the first token; TPOT: mean time per later token; ITL: time between "
        "tokens;\n"
        "E2E: time to the last token. With --request-rate, times count from when a request was "
        "due.\n\n"
        "Examples:\n"
        "  lssar bench --model models/zoo/lssar-6m --max-concurrency 1,4,16 --duration 5s\n"
        "  lssar bench --request-rate 2,8,32 --random-input-len lognormal:256,0.8 --goodput "
        "ttft:200ms --figure load.svg");
  }

  absl::Status Run() override {
    RETURN_IF_ERROR(ParseFlags());
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("bench", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* stub = connection->Stub();
    ASSIGN_OR_RETURN(const auto served, DescribeServer(stub));
    ASSIGN_OR_RETURN(const auto workload, BenchWorkload::Make(*options_, served));
    RETURN_IF_ERROR(RunPoints(stub, workload));
    return Show(served, &figure);
  }

 private:
  void AddLoadFlags(ArgumentParser* parser) {
    const auto add = [parser](const char* name, auto& value, const char* text, const char* about) {
      return parser->Add(name, value, about).ValueName(text).Group("Load");
    };
    add("--max-concurrency", concurrency_, "LIST",
        "closed loop: requests in flight at all times [1 to 4096; default 1,4,16]");
    add("--request-rate", rates_, "LIST",
        "open loop: Poisson arrivals per second [over 0 to 100000; default: closed loop]")
        .Excludes("--max-concurrency");
    add("--duration", duration_, "TIME", "time of each load [over 0 to 24h; default 10s]");
    add("--num-prompts", num_requests_, "N",
        "requests of each load, instead of --duration [1 to 10000000]")
        .Range(int64_t{1}, int64_t{10000000})
        .Excludes("--duration");
    add("--warmup", warmup_, "TIME",
        "time before each load whose requests are not counted [0 to 24h; default 1s]");
    add("--deadline", deadline_, "TIME", "for each request [over 0 to 24h; default: none]");
    add("--seed", seed_, "N",
        "the same seed gives the same requests and arrivals [0 to 2^64-1; default 1]");
  }

  void AddRequestFlags(ArgumentParser* parser) {
    const auto add = [parser](const char* name, auto& value, const char* text, const char* about) {
      return parser->Add(name, value, about).ValueName(text).Group("Requests");
    };
    add("--random-input-len", input_, "LENGTHS",
        "random tokens of the prompt: N, uniform:A,B or lognormal:MEAN,SIGMA [default 256]");
    add("--random-output-len", output_, "LENGTHS", "tokens of the output, likewise [default 64]");
    add("--random-prefix-len", num_prefix_tokens_, "N",
        "tokens of a prefix that prompts share [0 to 1048576; default 0]")
        .Range(0, kMaxLength);
    add("--prefix-fraction", prefix_fraction_, "X",
        "share of the prompts that have the prefix [0 to 1; default 1]")
        .Range(0.0, 1.0);
    add("--dataset-path", prompts_path_, "FILE",
        "JSON lines {\"prompt\": text, \"max_tokens\": n} instead of random tokens; - is standard "
        "input")
        .Excludes("--random-input-len")
        .Excludes("--random-prefix-len");
    add("--temperature", temperature_, "X", "0 is greedy [0 to 100; default 0]");
    add("--stream-interval", stream_interval_, "N",
        "engine steps per message [1 to 1024; default 1]");
    parser
        ->AddSwitch("--no-ignore-eos", no_ignore_eos_,
                    "end outputs at EOS [default: every output has its full length]")
        .Group("Requests");
    parser->AddSwitch("--no-prefix-caching", no_prefix_caching_, "compute every prompt in full")
        .Group("Requests");
  }

  absl::Status ParseFlags() {
    RETURN_IF_ERROR(ParseLoads());
    RETURN_IF_ERROR(ParseTimes());
    ASSIGN_OR_RETURN(const auto targets, ParseLatencyTargets("--goodput", targets_text_));
    targets_ = targets;
    report_.has_targets = targets_.Any();
    return ParseRequests();
  }

  absl::Status ParseLoads() {
    report_.is_open_loop = !rates_.empty();
    if (report_.is_open_loop) {
      ASSIGN_OR_RETURN(auto rates, ParseNumbers(
                                       "--request-rate", rates_,
                                       [](double rate) { return rate > 0 && rate <= kMaxRate; },
                                       StrCat("not a number over 0 and up to ", kMaxRate)));
      loads_ = std::move(rates);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(const auto counts,
                     ParseCounts("--max-concurrency", concurrency_, 1, kMaxConcurrency));
    loads_.assign(counts.begin(), counts.end());
    return absl::OkStatus();
  }

  absl::Status ParseTimes() {
    ASSIGN_OR_RETURN(const auto duration,
                     ParseTime("--duration", duration_, absl::Microseconds(1)));
    ASSIGN_OR_RETURN(const auto warmup, ParseTime("--warmup", warmup_, absl::ZeroDuration()));
    plan_.duration = duration;
    plan_.warmup = warmup;
    plan_.num_requests = num_requests_;
    plan_.seed = seed_;
    if (deadline_.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto deadline,
                     ParseTime("--deadline", deadline_, absl::Microseconds(1)));
    plan_.deadline = deadline;
    return absl::OkStatus();
  }

  absl::Status ParseRequests() {
    ASSIGN_OR_RETURN(auto input, LengthDistribution::Parse("--random-input-len", input_));
    ASSIGN_OR_RETURN(auto output, LengthDistribution::Parse("--random-output-len", output_));
    options_.emplace(WorkloadOptions{.input = std::move(input),
                                     .output = std::move(output),
                                     .num_prefix_tokens = num_prefix_tokens_,
                                     .prefix_fraction = prefix_fraction_,
                                     .prompts = {},
                                     .ignore_eos = !no_ignore_eos_,
                                     .temperature = temperature_,
                                     .use_prefix_cache = !no_prefix_caching_,
                                     .stream_interval = stream_interval_,
                                     .seed = seed_});
    if (prompts_path_.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto lines, ReadText(prompts_path_));
    ASSIGN_OR_RETURN(auto prompts, ParseBenchPrompts(lines));
    options_->prompts = std::move(prompts);
    return absl::OkStatus();
  }

  absl::Status RunPoints(Service* stub, const BenchWorkload& workload) {
    Interrupt interrupt;
    // All loads send the same requests; a salt per load and run prevents shared cached pages.
    const std::string salt = StrCat("bench-", std::random_device()(), "-");
    for (const double load : loads_) {
      plan_.cache_salt = StrCat(salt, report_.points.size());
      if (report_.is_open_loop) {
        plan_.rate = load;
      } else {
        plan_.concurrency = int(load);
      }
      ASSIGN_OR_RETURN(const auto records, RunPoint(stub, workload, load, &interrupt));
      report_.points.push_back({.load = load, .summary = Summarise(records, targets_)});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<BenchRecord>> RunPoint(Service* stub, const BenchWorkload& workload,
                                                    double load, Interrupt* interrupt) {
    constexpr int kBarUnits = 1000;
    ProgressBar bar(absl::StrFormat("%s %g", LoadName(report_), load), kBarUnits);
    const auto begin = std::chrono::steady_clock::now();
    int num_shown = 0;
    return RunLoad(stub, workload, plan_, interrupt, [&](const LoadProgress& progress) {
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      const int num_units = int(progress.share * kBarUnits);
      bar.Advance(num_units - num_shown,
                  absl::StrFormat("%d done, %d failed, %d in flight, %.0f tokens/s",
                                  progress.num_ended, progress.num_failed, progress.num_running,
                                  double(progress.num_tokens) / elapsed.count()));
      num_shown = num_units;
    });
  }

  Json ToJson(const v1::GetInfoReply& served) const {
    Json json = {{"model_name", served.model_name()},
                 {"checkpoint_hash", served.checkpoint_hash()},
                 {"backend", served.backend()},
                 {"version", served.version()},
                 {"seed", seed_},
                 {"warmup_s", double(plan_.warmup.count()) / 1e6},
                 {"output", options_->output.Text()}};
    if (prompts_path_.empty()) {
      json["input"] = options_->input.Text();
      json["shared_prefix"] = num_prefix_tokens_;
      json["shared_fraction"] = prefix_fraction_;
    } else {
      json["prompts"] = prompts_path_;
    }
    json["goodput"] = targets_text_;
    json["points"] = PointsToJson(report_);
    return json;
  }

  absl::Status Show(const v1::GetInfoReply& served, Figure* figure) const {
    const bool is_json_wanted = json_option_.IsGiven();
    if (is_json_wanted && (json_path_.empty() || json_path_ == "-")) {
      PrintJson(ToJson(served));
    } else {
      std::printf("%s\n%s", RenderReport(report_).c_str(),
                  RenderBars(report_, StdoutTerminal()).c_str());
    }
    const bool has_completed = std::ranges::any_of(
        report_.points, [](const BenchPoint& point) { return point.summary.num_completed > 0; });
    if (is_json_wanted && !json_path_.empty() && json_path_ != "-") {
      RETURN_IF_ERROR(WriteText(json_path_, StrCat(ToJson(served).dump(2), "\n")));
    }
    if (!has_completed) return absl::UnavailableError("no request completed");
    return figure->Draw([&] { return ToJson(served); });
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
  int num_prefix_tokens_ = 0;
  double prefix_fraction_ = 1;
  float temperature_ = 0;
  int stream_interval_ = 1;
  bool no_ignore_eos_ = false;
  bool no_prefix_caching_ = false;
  std::string targets_text_;
  Argument json_option_{nullptr};
  std::string json_path_;
  std::string figure_path_;
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

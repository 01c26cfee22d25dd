// Times a whole model through the engine: decode by batch and depth, prefill, and the host's share
// of a step. On the CPU also the shares of what its threads can read and compute at most. Prints
// one JSON object. peers_model.py times the same work in PyTorch.
//
//   model_bench --device cuda --work-folder OUT      # the 124M shape, random weights, made there
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/usable_cpus.h"
#include "models/checkpoint.h"
#include "nlohmann/json.hpp"
#include "runtime/engine.h"
#include "tests/bench/pool_ceilings.h"
#include "tests/bench/random_checkpoint.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSteps = 64;  // of each sequence in a decode figure, as in peers_model.py
constexpr int kMostSteps = 64 * kSteps;

struct Setting {
  std::string device = "cuda";
  int num_threads = 0;
  std::vector<int> cpus;
  bool batch_invariant = false;
  std::string work_folder = ".";
  bench::ModelShape shape;
  std::vector<int> depths = {0, 16384};
  int batch = 64;
  int batch_depth = 1024;
  int prompt = 1024;
  int num_repeats = 10;
};

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

class Stream final : public OutputSink {
 public:
  void OnAdmitted(const RequestStats&) override {}
  void OnResult(EngineResult result) override {
    const int num_new = int(std::get<GenerateDelta>(result).tokens.size());
    num_tokens_ += num_new;
    last_token_at_ = Clock::now();
    if (num_tokens_ == num_new) first_token_at_ = Clock::now();
  }
  void OnDone(const absl::Status& status, const RequestStats&) override {
    LSSAR_CHECK(status.ok());
    is_done_ = true;
    is_done_.notify_all();
  }

  int NumTokens() const { return num_tokens_; }
  void Wait() const { is_done_.wait(false); }
  // Valid after the request has ended.
  Clock::time_point FirstTokenAt() const { return first_token_at_; }
  double SecondsOfRest() const { return Seconds(last_token_at_ - first_token_at_); }

 private:
  std::atomic<int> num_tokens_ = 0;
  std::atomic<bool> is_done_ = false;
  Clock::time_point first_token_at_, last_token_at_;
};

// Engine statistics between two moments.
struct Interval {
  EngineStats from, to;

  int64_t NumSteps() const { return to.num_steps - from.num_steps; }
  // Microseconds of a step.
  double Us(int64_t StageTimes::*stage) const {
    return double(to.stages.*stage - from.stages.*stage) / 1000 / double(NumSteps());
  }
};

// A step by its stages, in microseconds, and the host's part, in which the device has nothing to
// do. A device that computes asynchronously is one: in `forward` the host fills tables and launches
// the step's graph. What the host does in `sample` after the device has finished is not in it.
Json StepTimes(const Interval& interval, bool is_asynchronous) {
  constexpr std::pair<const char*, int64_t StageTimes::*> kStages[] = {
      {"admit", &StageTimes::admit_ns},
      {"schedule", &StageTimes::schedule_ns},
      {"forward", &StageTimes::forward_ns},
      {"sample", &StageTimes::sample_ns},
      {"output", &StageTimes::output_ns}};
  Json stages;
  double step_us = 0;
  for (const auto& [name, stage] : kStages) {
    stages[name] = interval.Us(stage);
    step_us += interval.Us(stage);
  }
  const double host_us = step_us - interval.Us(&StageTimes::sample_ns) -
                         (is_asynchronous ? 0 : interval.Us(&StageTimes::forward_ns));
  return {{"step_us", step_us},
          {"stages_us", stages},
          {"host_us", host_us},
          {"host_share", host_us / step_us}};
}

class Bench {
 public:
  Bench(const Setting& setting, Engine* engine) : setting_(setting), engine_(engine) {}

  // Decodes one sequence after the other, each from `depth` on.
  Json DecodeAlone(int depth) {
    double seconds = 0;
    int num_tokens = 0;
    Interval interval;
    for (int i = 0; i < setting_.num_repeats + 1; ++i) {
      if (i == 1)
        interval.from = engine_->Stats();  // the first warms up and fills the prefix cache
      const auto stream = Begin(depth, /*salt=*/0, kSteps);
      stream->Wait();
      if (i == 0) continue;
      seconds += stream->SecondsOfRest();
      num_tokens += stream->NumTokens() - 1;
    }
    interval.to = engine_->Stats();
    return Row("decode", 1, depth, num_tokens / seconds, interval);
  }

  // Decodes `batch` sequences with different prompts, from when all decode until the first ends.
  Json DecodeTogether() {
    Interval interval;
    double seconds = 0;
    // A small model may finish before the first look at the statistics.
    for (int length = 4 * kSteps; length <= kMostSteps && interval.NumSteps() < kSteps;
         length *= 4) {
      seconds = RunTogether(length, &interval);
    }
    const auto num_tokens = interval.to.num_generated_tokens - interval.from.num_generated_tokens;
    return Row("decode", setting_.batch, setting_.batch_depth, double(num_tokens) / seconds,
               interval);
  }

  // Time to first token of prompts that are not in the prefix cache, one at a time; the fastest.
  Json Prefill() {
    double best = 1e30;
    for (int i = 0; i < setting_.num_repeats; ++i) {
      const Clock::time_point begin = Clock::now();
      const auto stream = Begin(setting_.prompt, 100000 + i, 1);
      stream->Wait();
      best = std::min(best, Seconds(stream->FirstTokenAt() - begin));
    }
    return {{"work", "prefill"},
            {"batch", 1},
            {"depth", setting_.prompt},
            {"tokens_per_s", setting_.prompt / best}};
  }

 private:
  // Seconds of the interval.
  double RunTogether(int num_steps, Interval* interval) {
    std::vector<std::shared_ptr<Stream>> streams;
    for (int s = 0; s < setting_.batch; ++s) {
      streams.push_back(Begin(setting_.batch_depth, 1 + s, num_steps));
    }
    const auto slowest = [&streams] {
      return (*std::ranges::min_element(streams, {}, &Stream::NumTokens))->NumTokens();
    };
    while (slowest() == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    const Clock::time_point begin = Clock::now();
    Clock::time_point end = begin;
    interval->from = interval->to = engine_->Stats();
    for (EngineStats now = interval->to; now.num_running == setting_.batch;) {
      interval->to = now;
      end = Clock::now();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now = engine_->Stats();
    }
    for (const auto& stream : streams) stream->Wait();
    return Seconds(end - begin);
  }

  Json Row(const char* work, int batch, int depth, double tokens_per_s,
           const Interval& interval) const {
    LSSAR_CHECK(interval.NumSteps() > 0);
    Json row{{"work", work}, {"batch", batch}, {"depth", depth}, {"tokens_per_s", tokens_per_s}};
    row.update(StepTimes(interval, setting_.device.starts_with("cuda")));
    return row;
  }

  std::shared_ptr<Stream> Begin(int num_prompt, int salt, int max_tokens) {
    const int vocab_size = engine_->Model().config.vocab_size;
    Request request;
    for (int i = 0; i < std::max(1, num_prompt); ++i) {
      request.prompt.push_back(bench::SyntheticToken(i, salt, vocab_size));
    }
    request.params = GenerateParams{
        .sampling = {.temperature = 0}, .max_tokens = max_tokens, .ignore_eos = true};
    auto stream = std::make_shared<Stream>();
    const auto handle = engine_->Submit(std::move(request), stream);
    LSSAR_CHECK(handle.ok());
    return stream;
  }

  const Setting setting_;
  Engine* const engine_;
};

EngineOptions OptionsFor(const Setting& setting) {
  const int deepest = std::max(*std::ranges::max_element(setting.depths), setting.batch_depth);
  return {.max_model_len = std::max(deepest, setting.prompt) + kMostSteps,
          .max_num_seqs = setting.batch,
          .max_queued_requests = setting.batch,
          .max_queued_tokens = int64_t{1} << 30,
          .max_num_batched_tokens = 2048,
          // Whole prompts in one chunk, so that finished prefills do not wait for long.
          .max_num_partial_prefills = setting.batch,
          .chunked_prefill_size = 2048};
}

// What the threads of the CPU backend can do at most.
struct Limits {
  double read_gb_per_s = 0;
  double fma_gflops = 0;
  double loop_us = 0;

  static Limits Measure(const Setting& setting) {
    constexpr int kSamples = 5;
    const int num_threads = !setting.cpus.empty()      ? int(setting.cpus.size())
                            : setting.num_threads == 0 ? NumUsableCpus()
                                                       : setting.num_threads;
    ThreadPool pool(num_threads, setting.cpus);
    return {.read_gb_per_s = bench::MeasureReadGb(pool, kSamples),
            .fma_gflops = bench::MeasureFmaGflops(pool, kSamples),
            .loop_us = bench::MeasureLoopUs(pool, kSamples)};
  }

  // Adds the share of a row that one of the limits bounds. Decode of one sequence reads all weights
  // (fp16) and K for each token; what it reads of V is not counted. Other work computes two
  // operations for each weight of a layer; the logits and attention are not counted.
  void AddShare(const bench::ModelShape& shape, Json* row) const {
    const double rate = (*row)["tokens_per_s"];
    const double num_parameters = double(shape.NumParameters());
    if ((*row)["work"] == "decode" && (*row)["batch"] == 1) {
      const double k_bytes =
          2.0 * shape.num_hidden_layers * shape.hidden_size * double((*row)["depth"]);
      (*row)["of_read"] = rate * (2 * num_parameters + k_bytes) * 1e-9 / read_gb_per_s;
    } else {
      const double embedding = double(shape.vocab_size) * shape.hidden_size;
      (*row)["of_fma"] = rate * 2 * (num_parameters - embedding) * 1e-9 / fma_gflops;
    }
  }
};

absl::Status Run(const Setting& setting) {
  const std::string directory = setting.work_folder + "/random-model";
  absl::Status status = bench::WriteRandomCheckpoint(setting.shape, directory);
  if (!status.ok()) return status;
  std::optional<Limits> limits;
  if (setting.device == "cpu") limits = Limits::Measure(setting);
  const auto backend = OpenTestDevice({.name = setting.device,
                                       .num_threads = setting.num_threads,
                                       .cpus = setting.cpus,
                                       .batch_invariant = setting.batch_invariant});
  if (!backend.ok()) return backend.status();
  const EngineOptions options = OptionsFor(setting);
  auto checkpoint = LoadCheckpoint(directory, backend->get(),
                                   {.max_num_batched_tokens = options.max_num_batched_tokens});
  if (!checkpoint.ok()) return checkpoint.status();
  const auto engine = Engine::Create(&*checkpoint, backend->get(), options);
  if (!engine.ok()) return engine.status();

  Bench bench(setting, engine->get());
  Json rows = Json::array();
  for (const int depth : setting.depths) rows.push_back(bench.DecodeAlone(depth));
  rows.push_back(bench.Prefill());
  rows.push_back(bench.DecodeTogether());
  Json report{{"device", (*backend)->Describe()},
              {"parameters", setting.shape.NumParameters()},
              {"num_pages", (*engine)->Stats().num_pages}};
  if (limits) {
    for (Json& row : rows) limits->AddShare(setting.shape, &row);
    report["read_gb_per_s"] = limits->read_gb_per_s;
    report["fma_gflops"] = limits->fma_gflops;
    report["loop_us"] = limits->loop_us;
  }
  report["rows"] = rows;
  std::printf("%s\n", report.dump(1).c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Setting setting;
  CLI::App app("Times a whole model through the engine.");
  app.add_option("--device", setting.device, "As the server's; or cuda-emulated");
  app.add_option("--threads", setting.num_threads, "Threads of the cpu; 0: one per core")
      ->check(CLI::Range(0, 1024));
  app.add_option_function<std::string>(
         "--cpus",
         [&](const std::string& list) {
           const auto cpus = lssar::ParseCpuList(list);
           if (!cpus.ok()) throw CLI::ValidationError("--cpus", cpus.status().message().data());
           setting.cpus = *cpus;
         },
         "As the server's --cpus")
      ->type_name("LIST");
  app.add_flag("--batch-invariant", setting.batch_invariant, "As the server's");
  app.add_option("--work-folder", setting.work_folder, "Where the random weights are written");
  app.add_option("--layers", setting.shape.num_hidden_layers,
                 "Layers of the model; the default is the 124M one");
  app.add_option("--heads", setting.shape.num_attention_heads);
  app.add_option("--hidden-size", setting.shape.hidden_size);
  app.add_option("--vocab", setting.shape.vocab_size);
  app.add_option("--depths", setting.depths, "Depths of one sequence alone")->delimiter(',');
  app.add_option("--batch", setting.batch, "Sequences together");
  app.add_option("--batch-depth", setting.batch_depth, "Their depth");
  app.add_option("--prompt", setting.prompt, "Tokens of the prefill figure");
  app.add_option("--repeats", setting.num_repeats, "Samples of each figure")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  setting.shape.num_kv_heads = setting.shape.num_attention_heads;
  const absl::Status status = lssar::Run(setting);
  if (status.ok()) return 0;
  std::fprintf(stderr, "model_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}

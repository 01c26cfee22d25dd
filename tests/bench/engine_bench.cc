// Latency through the engine in one process, without a network: the time between tokens of running
// streams beside a long prefill, and the time to the first token with and without a cached prompt.
//
//   engine_bench --model models/zoo/lssar-6m
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine.h"

namespace lssar {
namespace {

double Milliseconds(Clock::duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

// Records when tokens arrive; calls `on_done` at the end of the request.
class TimingSink : public OutputSink {
 public:
  explicit TimingSink(std::function<void()> on_done) : on_done_(std::move(on_done)) {}
  void OnAdmitted(const RequestStats&) override {}
  void OnResult(EngineResult) override { times.push_back(Clock::now()); }
  void OnDone(const absl::Status&, const RequestStats&) override { on_done_(); }

  std::vector<Clock::time_point> times;  // written by the engine's thread until the request is done

 private:
  const std::function<void()> on_done_;
};

struct Setting {
  std::string model = "models/zoo/lssar-6m";
  int num_threads = 0;
  int num_streams = 16;
  int stream_prompt = 512;
  int long_prompt = 16000;
  int num_rounds = 3;
  EngineOptions engine = {.max_model_len = 16384};

  // Tokens of a stream, which then restarts: its depth, and so its cost, stays about the same.
  static constexpr int kStreamTokens = 128;
  // Enough pages for all sequences, so that none is preempted.
  int64_t KvBytes(const ModelConfig& config) const {
    const KvLayout layout{.num_layers = config.num_hidden_layers,
                          .num_kv_heads = config.num_attention_heads,
                          .head_dim = config.HeadDim(),
                          .page_size = engine.page_size,
                          .dtype = engine.kv_cache_dtype};
    const int num_pages = num_streams * layout.PagesFor(stream_prompt + kStreamTokens) +
                          2 * layout.PagesFor(engine.max_model_len);
    return num_pages * int64_t(layout.PageBytes());
  }
};

std::vector<int32_t> MakePrompt(int num_tokens, int salt, int vocab_size) {
  std::vector<int32_t> ids;
  for (int i = 0; i < num_tokens; ++i) {
    ids.push_back(int32_t((uint64_t(i) * 7919 + uint64_t(salt) * 104729) % uint64_t(vocab_size)));
  }
  return ids;
}

class Bench {
 public:
  Bench(const Setting& setting, Engine* engine) : setting_(setting), engine_(engine) {}

  // The time between two tokens of a stream, alone and beside the prefill of a long prompt.
  void Interference(int round) {
    is_over_ = false;
    for (int i = 0; i < setting_.num_streams; ++i) BeginStream(100 * round + i);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const Clock::time_point from = Clock::now();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    const Clock::time_point begin = Clock::now();
    RunPrompt(setting_.long_prompt, 7000 + round);
    const Clock::time_point end = Clock::now();
    is_over_ = true;
    while (engine_->Stats().num_running > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::vector<double> alone = Gaps(from, begin);
    const std::vector<double> beside = Gaps(begin, end);
    streams_.clear();
    std::printf(
        "%d streams: p50 %.2f ms, p99 %.2f ms alone; p50 %.2f, p99 %.2f beside a prompt of "
        "%d that takes %.1f s: p50 x %.2f, p99 x %.2f\n",
        setting_.num_streams, At(alone, 0.5), At(alone, 0.99), At(beside, 0.5), At(beside, 0.99),
        setting_.long_prompt, Milliseconds(end - begin) / 1000, At(beside, 0.5) / At(alone, 0.5),
        At(beside, 0.99) / At(alone, 0.99));
  }

  // Time to the first token of a prompt, computed and cached.
  void FirstToken(int round) {
    const double first = RunPrompt(2048, 9000 + round);
    const double again = RunPrompt(2048, 9000 + round);
    std::printf("prompt of 2048: %.1f ms to the first token, %.2f ms when it is cached\n", first,
                again);
    std::fflush(stdout);
  }

 private:
  void BeginStream(int salt) {
    auto sink = std::make_shared<TimingSink>([this, salt] {
      if (!is_over_) BeginStream(salt);
    });
    {
      const std::lock_guard lock(mutex_);
      streams_.push_back(sink);
    }
    Submit(setting_.stream_prompt, salt, Setting::kStreamTokens, std::move(sink));
  }

  // Milliseconds until it is done.
  double RunPrompt(int num_tokens, int salt) {
    const Clock::time_point from = Clock::now();
    std::promise<void> done;
    Submit(num_tokens, salt, 1, std::make_shared<TimingSink>([&] { done.set_value(); }));
    done.get_future().wait();
    return Milliseconds(Clock::now() - from);
  }

  void Submit(int num_prompt, int salt, int max_tokens, std::shared_ptr<TimingSink> sink) {
    Request request{.prompt = MakePrompt(num_prompt, salt, engine_->Model().config.vocab_size)};
    request.params = GenerateParams{
        .sampling = {.temperature = 0}, .max_tokens = max_tokens, .ignore_eos = true};
    const auto handle = engine_->Submit(std::move(request), std::move(sink));
    if (!handle.ok()) std::printf("%s\n", handle.status().ToString().c_str());
  }

  // Times between two tokens of one stream in [from, to), ascending. Requires  no stream runs
  std::vector<double> Gaps(Clock::time_point from, Clock::time_point to) const {
    std::vector<double> gaps;
    for (const auto& stream : streams_) {
      const std::vector<Clock::time_point>& times = stream->times;
      for (size_t i = 1; i < times.size(); ++i) {
        if (times[i - 1] >= from && times[i] < to) {
          gaps.push_back(Milliseconds(times[i] - times[i - 1]));
        }
      }
    }
    std::ranges::sort(gaps);
    return gaps;
  }
  static double At(const std::vector<double>& sorted, double quantile) {
    if (sorted.empty()) return std::nan("");
    return sorted[size_t(quantile * double(sorted.size() - 1))];
  }

  const Setting setting_;
  Engine* const engine_;
  std::atomic<bool> is_over_ = false;
  std::mutex mutex_;
  std::vector<std::shared_ptr<TimingSink>> streams_;  // guarded while streams run
};

absl::Status Run(const Setting& setting) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                   MakeBackend({.name = "cpu", .num_threads = setting.num_threads}));
  LoadOptions load_options;
  load_options.max_num_batched_tokens = setting.engine.max_num_batched_tokens;
  ASSIGN_OR_RETURN(Checkpoint checkpoint,
                   LoadCheckpoint(setting.model, backend.get(), load_options));
  EngineOptions options = setting.engine;
  options.kv_cache_bytes = setting.KvBytes(checkpoint.config);
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                   Engine::Create(&checkpoint, backend.get(), options));
  Bench bench(setting, engine.get());
  for (int round = 0; round < setting.num_rounds; ++round) {
    bench.FirstToken(round);
    bench.Interference(round);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Setting setting;
  CLI::App app(
      "Measures the time between tokens beside the prefill of a long prompt, and the time to the "
      "first token of a cached prompt");
  app.add_option("--model", setting.model, "Checkpoint directory");
  app.add_option("--threads", setting.num_threads, "Threads; 0: all cores");
  app.add_option("--streams", setting.num_streams, "Sequences that decode");
  app.add_option("--stream-prompt", setting.stream_prompt, "Prompt tokens of each stream");
  app.add_option("--prompt", setting.long_prompt, "Tokens of the long prompt");
  app.add_option("--rounds", setting.num_rounds, "Repetitions");
  app.add_option("--chunked-prefill-size", setting.engine.chunked_prefill_size,
                 "As the server's flag");
  app.add_option("--max-num-partial-prefills", setting.engine.max_num_partial_prefills,
                 "As the server's flag");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lssar::Run(setting);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

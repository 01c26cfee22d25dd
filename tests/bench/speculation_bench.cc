// Tokens per second with speculative decoding over those without, through the engine in one
// process. Both engines run the same requests in turns and must give the same bits.
//
//   speculation_bench --model models/zoo/lssar-6m
//   speculation_bench --dtype fp32 --draft-model models/zoo/lssar-6m --draft-dtype int4
//
// Without --draft-model the drafts are n-grams. A quantized copy of the model is a draft model that
// as right and as slow as a draft model can be: it shows the acceptance and the draft model's work,
// not a speedup. For that there is
//
//   speculation_bench --random-model --draft-model models/zoo/lssar-6m --draft-dtype int4
//
// The served model has 14 times the parameters, random ones, and each draw is forced to the text
// that --model writes, after the model computed its logits. So the work is that of a larger model,
// and the acceptance that of the copy. Several sequences write the same text.
//
// copy: the output is the prompt again. The shipped model does not copy, so the output is forced:
// each draw becomes the next token of the passage, after the model computed its logits. Drafts come
// from the tokens, as ever.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "runtime/draft_model.h"
#include "runtime/engine.h"
#include "tests/bench/median.h"
#include "tests/bench/random_checkpoint.h"

namespace lssar {
namespace {

// Gives every draw the token of `text` at its position, if there is a text.
class ForcedModel : public LanguageModel {
 public:
  explicit ForcedModel(std::unique_ptr<LanguageModel> model) : model_(std::move(model)) {}

  const std::vector<int32_t>* text = nullptr;

  const ModelConfig& Config() const override { return model_->Config(); }
  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionStats* stats) override {
    return model_->Forward(batch, kv, stats);
  }
  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
              std::span<SampleResult> results) override {
    if (text == nullptr) return model_->Sample(batch, requests, results);
    forced_.assign(requests.begin(), requests.end());
    for (SampleRequest& request : forced_) {
      if (request.target < 0) request.target = (*text)[size_t(request.position)];
    }
    model_->Sample(batch, forced_, results);
  }
  absl::Status Synchronize() override { return model_->Synchronize(); }
  absl::Status CopyLogits(const ForwardBatch& batch, int first, int count,
                          std::span<float> out) override {
    return model_->CopyLogits(batch, first, count, out);
  }
  absl::Status CopyHiddenStates(const ForwardBatch& batch, std::span<float> out) override {
    return model_->CopyHiddenStates(batch, out);
  }
  int NumHeadOutputs() const override { return model_->NumHeadOutputs(); }
  void ApplyHead(std::span<const float> hidden, std::span<float> out) const override {
    model_->ApplyHead(hidden, out);
  }

 private:
  const std::unique_ptr<LanguageModel> model_;
  std::vector<SampleRequest> forced_;
};

class CollectingSink : public OutputSink {
 public:
  void OnAdmitted(const RequestStats&) override {}
  void OnTokens(GenerateDelta delta) override {
    for (const TokenResult& token : delta.tokens) ids.push_back(token.id);
  }
  void OnDone(const absl::Status& status, const RequestStats& request_stats) override {
    LSSAR_CHECK(status.ok());
    stats = request_stats;
  }

  std::vector<int32_t> ids;
  RequestStats stats;
};

struct Setting {
  std::string model = "models/zoo/lssar-6m";
  int num_threads = 0;
  int num_pairs = 7;
  int num_tokens = 512;
  int passage = 2048;
  std::string only;
  std::optional<DType> dtype, draft_dtype;  // nullopt: as stored
  std::string draft_model;                  // empty: n-grams
  bool is_adaptive = true;
  bool has_random_model = false;
  EngineOptions engine = {.max_model_len = 8192};
};

struct NamedTemperature {
  const char* name;
  float value;
};
constexpr NamedTemperature kTemperatures[] = {
    {"temperature 1", 1.0f}, {"temperature 0.7", 0.7f}, {"greedy", 0.0f}};

struct Work {
  std::string name;
  std::vector<Request> requests;
  const std::vector<int32_t>* forced = nullptr;
};

struct Run {
  double tokens_per_second = 0;
  double tokens_per_cpu_second = 0;  // of all threads; with --threads 1 free of what else runs
  std::vector<std::vector<int32_t>> ids;
  int64_t num_draft = 0, num_accepted = 0;
  int64_t num_draft_model_tokens = 0;  // computed by the draft model
};

int64_t NumDraftModelTokens(const Engine& engine) {
  return engine.GetDraftModel() == nullptr ? 0 : engine.GetDraftModel()->NumBatchedTokens();
}

// The time from the step in which every prompt is computed to the end.
Run RunWork(const Work& work, Engine* engine, ForcedModel* model) {
  model->text = work.forced;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  const int64_t num_before = engine->Stats().num_generated_tokens;
  const int64_t num_draft_model_tokens = NumDraftModelTokens(*engine);
  for (const Request& request : work.requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    LSSAR_CHECK(engine->Submit(request, sinks.back()).ok());
  }
  const auto has_prompts = [&] {
    return std::ranges::all_of(sinks, [](const auto& sink) { return !sink->ids.empty(); });
  };
  while (!has_prompts()) LSSAR_CHECK(engine->Step().ok());
  const int64_t num_first = engine->Stats().num_generated_tokens;
  const Clock::time_point from = Clock::now();
  const std::clock_t cpu_from = std::clock();
  while (engine->Stats().num_running > 0) LSSAR_CHECK(engine->Step().ok());
  const std::chrono::duration<double> time = Clock::now() - from;
  Run run;
  run.tokens_per_second = double(engine->Stats().num_generated_tokens - num_first) / time.count();
  run.tokens_per_cpu_second = double(engine->Stats().num_generated_tokens - num_first) *
                              CLOCKS_PER_SEC / double(std::clock() - cpu_from);
  for (const auto& sink : sinks) {
    run.ids.push_back(std::move(sink->ids));
    run.num_draft += sink->stats.num_draft_tokens;
    run.num_accepted += sink->stats.num_accepted_tokens;
  }
  run.num_draft_model_tokens = NumDraftModelTokens(*engine) - num_draft_model_tokens;
  LSSAR_CHECK(engine->Stats().num_generated_tokens > num_before);
  return run;
}

Request Generate(std::vector<int32_t> prompt, int num_tokens, float temperature, uint64_t seed) {
  Request request{.prompt = std::move(prompt), .use_prefix_cache = false};
  request.generate = GenerateParams{.sampling = {.temperature = temperature, .seed = seed},
                                    .max_tokens = num_tokens,
                                    .ignore_eos = true};
  return request;
}

class Bench {
 public:
  Bench(const Setting& setting, ForcedModel* model, Engine* plain, Engine* speculating)
      : setting_(setting), model_(model), plain_(plain), speculating_(speculating) {}

  void Measure(const Work& work) {
    if (!setting_.only.empty() && work.name.find(setting_.only) == std::string::npos) return;
    std::vector<double> ratios, cpu_ratios, plain_rates;
    int64_t num_draft = 0, num_accepted = 0, num_draft_model_tokens = 0;
    for (int pair = -1; pair < setting_.num_pairs; ++pair) {  // the first one warms up
      // The order alternates, so that a machine that gets slower favours neither.
      Run runs[2];
      for (const bool speculates : {pair % 2 == 0, pair % 2 != 0}) {
        runs[speculates] = RunWork(work, speculates ? speculating_ : plain_, model_);
      }
      LSSAR_CHECK(runs[0].ids == runs[1].ids);
      if (pair < 0) continue;
      ratios.push_back(runs[1].tokens_per_second / runs[0].tokens_per_second);
      cpu_ratios.push_back(runs[1].tokens_per_cpu_second / runs[0].tokens_per_cpu_second);
      plain_rates.push_back(runs[0].tokens_per_second);
      num_draft += runs[1].num_draft;
      num_accepted += runs[1].num_accepted;
      num_draft_model_tokens += runs[1].num_draft_model_tokens;
    }
    const auto num_tokens = double(setting_.num_pairs * std::ssize(work.requests) *
                                   work.requests[0].generate->max_tokens);
    std::ranges::sort(ratios);
    std::printf(
        "%-26s x %.2f [%.2f, %.2f], CPU time x %.2f, %.0f tokens/s without; %.3f drafted a token, "
        "%.0f%% accepted, %.3f computed by the draft model\n",
        work.name.c_str(), bench::Median(ratios), ratios.front(), ratios.back(),
        bench::Median(cpu_ratios), bench::Median(plain_rates), double(num_draft) / num_tokens,
        num_draft > 0 ? 100.0 * double(num_accepted) / double(num_draft) : 0.0,
        double(num_draft_model_tokens) / num_tokens);
    std::fflush(stdout);
  }

 private:
  const Setting setting_;
  ForcedModel* const model_;
  Engine* const plain_;
  Engine* const speculating_;
};

// Random weights of GPT-2's 124M shape with the vocabulary of `like`, whose tokenizer it takes.
absl::StatusOr<Checkpoint> LoadRandom(Checkpoint* like, std::optional<DType> dtype,
                                      Backend* backend) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / StrCat("lssar_speculation_bench_", getpid());
  RETURN_IF_ERROR(bench::WriteRandomCheckpoint({.vocab_size = like->config.vocab_size}, directory));
  absl::StatusOr<Checkpoint> checkpoint = LoadCheckpoint(directory, backend, {.dtype = dtype});
  std::filesystem::remove_all(directory);
  if (checkpoint.ok()) checkpoint->tokenizer = std::move(like->tokenizer);
  return checkpoint;
}

// The engines of a checkpoint, without speculation and with it.
struct Engines {
  std::unique_ptr<Engine> plain, speculating;
};
absl::StatusOr<Engines> MakeEngines(const Setting& setting, Checkpoint* checkpoint,
                                    Checkpoint* draft, Backend* backend) {
  EngineOptions options = setting.engine;
  const KvLayout layout = LayoutOf(checkpoint->config, options.kv_cache_dtype, options.page_size);
  const int num_pages = std::max(layout.PagesFor(options.max_model_len),
                                 16 * layout.PagesFor(16 + setting.num_tokens) + 16);
  options.kv_cache_bytes = num_pages * int64_t(layout.PageBytes());
  options.speculative_method = SpeculativeMethod::kOff;
  Engines engines;
  ASSIGN_OR_RETURN(engines.plain, Engine::CreateStepped(checkpoint, backend, options));
  options.speculative_method =
      draft == nullptr ? SpeculativeMethod::kNgram : SpeculativeMethod::kDraftModel;
  options.draft_checkpoint = draft;
  options.adapts_speculation = setting.is_adaptive;
  ASSIGN_OR_RETURN(engines.speculating, Engine::CreateStepped(checkpoint, backend, options));
  return engines;
}

ForcedModel* WrapModel(Checkpoint* checkpoint) {
  auto model = std::make_unique<ForcedModel>(std::move(checkpoint->model));
  ForcedModel* const wrapped = model.get();
  checkpoint->model = std::move(model);
  return wrapped;
}

std::vector<Request> Streams(const Setting& setting, int32_t first_id, int count, float temperature,
                             bool are_equal) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = are_equal ? 1 : uint64_t(i) + 1;
    requests.push_back(Generate({first_id}, setting.num_tokens, temperature, seed));
  }
  return requests;
}

void MeasureTexts(const Setting& setting, int32_t first_id, const Engines& engines,
                  ForcedModel* model) {
  Bench bench(setting, model, engines.plain.get(), engines.speculating.get());
  if (setting.draft_model.empty()) {
    // A passage that the model wrote, then the passage again.
    const Run written =
        RunWork({.name = "", .requests = {Generate({first_id}, setting.passage - 1, 1.0f, 77)}},
                engines.plain.get(), model);
    std::vector<int32_t> passage = {first_id};
    passage.insert(passage.end(), written.ids[0].begin(), written.ids[0].end());
    std::vector<int32_t> copied = passage;
    copied.insert(copied.end(), passage.begin(), passage.end());
    bench.Measure({.name = "copy (forced)",
                   .requests = {Generate(passage, setting.passage, 0, 1)},
                   .forced = &copied});
  }
  for (const int count : {1, 16}) {
    for (const auto& [name, temperature] : kTemperatures) {
      if (count > 1 && temperature == 0) continue;  // all would be the same text
      bench.Measure({.name = StrCat(count == 1 ? "text, " : "16 texts, ", name),
                     .requests = Streams(setting, first_id, count, temperature, false)});
    }
  }
}

// The served model has random weights, and its text is forced to be the one that `writer` writes.
absl::Status MeasureRandomModel(const Setting& setting, Checkpoint* writer, Checkpoint* draft,
                                Backend* backend) {
  ASSIGN_OR_RETURN(Checkpoint served, LoadRandom(writer, setting.dtype, backend));
  ForcedModel* const model = WrapModel(&served);
  ASSIGN_OR_RETURN(const Engines engines, MakeEngines(setting, &served, draft, backend));
  ASSIGN_OR_RETURN(const Engines writing, MakeEngines(setting, writer, nullptr, backend));
  const int32_t first_id = writer->config.bos_id.value_or(0);
  Bench bench(setting, model, engines.plain.get(), engines.speculating.get());
  for (const int count : {1, 4, 16}) {
    for (const auto& [name, temperature] : kTemperatures) {
      const Run written =
          RunWork({.name = "", .requests = Streams(setting, first_id, 1, temperature, true)},
                  writing.plain.get(), model);
      std::vector<int32_t> text = {first_id};
      text.insert(text.end(), written.ids[0].begin(), written.ids[0].end());
      bench.Measure({.name = StrCat(count, " forced, ", name),
                     .requests = Streams(setting, first_id, count, temperature, true),
                     .forced = &text});
    }
  }
  return absl::OkStatus();
}

absl::Status RunBench(const Setting& setting) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                   MakeBackend({.name = "cpu", .num_threads = setting.num_threads}));
  ASSIGN_OR_RETURN(Checkpoint checkpoint,
                   LoadCheckpoint(setting.model, backend.get(), {.dtype = setting.dtype}));
  std::optional<Checkpoint> draft;
  if (!setting.draft_model.empty()) {
    ASSIGN_OR_RETURN(
        draft, LoadCheckpoint(setting.draft_model, backend.get(), {.dtype = setting.draft_dtype}));
  }
  Checkpoint* const draft_or_null = draft ? &*draft : nullptr;
  if (setting.has_random_model) {
    return MeasureRandomModel(setting, &checkpoint, draft_or_null, backend.get());
  }
  ForcedModel* const model = WrapModel(&checkpoint);
  ASSIGN_OR_RETURN(const Engines engines,
                   MakeEngines(setting, &checkpoint, draft_or_null, backend.get()));
  MeasureTexts(setting, checkpoint.config.bos_id.value_or(0), engines, model);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Setting setting;
  CLI::App app("Measures speculative decoding against none");
  app.add_option("--model", setting.model, "Checkpoint directory");
  app.add_option("--threads", setting.num_threads, "Threads; 0: all cores");
  app.add_option("--pairs", setting.num_pairs, "Pairs of runs, with and without");
  app.add_option("--tokens", setting.num_tokens, "Tokens of each text");
  app.add_option("--passage", setting.passage, "Tokens of the passage that is copied");
  app.add_option("--only", setting.only, "Only rows whose name contains this");
  app.add_option("--num-speculative-tokens", setting.engine.num_speculative_tokens,
                 "As the server's flag");
  app.add_option("--prompt-lookup-min", setting.engine.prompt_lookup_min, "As the server's flag");
  app.add_option("--prompt-lookup-max", setting.engine.prompt_lookup_max, "As the server's flag");
  std::string dtype = "auto", draft_dtype = "auto";
  app.add_option("--dtype", dtype, "As the server's flag");
  app.add_option("--draft-model", setting.draft_model, "As the server's flag; none: n-grams");
  app.add_option("--draft-dtype", draft_dtype, "As the server's flag");
  app.add_flag("--random-model", setting.has_random_model,
               "Serve random weights of the 124M shape; force the text that --model writes");
  app.add_flag("!--fixed", setting.is_adaptive,
               "Draft --num-speculative-tokens tokens in every step, whatever they cost");
  CLI11_PARSE(app, argc, argv);
  for (const auto& [name, target] :
       {std::pair(&dtype, &setting.dtype), std::pair(&draft_dtype, &setting.draft_dtype)}) {
    if (*name == "auto") continue;
    *target = lssar::ParseDType(*name);
    if (!*target) {
      std::fprintf(stderr, "%s is no data type\n", name->c_str());
      return 2;
    }
  }
  const absl::Status status = lssar::RunBench(setting);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

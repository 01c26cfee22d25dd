// Tokens per second with speculative decoding over those without, through the engine in one
// process. Both engines run the same requests in turns and must give the same bits.
//
//   speculation_bench --model models/zoo/lssar-6m
//   speculation_bench --dtype fp32 --draft-model models/zoo/lssar-6m --draft-dtype int4
//
// Without --draft-model the drafts are n-grams. A quantized copy of the model is a draft model
// that is as right and as slow as a draft model can be: it shows the acceptance and the draft
// model's work, not a speedup. For that there is
//
//   speculation_bench --random-model --draft-model models/zoo/lssar-6m --draft-dtype int4
//
// The served model has 14 times the parameters, random ones, and each draw is forced to the text
// that --model writes, after the model computed its logits. So the work is that of a larger model,
// and the acceptance that of the copy. Several sequences write the same text.
//
//   speculation_bench --copying --dtype int8 --peer-llama DIR/llama-bench
//
// copy: the output is the prompt again. The shipped model does not copy, so the output is forced:
// each draw becomes the next token of the passage, after the model computed its logits. Drafts come
// from the tokens, as ever.
//
// --copying: a model of the 124M shape with random layers whose greedy text is the passage again by
// its own weights (ModelShape::cycle), so llama.cpp's lookup decoding copies it too. That is the
// peer, in the same turns, with as many draft tokens; the texts are compared.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "runtime/draft_model.h"
#include "runtime/engine.h"
#include "tests/bench/median.h"
#include "tests/bench/peer_llama.h"
#include "tests/bench/random_checkpoint.h"
#include "tests/support/forwarding_model.h"

namespace lssar {
namespace {

// Gives every draw the token of `text` at its position, if there is a text.
class ForcedModel final : public ForwardingModel {
 public:
  using ForwardingModel::ForwardingModel;

  const std::vector<int32_t>* text = nullptr;

  void Sample(const ForwardBatch& batch, std::span<const SampleRequest> requests,
              std::span<SampleResult> results) override {
    if (text == nullptr) return ForwardingModel::Sample(batch, requests, results);
    forced_.assign(requests.begin(), requests.end());
    for (SampleRequest& request : forced_) {
      if (request.target < 0) request.target = (*text)[size_t(request.position)];
    }
    ForwardingModel::Sample(batch, forced_, results);
  }

 private:
  std::vector<SampleRequest> forced_;
};

class CollectingSink : public OutputSink {
 public:
  void OnAdmitted(const RequestStats&) override {}
  void OnResult(EngineResult result) override {
    const auto& delta = std::get<GenerateDelta>(result);
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
  bool copying = false;
  std::string peer_llama;
  std::string work_folder = "build/bench";
  std::string json;
  int num_threads = 0;
  int num_pairs = 7;
  int num_tokens = 512;
  int passage = 2048;
  std::string only;
  std::string dtype = "auto", draft_dtype = "auto";
  std::string draft_model;  // empty: n-grams
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
  request.params = GenerateParams{.sampling = {.temperature = temperature, .seed = seed},
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
                                   work.requests[0].Generate()->max_tokens);
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

// The model of --copying: its checkpoint, and the same as a file for llama.cpp.
class CopyingModel {
 public:
  static absl::StatusOr<CopyingModel> Create(const Setting& setting) {
    CopyingModel self;
    self.shape_.cycle = setting.passage;
    const std::string name = StrCat(setting.work_folder, "/copying-124m-", setting.passage);
    self.directory_ = name;
    if (!std::filesystem::exists(name + "/model.safetensors")) {
      std::fprintf(stderr, "writing %s\n", name.c_str());
      RETURN_IF_ERROR(bench::WriteRandomCheckpoint(self.shape_, name));
    }
    if (setting.peer_llama.empty()) return self;
    const bench::GgufMatrices matrices = bench::MatricesOf(setting.dtype);
    self.gguf_ = StrCat(name, "-", NameOf(matrices), ".gguf");
    if (!std::filesystem::exists(self.gguf_))
      RETURN_IF_ERROR(bench::WriteRandomGguf(self.shape_, matrices, self.gguf_));
    self.prompt_file_ = name + ".txt";
    std::ofstream(self.prompt_file_) << self.Words(setting.passage);
    return self;
  }

  std::vector<int32_t> Tokens(int count) const {
    std::vector<int32_t> tokens = {0};
    while (std::ssize(tokens) < count) tokens.push_back(bench::NextToken(shape_, tokens.back()));
    return tokens;
  }
  std::string Words(int count) const {
    std::string words;
    for (const int32_t token : Tokens(count)) words += bench::GgufWord(token);
    return words;
  }

  const std::string& directory() const { return directory_; }
  const std::string& gguf() const { return gguf_; }
  const std::string& prompt_file() const { return prompt_file_; }

 private:
  bench::ModelShape shape_;
  std::string directory_, gguf_, prompt_file_;
};

// One pair of greedy copies by llama.cpp, and one by us.
struct CopySample {
  double plain = 0, speculating = 0;  // tokens per second
  double peer_plain = 0, peer_lookup = 0;
};

// The engines of a checkpoint, without speculation and with it.
struct Engines {
  std::unique_ptr<Engine> plain, speculating;
};

// A passage copied by CopyingModel, beside llama.cpp's lookup decoding if there is one.
absl::Status MeasureCopies(const Setting& setting, const CopyingModel& copying, int num_threads,
                           ForcedModel* model, const Engines& engines) {
  const Work work{
      .name = "copy",
      .requests = {Generate(copying.Tokens(setting.passage), setting.num_tokens, 0, 1)}};
  const std::vector<int32_t> text = copying.Tokens(setting.num_tokens);
  const bench::PeerLlama peer(
      {.llama_bench = setting.peer_llama,
       .num_threads = num_threads,
       .cache_type = std::string(bench::PeerCacheType(setting.engine.kv_cache_dtype))});
  const auto run_peer = [&](int num_draft_tokens, double* rate) -> absl::Status {
    ASSIGN_OR_RETURN(const bench::PeerText copied,
                     peer.Lookup(copying.gguf(), copying.prompt_file(), setting.passage,
                                 setting.num_tokens, num_draft_tokens));
    const std::string wanted = copying.Words(setting.passage) + copying.Words(setting.num_tokens);
    if (copied.output.find(wanted) == std::string::npos)
      return absl::InternalError("llama-lookup did not copy the passage");
    if (copied.num_draft_tokens > 0 || num_draft_tokens == 0) {
      *rate = copied.tokens_per_second;
      return absl::OkStatus();
    }
    return absl::InternalError("llama-lookup drafted nothing");
  };
  std::vector<CopySample> samples;
  int64_t num_draft = 0, num_accepted = 0;
  for (int pair = -1; pair < setting.num_pairs; ++pair) {  // the first one warms up
    CopySample sample;
    // The order alternates, so that a machine that gets slower favours neither.
    for (const bool speculates : {pair % 2 == 0, pair % 2 != 0}) {
      const Run run =
          RunWork(work, (speculates ? engines.speculating : engines.plain).get(), model);
      LSSAR_CHECK(run.ids[0] == text);
      (speculates ? sample.speculating : sample.plain) = run.tokens_per_second;
      if (pair >= 0) num_draft += run.num_draft, num_accepted += run.num_accepted;
      if (setting.peer_llama.empty() || pair < 0) continue;
      RETURN_IF_ERROR(run_peer(speculates ? setting.engine.num_speculative_tokens : 0,
                               speculates ? &sample.peer_lookup : &sample.peer_plain));
    }
    if (pair >= 0) samples.push_back(sample);
  }
  nlohmann::json json = {{"dtype", setting.dtype},
                         {"passage", setting.passage},
                         {"num_tokens", setting.num_tokens},
                         {"num_speculative_tokens", setting.engine.num_speculative_tokens},
                         {"drafted", num_draft},
                         {"accepted", num_accepted}};
  std::printf("copy %d of %d tokens, %s weights; %lld drafted, %lld accepted\n", setting.num_tokens,
              setting.passage, setting.dtype.c_str(), static_cast<long long>(num_draft),
              static_cast<long long>(num_accepted));
  const auto print = [&](const char* name, const char* key, auto&& value_of) {
    std::vector<double> values;
    for (const CopySample& sample : samples) values.push_back(value_of(sample));
    json[key] = values;
    const auto [low, high] = std::ranges::minmax(values);
    std::printf("  %-38s %8.2f [%.2f, %.2f]\n", name, bench::Median(values), low, high);
  };
  using S = CopySample;
  print("tokens/s with drafts", "speculating", [](const S& s) { return s.speculating; });
  print("over those without", "ratio", [](const S& s) { return s.speculating / s.plain; });
  if (!setting.peer_llama.empty()) {
    print("llama.cpp's lookup, tokens/s", "peer_lookup", [](const S& s) { return s.peer_lookup; });
    print("over its own without", "peer_ratio",
          [](const S& s) { return s.peer_lookup / s.peer_plain; });
    print("ours over llama.cpp's, without drafts", "plain_over_peer",
          [](const S& s) { return s.plain / s.peer_plain; });
    print("ours over llama.cpp's, with drafts", "speculating_over_peer",
          [](const S& s) { return s.speculating / s.peer_lookup; });
  }
  if (!setting.json.empty()) std::ofstream(setting.json) << json.dump(2) << "\n";
  return absl::OkStatus();
}

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
  ASSIGN_OR_RETURN(Checkpoint served, LoadRandom(writer, ParseDType(setting.dtype), backend));
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
  if (!setting.copying && !(setting.peer_llama.empty() && setting.json.empty())) {
    return absl::InvalidArgumentError("--peer-llama and --json need --copying");
  }
  if (setting.copying && setting.num_tokens > setting.passage) {
    return absl::InvalidArgumentError(StrCat("--tokens ", setting.num_tokens,
                                             ": at most --passage ", setting.passage,
                                             " with --copying"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend,
                   MakeBackend({.name = "cpu", .num_threads = setting.num_threads}));
  std::optional<CopyingModel> copying;
  if (setting.copying) {
    ASSIGN_OR_RETURN(copying, CopyingModel::Create(setting));
  }
  ASSIGN_OR_RETURN(Checkpoint checkpoint,
                   LoadCheckpoint(copying ? copying->directory() : setting.model, backend.get(),
                                  {.dtype = ParseDType(setting.dtype)}));
  std::optional<Checkpoint> draft;
  if (!setting.draft_model.empty()) {
    ASSIGN_OR_RETURN(draft, LoadCheckpoint(setting.draft_model, backend.get(),
                                           {.dtype = ParseDType(setting.draft_dtype)}));
  }
  Checkpoint* const draft_or_null = draft ? &*draft : nullptr;
  if (setting.has_random_model) {
    return MeasureRandomModel(setting, &checkpoint, draft_or_null, backend.get());
  }
  ForcedModel* const model = WrapModel(&checkpoint);
  ASSIGN_OR_RETURN(const Engines engines,
                   MakeEngines(setting, &checkpoint, draft_or_null, backend.get()));
  if (copying) return MeasureCopies(setting, *copying, backend->NumThreads(), model, engines);
  MeasureTexts(setting, checkpoint.config.bos_id.value_or(0), engines, model);
  return absl::OkStatus();
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Setting setting;
  CLI::App app("Measures speculative decoding against none");
  app.add_option("--model", setting.model, "Checkpoint directory");
  app.add_flag("--copying", setting.copying,
               "A generated model of the 124M shape that copies its prompt, instead of --model")
      ->excludes("--model");
  app.add_option("--peer-llama", setting.peer_llama,
                 "Path of llama.cpp's llama-bench, beside which llama-lookup lies; with --copying");
  app.add_option("--work-folder", setting.work_folder, "Where generated weights are stored")
      ->capture_default_str();
  app.add_option("--json", setting.json, "Also write the figures to this file; with --copying");
  app.add_option("--threads", setting.num_threads, "Threads; 0: all cores");
  app.add_option("--pairs", setting.num_pairs, "Pairs of runs, with and without");
  app.add_option("--tokens", setting.num_tokens, "Tokens of each text");
  app.add_option("--passage", setting.passage, "Tokens of the passage that is copied");
  app.add_option("--only", setting.only, "Only rows whose name contains this; without --copying")
      ->excludes("--copying");
  app.add_option("--num-speculative-tokens", setting.engine.num_speculative_tokens,
                 "As the server's flag");
  app.add_option("--prompt-lookup-min", setting.engine.prompt_lookup_min, "As the server's flag");
  app.add_option("--prompt-lookup-max", setting.engine.prompt_lookup_max, "As the server's flag");
  const CLI::IsMember dtypes({"auto", "fp32", "fp16", "bf16", "int8", "int4"});
  app.add_option("--dtype", setting.dtype, "As the server's flag")->check(dtypes);
  app.add_option("--draft-model", setting.draft_model, "As the server's flag; none: n-grams")
      ->excludes("--copying");
  app.add_option("--draft-dtype", setting.draft_dtype, "As the server's flag")->check(dtypes);
  app.add_flag("--random-model", setting.has_random_model,
               "Serve random weights of the 124M shape; force the text that --model writes")
      ->excludes("--copying");
  app.add_flag("!--fixed", setting.is_adaptive,
               "Draft --num-speculative-tokens tokens in every step, whatever they cost");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lssar::RunBench(setting);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}

// Benchmarks a whole model on the CPU, and llama.cpp in the same run if it is installed: tokens a
// second of prefill and decode, the share of the measured ceiling, the ratio to llama.cpp, and peak
// memory. tests/gpu/model_bench.cc times a model through the engine.
//
//   model_bench                                 a 124M-shape checkpoint with random weights
//   model_bench --peer-llama DIR/llama-bench    the same, and llama.cpp in the same run
//   model_bench --dtype int8,int4 --by-turns    decode in both formats, a sample of each by turns
//   model_bench --works rows --depths 1024      steps of several tokens, as verifying a draft
//   model_bench --kv-heads 12,4 --depths 16384 --works decode --random-cache
//                                               grouped-query heads beside one K/V head each
//   model_bench --model models/zoo/lssar-6m --text models/zoo/lssar-6m/held_out.bin
//                                               a trained checkpoint's own attention
//   model_bench --model DIR --dtype int8,int4 --peer-llama DIR/llama-bench
//               --peer-gguf int8=Q8_0.gguf int4=Q4_0.gguf
//                                               a real model beside llama.cpp on the same weights
//
// llama.cpp's cache has as many bits as ours: F32, F16 (fx16 too) or Q8_0 (int8).
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "tests/bench/bench_model.h"
#include "tests/bench/ceilings.h"
#include "tests/bench/figure.h"
#include "tests/bench/median.h"
#include "tests/bench/peer_llama.h"
#include "tests/bench/random_checkpoint.h"

namespace lssar::bench {
namespace {

struct Flags {
  std::string model;
  std::string work_folder = "build/bench";
  std::vector<std::string> dtypes = {"fp16"};
  std::vector<std::string> kv = {"fp16"};
  std::vector<int> depths = {0, 1024, 4096, 16384};
  std::vector<int> kv_heads = {12};
  std::vector<std::string> works = {"prefill", "decode", "together"};
  std::vector<std::string> later_kv_works;  // empty: as `works`
  std::vector<int> rows = {1, 2, 4, 8, 16};
  bool random_cache = false;
  bool by_turns = false;
  std::string text;
  std::string peer_llama, peer_flash_attention = "best";
  std::vector<std::string> peer_gguf;  // TYPE=PATH
  std::string json;
  int num_threads = 0;
  int num_repeats = 5;
};

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Linux: resets the peak resident set, so that PeakBytes measures from here on.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

int64_t PeakBytes() {
  std::string line;
  for (std::ifstream in("/proc/self/status"); std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) << 10;
  }
  return 0;
}

class Runner {
 public:
  explicit Runner(const Flags& flags) : flags_(flags) {}

  int Run() {
    for (const int num_kv_heads : flags_.kv_heads) {
      shape_.num_kv_heads = num_kv_heads;
      if (!Prepare()) return 1;
      if (flags_.by_turns) {
        if (!RunByTurns()) return 1;
        continue;
      }
      for (const std::string& dtype : flags_.dtypes) {
        for (const std::string& kv : flags_.kv) {
          if (!RunFormat(dtype, kv)) return 1;
        }
      }
    }
    WriteJson();
    return 0;
  }

 private:
  bool Prepare() {
    directory_ = flags_.model;
    if (directory_.empty()) {
      directory_ = flags_.work_folder + "/random-124m";
      if (IsGrouped()) directory_ += StrCat("-kv", shape_.num_kv_heads);
      if (!std::filesystem::exists(directory_ + "/model.safetensors")) {
        std::fprintf(stderr, "writing %s\n", directory_.c_str());
        if (!WriteRandomCheckpoint(shape_, directory_).ok()) return false;
      }
    }
    if (!flags_.text.empty() && text_.empty() && !ReadText()) return false;
    if (!flags_.peer_llama.empty() && !flags_.model.empty()) {
      for (const std::string& dtype : flags_.dtypes) {
        if (std::filesystem::exists(GgufPath(dtype))) continue;
        std::fprintf(stderr, "--peer-gguf: no file for %s: give %s=PATH\n", dtype.c_str(),
                     dtype.c_str());
        return false;
      }
    } else if (!flags_.peer_llama.empty()) {
      for (const std::string& dtype : flags_.dtypes) {
        const std::string path = GgufPath(dtype);
        if (!std::filesystem::exists(path) &&
            !WriteRandomGguf(ModelShape{}, MatricesOf(dtype), path).ok())
          return false;
      }
    }
    return true;
  }

  bool IsGrouped() const { return shape_.num_kv_heads != shape_.num_attention_heads; }

  // Token ids as 16-bit little-endian words.
  bool ReadText() {
    std::ifstream in(flags_.text, std::ios::binary);
    for (char word[2]; in.read(word, 2);)
      text_.push_back(int32_t{uint8_t(word[0])} | int32_t{uint8_t(word[1])} << 8);
    if (text_.empty()) std::fprintf(stderr, "%s: no token ids in it\n", flags_.text.c_str());
    return !text_.empty();
  }

  std::string GgufPath(const std::string& dtype) const {
    for (const std::string& file : flags_.peer_gguf) {
      if (file.starts_with(dtype + "=")) return file.substr(dtype.size() + 1);
    }
    if (!flags_.model.empty()) return "";
    return StrCat(flags_.work_folder, "/random-124m-", NameOf(MatricesOf(dtype)), ".gguf");
  }

  std::unique_ptr<BenchModel> Load(const std::string& dtype, const std::string& kv,
                                   int num_sequences) {
    const int deepest = *std::max_element(flags_.depths.begin(), flags_.depths.end());
    absl::StatusOr<std::unique_ptr<BenchModel>> model =
        BenchModel::Create({.directory = directory_,
                            .dtype = ParseDType(dtype),
                            .kv_cache_dtype = *ParseDType(kv),
                            .num_threads = flags_.num_threads,
                            .num_sequences = num_sequences,
                            .tokens_per_sequence = kTogetherDepth + kDecodeTokens,
                            .max_tokens = std::max(1024, deepest + 512),
                            .text = text_});
    if (model.ok()) return *std::move(model);
    std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
    return nullptr;
  }

  std::string FormatName(const std::string& dtype, const std::string& kv) const {
    const std::string name = dtype + " weights, " + kv + " K/V";
    return IsGrouped() ? StrCat(name, ", ", shape_.num_kv_heads, " heads") : name;
  }

  // Before the first figure; model_ is loaded.
  void MeasureMachine() {
    if (ceilings_ != nullptr) return;
    ceilings_ = std::make_unique<Ceilings>(model_->NumThreads());
    machine_ = MachineLine(model_->NumThreads()) + ", " + model_->Describe();
    std::printf("%s\n\n", machine_.c_str());
    ResetPeak();
  }

  std::unique_ptr<PeerLlama> MakePeer(const std::string& kv, int num_repeats) const {
    if (flags_.peer_llama.empty() || IsGrouped()) return nullptr;
    return std::make_unique<PeerLlama>(
        PeerOptions{.llama_bench = flags_.peer_llama,
                    .num_threads = model_->NumThreads(),
                    .num_repeats = num_repeats,
                    .flash_attention = flags_.peer_flash_attention,
                    .cache_type = std::string(PeerCacheType(*ParseDType(kv)))});
  }

  // A format of RunByTurns.
  struct Turn {
    std::unique_ptr<BenchModel> model;
    std::unique_ptr<PeerLlama> peer;
    std::string gguf, peer_type;
    Figure figure = {};
    std::vector<double> peers = {}, peer_ceilings = {};  // one for each sample
  };

  // Decode at each depth in every format, and llama.cpp's in its own, a sample of each by turns:
  // what slows the machine down for a while slows all of them.
  bool RunByTurns() {
    std::vector<Turn> turns;
    for (const std::string& dtype : flags_.dtypes) {
      for (const std::string& kv : flags_.kv) {
        model_ = Load(dtype, kv, 1);
        if (model_ == nullptr) return false;
        MeasureMachine();
        std::unique_ptr<PeerLlama> peer = MakePeer(kv, 1);
        turns.push_back({.model = std::move(model_),
                         .peer = std::move(peer),
                         .gguf = GgufPath(dtype),
                         .peer_type = NameOf(MatricesOf(dtype)),
                         .figure = {.work = "", .format = FormatName(dtype, kv)}});
      }
    }
    PrintHeader(stdout);
    int num_cached = 0;
    for (const int depth : flags_.depths) {
      for (Turn& turn : turns) {
        turn.figure = {.work = StrCat("decode at ", depth),
                       .format = turn.figure.format,
                       .num_tokens = kDecodeTokens,
                       .num_steps = kDecodeTokens};
        turn.peers.clear();
        turn.peer_ceilings.clear();
        Fill(turn.model.get(), num_cached, depth);
        for (int i = 0; i < 4; ++i) turn.model->DecodeStep(1, depth + i);
        turn.model->TakeStats();
      }
      num_cached = depth;
      for (int repeat = 0; repeat < flags_.num_repeats; ++repeat) {
        for (Turn& turn : turns) {
          if (!SampleTurn(turn, depth)) return false;
        }
      }
      for (Turn& turn : turns) {
        SetDecodeWork(turn.figure, *turn.model, turn.model->TakeStats());
        if (turn.peer != nullptr) {
          turn.figure.peer = Median(turn.peers);
          turn.figure.peer_ceiling = Median(turn.peer_ceilings);
        }
        Finish(turn.figure, nullptr);
      }
      for (const Turn& turn : turns) CompareTurns(turn, turns[0]);
    }
    return true;
  }

  bool SampleTurn(Turn& turn, int depth) {
    const double before = CeilingNow(turn.figure);
    turn.model->TakeCosts();
    const double seconds = SecondsOf([&] {
      for (int i = 0; i < kDecodeTokens; ++i) turn.model->DecodeStep(1, depth + i);
    });
    const double between = CeilingNow(turn.figure);
    turn.figure.samples.push_back(
        {.seconds = seconds, .ceiling = (before + between) / 2, .ops = turn.model->TakeCosts()});
    if (turn.peer == nullptr) return true;
    const absl::StatusOr<PeerResult> peer = turn.peer->Decode(turn.gguf, depth, kDecodeTokens);
    if (!peer.ok()) {
      std::fprintf(stderr, "%s\n", peer.status().ToString().c_str());
      return false;
    }
    turn.peers.push_back(peer->tokens_per_second);
    turn.figure.peer_program = peer->program;
    turn.peer_ceilings.push_back((between + CeilingNow(turn.figure)) / 2);
    return true;
  }

  // Prints the ratios of a format to the first one and to the peer.
  void CompareTurns(const Turn& turn, const Turn& first) {
    const auto rate = [](const Turn& each, size_t sample) {
      return each.figure.num_tokens / each.figure.samples[sample].seconds;
    };
    TurnRatio over_first{.format = turn.figure.format, .other = first.figure.format};
    TurnRatio over_peer{.format = turn.figure.format, .other = "llama.cpp's " + turn.peer_type};
    for (size_t i = 0; i < turn.figure.samples.size(); ++i) {
      if (&turn != &first) over_first.ratios.push_back(rate(turn, i) / rate(first, i));
      if (turn.peer != nullptr) over_peer.ratios.push_back(rate(turn, i) / turn.peers[i]);
    }
    for (const TurnRatio& ratio : {over_first, over_peer}) {
      if (ratio.ratios.empty()) continue;
      Print(ratio, stdout);
      nlohmann::json json = ToJson(ratio);
      json["work"] = turn.figure.work;
      json_["ratios"].push_back(json);
    }
  }

  bool RunFormat(const std::string& dtype, const std::string& kv) {
    ResetPeak();
    model_ = Load(dtype, kv, kNumTogether);
    if (model_ == nullptr) return false;
    format_ = FormatName(dtype, kv);
    is_first_kv_ = kv == flags_.kv[0];
    peer_ = MakePeer(kv, flags_.num_repeats);
    peer_gguf_ = GgufPath(dtype);
    MeasureMachine();
    PrintHeader(stdout);
    if (Asked("prefill")) {
      for (const int num_tokens : {512, 1024}) MeasurePrefill(num_tokens, 0);
    }
    for (const int depth : flags_.depths) {
      if (Asked("decode")) MeasureDecode(depth);
      if (Asked("prefill") && depth > 0) MeasurePrefill(512, depth);
      if (Asked("rows")) {
        for (const int num_rows : flags_.rows) MeasureRows(num_rows, depth);
      }
    }
    if (Asked("together")) MeasureTogether();
    const double mib = double(PeakBytes() - ceilings_->NumBytes()) / (1 << 20);
    std::printf("%-22s %-22s %6.0f MiB", "peak memory", format_.c_str(), mib);
    const double peer_mib = peer_ == nullptr ? 0 : double(peer_peaks_[PeerKey()]) / (1 << 20);
    if (peer_mib > 0) std::printf("  (peer %.0f MiB)", peer_mib);
    std::printf("\n\n");
    json_["peak_mib"][format_] = mib;
    json_["peer_peak_mib"][format_] = peer_mib;
    model_.reset();
    num_cached_ = 0;
    return true;
  }

  bool Asked(const std::string& work) const {
    const bool is_later = !is_first_kv_ && !flags_.later_kv_works.empty();
    const std::vector<std::string>& works = is_later ? flags_.later_kv_works : flags_.works;
    return std::ranges::find(works, work) != works.end();
  }

  // A chunk of `num_tokens` after `depth` cached ones.
  void MeasurePrefill(int num_tokens, int depth) {
    Figure figure{.work = StrCat("prefill ", num_tokens, depth > 0 ? StrCat(" at ", depth) : ""),
                  .format = format_,
                  .bound = Bound::kGemm,
                  .num_tokens = num_tokens,
                  .num_steps = (num_tokens + kPrefillChunk - 1) / kPrefillChunk};
    FillCache(depth);
    const auto run = [&] { model_->Prefill(0, depth, depth + num_tokens, kPrefillChunk); };
    if (depth == 0) run();  // to warm up, as FillCache does
    const AttentionStats stats = Sample(figure, run);
    const ModelConfig& c = model_->Config();
    // Useful work: the blocks' matmuls for every token, the output matrix for the last token, QK
    // for every key and PV for the V rows read.
    const double attention = double(c.hidden_size) * (c.QkvSize() + c.AttentionSize());
    const double block =
        double(c.num_hidden_layers) * (attention + 2.0 * c.hidden_size * c.intermediate_size);
    figure.weights_work = 2 * (block * num_tokens + double(c.hidden_size) * c.vocab_size);
    figure.attention_work = 2.0 * double(stats.num_value_rows + stats.num_value_rows_read) /
                            flags_.num_repeats * c.HeadDim();
    Finish(figure, [&] { return peer_->Prefill(peer_gguf_, depth, num_tokens); });
  }

  void MeasureDecode(int depth) {
    Figure figure{.work = StrCat("decode at ", depth),
                  .format = format_,
                  .bound = Bound::kRead,
                  .num_tokens = kDecodeTokens,
                  .num_steps = kDecodeTokens};
    FillCache(depth);
    for (int i = 0; i < 4; ++i) model_->DecodeStep(1, depth + i);
    SampleDecode(figure, 1, depth);
    Finish(figure, [&] { return peer_->Decode(peer_gguf_, depth, kDecodeTokens); });
  }

  void MeasureRows(int num_rows, int depth) {
    Figure figure{.work = StrCat(num_rows, num_rows == 1 ? " row at " : " rows at ", depth),
                  .format = format_,
                  .bound = Bound::kRead,
                  .num_tokens = num_rows * kDecodeTokens,
                  .num_steps = kDecodeTokens};
    FillCache(depth);
    model_->VerifyStep(num_rows, depth);
    const AttentionStats stats = Sample(figure, [&] {
      for (int i = 0; i < kDecodeTokens; ++i) model_->VerifyStep(num_rows, depth);
    });
    SetDecodeWork(figure, *model_,
                  {.num_value_rows = stats.num_value_rows / num_rows,
                   .num_value_rows_read = stats.num_value_rows_read / num_rows});
    Finish(figure, [&] { return peer_->Rows(peer_gguf_, num_rows, depth, kDecodeTokens); });
  }

  void MeasureTogether() {
    Figure figure{.work = StrCat(kNumTogether, " sequences at ", kTogetherDepth),
                  .format = format_,
                  .bound = Bound::kRead,
                  .num_tokens = kNumTogether * kDecodeTokens,
                  .num_steps = kDecodeTokens};
    for (int i = 0; i < kNumTogether; ++i) model_->Prefill(i, 0, kTogetherDepth, kPrefillChunk);
    SampleDecode(figure, kNumTogether, kTogetherDepth);
    Finish(figure, [&] {
      return peer_->BatchedDecode(peer_gguf_, kNumTogether, kTogetherDepth, kDecodeTokens);
    });
  }

  // Fills sequence 0 up to `depth`. Depths ascend, so only new positions are computed.
  void FillCache(int depth) {
    Fill(model_.get(), num_cached_, depth);
    num_cached_ = std::max(num_cached_, depth);
  }

  void Fill(BenchModel* model, int from, int depth) const {
    if (flags_.random_cache) {
      model->FillRandom(0, depth);
    } else {
      model->Prefill(0, from, depth, kPrefillChunk);
    }
  }

  // The ceiling at this moment, bytes or FLOPs a second.
  double CeilingNow(const Figure& figure) {
    return figure.bound == Bound::kRead ? ceilings_->ReadBytesPerSecond() : ceilings_->GemmFlops();
  }

  // Runs `work` once for each sample and returns the attention statistics of all samples.
  AttentionStats Sample(Figure& figure, const std::function<void()>& work) {
    double before = CeilingNow(figure);
    model_->TakeStats();
    model_->TakeCosts();
    for (int repeat = 0; repeat < flags_.num_repeats; ++repeat) {
      const double seconds = SecondsOf(work);
      const double after = CeilingNow(figure);
      figure.samples.push_back(
          {.seconds = seconds, .ceiling = (before + after) / 2, .ops = model_->TakeCosts()});
      before = after;
    }
    const AttentionStats stats = model_->TakeStats();
    figure.value_rows_read =
        double(stats.num_value_rows_read) / double(std::max<int64_t>(1, stats.num_value_rows));
    return stats;
  }

  void SampleDecode(Figure& figure, int num_sequences, int depth) {
    SetDecodeWork(figure, *model_, Sample(figure, [&] {
                    for (int i = 0; i < kDecodeTokens; ++i)
                      model_->DecodeStep(num_sequences, depth + i);
                  }));
  }

  // A step reads the weights once, all of K once, and the V rows of non-zero weight
  // (DecodeAttentionBytes). `stats`: of all samples; for steps with several rows of a sequence the
  // mean over the rows, so the V rows are fewer than are read.
  void SetDecodeWork(Figure& figure, const BenchModel& model, const AttentionStats& stats) {
    const ModelConfig& c = model.Config();
    for (const OpCost& op : figure.samples[0].ops) figure.weights_work += double(op.weight_bytes);
    figure.attention_work = DecodeAttentionBytes({.num_heads = c.num_attention_heads,
                                                  .num_kv_heads = c.NumKvHeads(),
                                                  .key_row = model.KeyRowBytes(),
                                                  .value_row = model.ValueRowBytes()},
                                                 stats) /
                            flags_.num_repeats;
    figure.value_rows_read =
        double(stats.num_value_rows_read) / double(std::max<int64_t>(1, stats.num_value_rows));
  }

  void Finish(Figure& figure, const std::function<absl::StatusOr<PeerResult>()>& run_peer) {
    if (peer_ != nullptr && run_peer != nullptr) RunPeerOnce(figure, run_peer);
    Print(figure, stdout);
    json_["figures"].push_back(ToJson(figure));
  }

  // llama.cpp's weights and cache.
  std::string PeerKey() const { return peer_gguf_ + " " + peer_->CacheType(); }

  // Runs llama.cpp once for all our K/V types of its cache's type.
  void RunPeerOnce(Figure& figure, const std::function<absl::StatusOr<PeerResult>()>& run_peer) {
    const auto [found, is_first] = peer_figures_.try_emplace(PeerKey() + " " + figure.work);
    if (is_first) {
      const double before = CeilingNow(figure);
      const absl::StatusOr<PeerResult> peer = run_peer();
      if (peer.ok()) {
        int64_t& peak = peer_peaks_[PeerKey()];
        peak = std::max(peak, peer->peak_bytes);
        found->second.tokens_per_second = peer->tokens_per_second;
        found->second.ceiling = (before + CeilingNow(figure)) / 2;
        found->second.program = peer->program;
      } else {
        std::fprintf(stderr, "%s\n", peer.status().ToString().c_str());
      }
    }
    figure.peer = found->second.tokens_per_second;
    figure.peer_ceiling = found->second.ceiling;
    figure.peer_program = found->second.program;
  }

  void WriteJson() {
    if (flags_.json.empty()) return;
    json_["machine"] = machine_;
    std::ofstream(flags_.json) << json_.dump(2) << "\n";
  }

  static constexpr int kPrefillChunk = 512;  // tokens of a step
  static constexpr int kDecodeTokens = 32;
  static constexpr int kNumTogether = 16;
  static constexpr int kTogetherDepth = 512;

  const Flags& flags_;
  ModelShape shape_;
  std::string directory_, format_, peer_gguf_, machine_;
  std::vector<int32_t> text_;
  struct PeerFigure {
    double tokens_per_second = 0;
    double ceiling = 0;
    nlohmann::json program = {};
  };
  std::map<std::string, PeerFigure> peer_figures_;
  std::map<std::string, int64_t> peer_peaks_;  // bytes by PeerKey
  std::unique_ptr<BenchModel> model_;
  std::unique_ptr<PeerLlama> peer_;
  std::unique_ptr<Ceilings> ceilings_;
  nlohmann::json json_;
  int num_cached_ = 0;  // of sequence 0
  bool is_first_kv_ = true;
};

}  // namespace
}  // namespace lssar::bench

int main(int argc, char** argv) {
  lssar::bench::Flags flags;
  CLI::App app(
      "Benchmarks a whole model: prefill, decode by depth, decode of 16 sequences, peak memory.");
  app.add_option("--model", flags.model,
                 "Checkpoint directory; default: random weights of the 124M shape");
  app.add_option("--work-folder", flags.work_folder, "Where generated weights are stored")
      ->capture_default_str();
  app.add_option("--dtype", flags.dtypes, "Weight types")->delimiter(',')->capture_default_str();
  app.add_option("--kv", flags.kv, "K/V types")->delimiter(',')->capture_default_str();
  app.add_option("--depths", flags.depths, "Tokens already in the cache, ascending")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--kv-heads", flags.kv_heads, "K/V heads of the random weights, divisors of 12")
      ->delimiter(',')
      ->check(CLI::IsMember({1, 2, 3, 4, 6, 12}))
      ->capture_default_str();
  const CLI::IsMember works({"prefill", "decode", "together", "rows"});
  app.add_option("--works", flags.works, "What to measure")
      ->delimiter(',')
      ->check(works)
      ->capture_default_str();
  app.add_option("--later-kv-works", flags.later_kv_works,
                 "What to measure with the K/V types after the first; default: the same")
      ->delimiter(',')
      ->check(works);
  app.add_option("--rows", flags.rows, "Tokens of a step of `rows`")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_flag("--by-turns", flags.by_turns,
               "Decode alone, a sample of every format by turns; prints ratios to the first format")
      ->excludes("--works");
  app.add_flag("--random-cache", flags.random_cache,
               "Fill the cache with random keys instead of computing a prompt");
  app.add_option(
      "--text", flags.text,
      "File of 16-bit token ids instead of synthetic ones, as models/zoo/*/held_out.bin");
  app.add_option("--peer-llama", flags.peer_llama, "Path of llama.cpp's llama-bench");
  app.add_option("--peer-flash-attention", flags.peer_flash_attention,
                 "llama.cpp's -fa; best: the faster of on and off (on with a quantized cache)")
      ->check(CLI::IsMember({"on", "off", "auto", "best"}))
      ->capture_default_str();
  app.add_option("--peer-gguf", flags.peer_gguf,
                 "With --model: TYPE=PATH, llama.cpp's file of the same weights for each --dtype");
  app.add_option("--threads", flags.num_threads, "0: one per core")->capture_default_str();
  app.add_option("--repeats", flags.num_repeats, "Samples of each figure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", flags.json, "Also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  return lssar::bench::Runner(flags).Run();
}

// The whole model on one machine, beside llama.cpp when it is at hand: tokens a second of prefill
// and decode, the share of the measured ceiling, the ratio to the peer, peak memory.
//
//   model_bench                                 a 124M-shape checkpoint with random weights
//   model_bench --peer-llama DIR/llama-bench    the same, and llama.cpp in the same run
//   model_bench --model models/zoo/lssar-6m --text models/zoo/lssar-6m/held_out.bin
//                                               a trained checkpoint's own attention
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

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "tests/bench/bench_model.h"
#include "tests/bench/ceilings.h"
#include "tests/bench/peer_llama.h"
#include "tests/bench/random_checkpoint.h"

namespace lssar::bench {
namespace {

struct Flags {
  std::string model;
  std::string work_folder = "build/bench";
  std::vector<std::string> weights = {"fp16"};
  std::vector<std::string> kv = {"fp16"};
  std::vector<int> depths = {0, 1024, 4096, 16384};
  std::string text;
  std::string peer_llama;
  std::string json;
  int num_threads = 0;
  int num_repeats = 5;
};

struct Figure {
  std::string work;    // "decode at depth 4096"
  std::string format;  // "int8 weights, fp16 K/V"
  std::string ceiling_name;
  std::vector<double> samples = {};   // tokens a second
  std::vector<double> ceilings = {};  // bytes or FLOPs a second, each beside its sample
  double work_per_token = 0;          // bytes or FLOPs that a token takes at least
  double value_rows_read = 0;         // share of V rows
  double peer = 0;                    // tokens a second; 0: no peer
  double peer_ceiling = 0;            // as `ceilings`, beside the peer's run
  OpSeconds op_us = {};               // microseconds a token
};

// Median of the shares of the ceiling, each sample beside the ceiling of its own moment.
double ShareOfCeiling(const Figure& figure) {
  std::vector<double> shares;
  for (size_t i = 0; i < figure.samples.size(); ++i)
    shares.push_back(figure.samples[i] * figure.work_per_token / figure.ceilings[i]);
  return Median(shares);
}

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Linux: forgets the largest resident set so far, so that the next PeakBytes speaks of what
// follows.
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
    if (!Prepare()) return 1;
    for (const std::string& weights : flags_.weights) {
      for (const std::string& kv : flags_.kv) {
        if (!RunFormat(weights, kv)) return 1;
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
      if (!std::filesystem::exists(directory_ + "/model.safetensors")) {
        std::fprintf(stderr, "writing %s\n", directory_.c_str());
        if (!WriteRandomCheckpoint(ModelShape{}, directory_).ok()) return false;
      }
    }
    if (!flags_.text.empty() && !ReadText()) return false;
    if (!flags_.peer_llama.empty() && flags_.model.empty()) {
      for (const bool q8_0 : {false, true}) {
        const std::string path = GgufPath(q8_0);
        if (!std::filesystem::exists(path) && !WriteRandomGguf(ModelShape{}, q8_0, path).ok())
          return false;
      }
    }
    return true;
  }

  // Token ids as 16-bit little-endian words.
  bool ReadText() {
    std::ifstream in(flags_.text, std::ios::binary);
    for (char word[2]; in.read(word, 2);)
      text_.push_back(int32_t{uint8_t(word[0])} | int32_t{uint8_t(word[1])} << 8);
    if (text_.empty()) std::fprintf(stderr, "%s: no token ids there\n", flags_.text.c_str());
    return !text_.empty();
  }

  std::string GgufPath(bool q8_0) const {
    return absl::StrCat(flags_.work_folder, "/random-124m-", q8_0 ? "q8_0" : "f16", ".gguf");
  }

  bool RunFormat(const std::string& weights, const std::string& kv) {
    ResetPeak();
    const int deepest = *std::max_element(flags_.depths.begin(), flags_.depths.end());
    absl::StatusOr<std::unique_ptr<BenchModel>> model =
        BenchModel::Create({.directory = directory_,
                            .weights = ParseDType(weights),
                            .kv_type = *ParseDType(kv),
                            .num_threads = flags_.num_threads,
                            .num_sequences = kNumTogether,
                            .tokens_per_sequence = kTogetherDepth + kDecodeTokens,
                            .max_tokens = std::max(1024, deepest + 512),
                            .text = text_});
    if (!model.ok()) {
      std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
      return false;
    }
    model_ = *std::move(model);
    format_ = weights + " weights, " + kv + " K/V";
    peer_ = flags_.peer_llama.empty() || !flags_.model.empty()
                ? nullptr
                : std::make_unique<PeerLlama>(flags_.peer_llama, model_->NumThreads(),
                                              flags_.num_repeats);
    peer_gguf_ = GgufPath(weights == "int8");
    if (ceilings_ == nullptr) {
      ceilings_ = std::make_unique<Ceilings>(model_->NumThreads());
      machine_ = MachineLine(model_->NumThreads()) + ", " + model_->Describe();
      std::printf("%s\n\n", machine_.c_str());
      ResetPeak();
    }
    std::printf("%-22s %-22s %9s %7s %11s %7s %7s %8s %11s %7s\n", "work", "format", "tokens/s",
                "spread", "ceiling", "share", "V rows", "peer", "ceiling", "ratio");
    for (const int num_tokens : {512, 1024}) MeasurePrefill(num_tokens, 0);
    for (const int depth : flags_.depths) {
      MeasureDecode(depth);
      if (depth > 0) MeasurePrefill(512, depth);
    }
    MeasureTogether();
    const double mib = double(PeakBytes() - ceilings_->NumBytes()) / (1 << 20);
    std::printf("%-22s %-22s %6.0f MiB", "peak memory", format_.c_str(), mib);
    if (peer_peak_bytes_ > 0)
      std::printf("  (peer %.0f MiB)", double(peer_peak_bytes_) / (1 << 20));
    std::printf("\n\n");
    json_["peak_mib"][format_] = mib;
    model_.reset();
    return true;
  }

  // A chunk of `num_tokens` behind `depth` cached ones. The peer has no such test: only at depth 0.
  void MeasurePrefill(int num_tokens, int depth) {
    Figure figure{
        .work = absl::StrCat("prefill ", num_tokens, depth > 0 ? absl::StrCat(" at ", depth) : ""),
        .format = format_,
        .ceiling_name = kProduct};
    const auto run = [&] { model_->Prefill(0, depth, depth + num_tokens); };
    run();
    model_->TakeCounters();
    Sample(figure, num_tokens, run);
    const AttentionCounters counters = model_->TakeCounters();
    const ModelConfig& c = model_->Config();
    // Useful work: the blocks' products for every token, the vocabulary's for the last one, QK for
    // every key and PV for the values read.
    const double block =
        double(c.num_layers) * (4.0 * c.width * c.width + 2.0 * c.width * c.mlp_width);
    const double per_repeat = double(flags_.num_repeats);
    const double flops = 2 * (block * num_tokens + double(c.width) * c.vocab_size +
                              double(counters.num_value_rows + counters.num_value_rows_read) /
                                  per_repeat * c.HeadDim());
    figure.work_per_token = flops / num_tokens;
    if (depth > 0) {
      Finish(figure, counters, nullptr);
    } else {
      Finish(figure, counters, [&] { return peer_->Prefill(peer_gguf_, num_tokens); });
    }
  }

  void MeasureDecode(int depth) {
    Figure figure{
        .work = absl::StrCat("decode at ", depth), .format = format_, .ceiling_name = kRead};
    model_->Prefill(0, prefilled_, depth);
    prefilled_ = std::max(prefilled_, depth);
    for (int i = 0; i < 4; ++i) model_->DecodeStep(1, depth + i);
    model_->TakeCounters();
    Sample(figure, kDecodeTokens, [&] {
      for (int i = 0; i < kDecodeTokens; ++i) model_->DecodeStep(1, depth + i);
    });
    const AttentionCounters counters = model_->TakeCounters();
    figure.work_per_token = BytesPerStep(counters);
    Finish(figure, counters, [&] { return peer_->Decode(peer_gguf_, depth, kDecodeTokens); });
  }

  void MeasureTogether() {
    Figure figure{.work = absl::StrCat(kNumTogether, " sequences at ", kTogetherDepth),
                  .format = format_,
                  .ceiling_name = kRead};
    for (int i = 0; i < kNumTogether; ++i) model_->Prefill(i, 0, kTogetherDepth);
    prefilled_ = 0;  // sequence 0 was overwritten up to kTogetherDepth with the same ids
    model_->TakeCounters();
    Sample(figure, kNumTogether * kDecodeTokens, [&] {
      for (int i = 0; i < kDecodeTokens; ++i) model_->DecodeStep(kNumTogether, kTogetherDepth + i);
    });
    const AttentionCounters counters = model_->TakeCounters();
    figure.work_per_token = BytesPerStep(counters) / kNumTogether;
    Finish(figure, counters, [&] {
      return peer_->BatchedDecode(peer_gguf_, kNumTogether, kTogetherDepth, kDecodeTokens);
    });
  }

  // Bytes or FLOPs a second that the machine can do now.
  double CeilingNow(const Figure& figure) {
    return figure.ceiling_name == kRead ? ceilings_->ReadBytesPerSecond()
                                        : ceilings_->ProductFlops();
  }

  void Sample(Figure& figure, int num_tokens, const std::function<void()>& work) {
    double before = CeilingNow(figure);
    model_->TakeSeconds();
    for (int repeat = 0; repeat < flags_.num_repeats; ++repeat) {
      figure.samples.push_back(num_tokens / SecondsOf(work));
      const double after = CeilingNow(figure);
      figure.ceilings.push_back((before + after) / 2);
      before = after;
    }
    figure.op_us = model_->TakeSeconds();
    for (double& us : figure.op_us) us *= 1e6 / (flags_.num_repeats * num_tokens);
  }

  // Bytes of a step that reads the weights once, K whole and the V rows that count. `counters`: of
  // kDecodeTokens steps, num_repeats times.
  double BytesPerStep(const AttentionCounters& counters) const {
    const ModelConfig& c = model_->Config();
    const double head_row = double(model_->KeyBytesPerToken()) / c.num_layers / c.num_heads;
    const double kv_bytes = double(counters.num_value_rows + counters.num_value_rows_read) *
                            head_row / (flags_.num_repeats * kDecodeTokens);
    return double(model_->WeightBytes()) + kv_bytes;
  }

  void Finish(Figure& figure, const AttentionCounters& counters,
              const std::function<absl::StatusOr<PeerResult>()>& run_peer) {
    figure.value_rows_read = double(counters.num_value_rows_read) /
                             double(std::max<int64_t>(1, counters.num_value_rows));
    if (peer_ != nullptr && run_peer != nullptr) RunPeerOnce(figure, run_peer);
    const double ours = Median(figure.samples);
    const auto [low, high] = std::minmax_element(figure.samples.begin(), figure.samples.end());
    const char* unit = figure.ceiling_name == kRead ? "GB/s" : "GF/s";
    std::printf("%-22s %-22s %9.1f %6.0f%% %6.1f %s %6.0f%% %6.1f%%", figure.work.c_str(),
                figure.format.c_str(), ours, (*high - *low) / ours * 100,
                Median(figure.ceilings) / 1e9, unit, ShareOfCeiling(figure) * 100,
                figure.value_rows_read * 100);
    if (figure.peer > 0) {
      std::printf(" %8.1f %6.1f %s %6.2fx", figure.peer, figure.peer_ceiling / 1e9, unit,
                  ours / figure.peer);
    }
    std::printf("\n");
    PrintTimes(figure);
    std::fflush(stdout);
    json_["figures"].push_back({{"work", figure.work},
                                {"format", figure.format},
                                {"tokens_per_second", ours},
                                {"samples", figure.samples},
                                {"ceiling", figure.ceiling_name},
                                {"ceiling_per_second", figure.ceilings},
                                {"work_per_token", figure.work_per_token},
                                {"share_of_ceiling", ShareOfCeiling(figure)},
                                {"value_rows_read", figure.value_rows_read},
                                {"peer_tokens_per_second", figure.peer},
                                {"peer_ceiling_per_second", figure.peer_ceiling}});
  }

  // Microseconds a token that each kind of op took, on the mean of all samples.
  void PrintTimes(const Figure& figure) const {
    std::printf("  us:");
    for (size_t op = 0; op < figure.op_us.size(); ++op)
      std::printf(" %s %.0f", kOpNames[op], figure.op_us[op]);
    std::printf("\n");
  }

  // The peer runs once, however many K/V types of ours it stands beside.
  void RunPeerOnce(Figure& figure, const std::function<absl::StatusOr<PeerResult>()>& run_peer) {
    const auto [found, is_first] = peer_figures_.try_emplace(peer_gguf_ + " " + figure.work);
    if (is_first) {
      const double before = CeilingNow(figure);
      const absl::StatusOr<PeerResult> peer = run_peer();
      if (peer.ok()) {
        peer_peak_bytes_ = std::max(peer_peak_bytes_, peer->peak_bytes);
        found->second.tokens_per_second = peer->tokens_per_second;
        found->second.ceiling = (before + CeilingNow(figure)) / 2;
      } else {
        std::fprintf(stderr, "%s\n", peer.status().ToString().c_str());
      }
    }
    figure.peer = found->second.tokens_per_second;
    figure.peer_ceiling = found->second.ceiling;
  }

  void WriteJson() {
    if (flags_.json.empty()) return;
    json_["machine"] = machine_;
    json_["peer_peak_mib"] = double(peer_peak_bytes_) / (1 << 20);
    std::ofstream(flags_.json) << json_.dump(2) << "\n";
  }

  static constexpr int kDecodeTokens = 32;
  static constexpr int kNumTogether = 16;
  static constexpr int kTogetherDepth = 512;
  static constexpr char kRead[] = "read bandwidth";
  static constexpr char kProduct[] = "fp32 product";

  const Flags& flags_;
  std::string directory_, format_, peer_gguf_, machine_;
  std::vector<int32_t> text_;
  struct PeerFigure {
    double tokens_per_second = 0;
    double ceiling = 0;
  };
  std::map<std::string, PeerFigure> peer_figures_;
  std::unique_ptr<BenchModel> model_;
  std::unique_ptr<PeerLlama> peer_;
  std::unique_ptr<Ceilings> ceilings_;
  nlohmann::json json_;
  int64_t peer_peak_bytes_ = 0;
  int prefilled_ = 0;
};

}  // namespace
}  // namespace lssar::bench

int main(int argc, char** argv) {
  lssar::bench::Flags flags;
  CLI::App app("Whole-model bench: prefill, decode by depth, 16 sequences together, peak memory.");
  app.add_option("--model", flags.model,
                 "Checkpoint directory; default: random weights of the 124M shape");
  app.add_option("--work-folder", flags.work_folder, "Where generated weights are kept")
      ->capture_default_str();
  app.add_option("--weights", flags.weights, "Weight types")->delimiter(',')->capture_default_str();
  app.add_option("--kv", flags.kv, "K/V types")->delimiter(',')->capture_default_str();
  app.add_option("--depths", flags.depths, "Tokens already in the cache, rising")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--text", flags.text,
                 "16-bit token ids in place of made-up ones, as in models/zoo/*/held_out.bin");
  app.add_option("--peer-llama", flags.peer_llama, "Path of llama.cpp's llama-bench");
  app.add_option("--threads", flags.num_threads, "0: one per core")->capture_default_str();
  app.add_option("--repeats", flags.num_repeats, "Samples of each figure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", flags.json, "Also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  return lssar::bench::Runner(flags).Run();
}

#include "tests/bench/peer_llama.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "absl/strings/str_join.h"
#include "base/str_cat.h"
#include "tests/bench/median.h"

namespace lssar::bench {
namespace {

struct ChildOutput {
  std::string text;
  int64_t peak_bytes = 0;
};

// The most that a process had in memory so far. nullopt: it has ended.
std::optional<int64_t> PeakBytes(pid_t process) {
  std::ifstream in(StrCat("/proc/", process, "/status"));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmHWM:")) return std::atoll(line.c_str() + 6) << 10;
  }
  return std::nullopt;
}

constexpr int kMillisecondsOfASample = 50;

enum class Errors : uint8_t { kDropped, kInText };

absl::StatusOr<ChildOutput> RunChild(std::vector<std::string> arguments,
                                     Errors errors = Errors::kDropped) {
  int ends[2];
  if (pipe(ends) != 0) return absl::InternalError("pipe failed");
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(errors == Errors::kInText ? ends[1] : open("/dev/null", O_WRONLY), STDERR_FILENO);
    close(ends[0]);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  ChildOutput output;
  std::array<char, 4096> block;
  // The last sample counts: wait4's ru_maxrss has this process, too, of which the child was a copy.
  for (ssize_t n = 1; n > 0;) {
    pollfd end{.fd = ends[0], .events = POLLIN, .revents = 0};
    const bool has_text = poll(&end, 1, kMillisecondsOfASample) > 0;
    output.peak_bytes = PeakBytes(child).value_or(output.peak_bytes);
    if (!has_text) continue;
    n = read(ends[0], block.data(), block.size());
    if (n > 0) output.text.append(block.data(), size_t(n));
  }
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    return absl::InternalError(StrCat(absl::StrJoin(arguments, " "), ": exit status ", status));
  }
  return output;
}

// The fields of a row of a bench that tell which program ran, and how.
nlohmann::json AboutProgram(const nlohmann::json& row) {
  nlohmann::json about = nlohmann::json::object();
  for (const char* name : {"build_commit", "build_number", "cpu_info", "gpu_info", "backends",
                           "model_type", "n_threads", "type_k", "type_v", "flash_attn"}) {
    if (row.contains(name)) about[name] = row[name];
  }
  return about;
}

// llama-bench -o json prints a list of one object per test, with the repetitions in samples_ts.
absl::StatusOr<PeerResult> FromLlamaBench(std::vector<std::string> arguments) {
  absl::StatusOr<ChildOutput> output = RunChild(arguments);
  if (!output.ok()) return output.status();
  const nlohmann::json tests = nlohmann::json::parse(output->text, nullptr, false);
  if (!tests.is_array() || tests.size() != 1 || !tests[0].contains("samples_ts")) {
    return absl::InternalError(
        StrCat(arguments[0], " printed no test: ", output->text.substr(0, 200)));
  }
  return PeerResult{Median(tests[0]["samples_ts"].get<std::vector<double>>()), output->peak_bytes,
                    AboutProgram(tests[0])};
}

absl::StatusOr<PeerText> RunLookup(std::vector<std::string> arguments) {
  absl::StatusOr<ChildOutput> child = RunChild(arguments, Errors::kInText);
  if (!child.ok()) return child.status();
  PeerText text{.output = std::move(child->text)};
  const auto number_after = [&](std::string_view name) {
    const size_t at = text.output.rfind(name);
    return at == std::string::npos ? 0.0 : std::atof(text.output.c_str() + at + name.size());
  };
  const size_t decoded = text.output.rfind("decoded ");
  if (decoded != std::string::npos)
    text.tokens_per_second =
        std::atof(text.output.c_str() + text.output.find("speed:", decoded) + 6);
  text.num_draft_tokens = int(number_after("n_drafted    ="));
  text.num_accepted_tokens = int(number_after("n_accept     ="));
  if (text.tokens_per_second > 0) return text;
  return absl::InternalError(StrCat(arguments[0], " printed no speed"));
}

}  // namespace

std::string_view PeerCacheType(DType kv) {
  switch (kv) {
    case DType::kF32: return "f32";
    case DType::kI8: return "q8_0";
    default: return "f16";
  }
}

absl::StatusOr<PeerResult> PeerLlama::Prefill(const std::string& gguf, int depth,
                                              int num_tokens) const {
  return LlamaBench({"-m", gguf, "-p", StrCat(num_tokens), "-n", "0", "-d", StrCat(depth)});
}

absl::StatusOr<PeerResult> PeerLlama::Decode(const std::string& gguf, int depth,
                                             int num_tokens) const {
  return LlamaBench({"-m", gguf, "-p", "0", "-n", StrCat(num_tokens), "-d", StrCat(depth)});
}

absl::StatusOr<PeerResult> PeerLlama::LlamaBench(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), options_.llama_bench);
  arguments.insert(arguments.end(), {"-t", StrCat(options_.num_threads), "-r",
                                     StrCat(options_.num_repeats), "-o", "json"});
  return Fastest(std::move(arguments), FromLlamaBench);
}

absl::StatusOr<PeerResult> PeerLlama::Fastest(
    std::vector<std::string> arguments,
    const std::function<absl::StatusOr<PeerResult>(std::vector<std::string>)>& run) const {
  const std::string& type = options_.cache_type;
  arguments.insert(arguments.end(), {"-ctk", type, "-ctv", type, "-fa"});
  const auto with = [&](std::string_view flash_attention) {
    std::vector<std::string> all = arguments;
    all.emplace_back(flash_attention);
    return run(std::move(all));
  };
  if (options_.flash_attention != "best") return with(options_.flash_attention);
  absl::StatusOr<PeerResult> on = with("on");
  if (!on.ok() || type.starts_with("q")) return on;
  absl::StatusOr<PeerResult> off = with("off");
  if (!off.ok() || on->tokens_per_second > off->tokens_per_second) return off.ok() ? on : off;
  off->peak_bytes = on->peak_bytes;
  return off;
}

std::string PeerLlama::Program(const char* name) const {
  return options_.llama_bench.substr(0, options_.llama_bench.rfind('/') + 1) + name;
}

absl::StatusOr<PeerResult> PeerLlama::BatchedBench(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), Program("llama-batched-bench"));
  // -pps computes one prompt for all sequences.
  arguments.insert(arguments.end(),
                   {"-t", StrCat(options_.num_threads), "-pps", "--output-format", "jsonl"});
  return Fastest(std::move(arguments),
                 [this](std::vector<std::string> all) { return RunBatched(std::move(all)); });
}

absl::StatusOr<PeerResult> PeerLlama::RunBatched(std::vector<std::string> arguments) const {
  std::vector<double> samples;
  PeerResult result;
  for (int repeat = 0; repeat < options_.num_repeats; ++repeat) {
    absl::StatusOr<ChildOutput> output = RunChild(arguments);
    if (!output.ok()) return output.status();
    result.peak_bytes = std::max(result.peak_bytes, output->peak_bytes);
    std::istringstream lines(output->text);
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
      if (!row.is_object() || !row.contains("speed_tg")) continue;
      samples.push_back(row["speed_tg"].get<double>());
      result.program = AboutProgram(row);
    }
  }
  if (samples.empty()) return absl::InternalError(StrCat(arguments[0], " printed no speed_tg"));
  result.tokens_per_second = Median(samples);
  return result;
}

// Each sequence gets a copy of the prompt's cache. Decoding then reads as much as if every prompt
// had been computed.
absl::StatusOr<PeerResult> PeerLlama::BatchedDecode(const std::string& gguf, int num_sequences,
                                                    int depth, int num_tokens) const {
  return BatchedBench({"-m", gguf, "-c", StrCat(num_sequences * (depth + num_tokens)), "-npp",
                       StrCat(depth), "-ntg", StrCat(num_tokens), "-npl", StrCat(num_sequences)});
}

// -kvu: the sequences share the prompt's cache, as rows of one sequence do.
absl::StatusOr<PeerResult> PeerLlama::Rows(const std::string& gguf, int num_rows, int depth,
                                           int num_steps) const {
  return BatchedBench({"-m", gguf, "-kvu", "-c", StrCat(depth + num_rows * num_steps), "-npp",
                       StrCat(depth), "-ntg", StrCat(num_steps), "-npl", StrCat(num_rows)});
}

absl::StatusOr<PeerText> PeerLlama::Lookup(const std::string& gguf, const std::string& prompt_file,
                                           int num_prompt_tokens, int num_tokens,
                                           int num_draft_tokens) const {
  PeerText fastest;
  // Greedy, with as little sampling as there is.
  const absl::StatusOr<PeerResult> result =
      Fastest({Program("llama-lookup"), "-m", gguf, "-f", prompt_file, "-n", StrCat(num_tokens),
               "-c", StrCat(num_prompt_tokens + num_tokens + num_draft_tokens + 64), "-t",
               StrCat(options_.num_threads), "--samplers", "top_k", "--top-k", "1",
               "--spec-draft-n-max", StrCat(num_draft_tokens)},
              [&](std::vector<std::string> all) -> absl::StatusOr<PeerResult> {
                absl::StatusOr<PeerText> text = RunLookup(std::move(all));
                if (!text.ok()) return text.status();
                PeerResult rate{.tokens_per_second = text->tokens_per_second};
                if (rate.tokens_per_second > fastest.tokens_per_second) fastest = *std::move(text);
                return rate;
              });
  if (!result.ok()) return result.status();
  return fastest;
}

}  // namespace lssar::bench

#include "tests/bench/peer_llama.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>
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
  for (ssize_t n; (n = read(ends[0], block.data(), block.size())) > 0;)
    output.text.append(block.data(), size_t(n));
  close(ends[0]);
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) != child || status != 0) {
    return absl::InternalError(StrCat(absl::StrJoin(arguments, " "), ": exit status ", status));
  }
  output.peak_bytes = int64_t{usage.ru_maxrss} << 10;
  return output;
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
  return PeerResult{Median(tests[0]["samples_ts"].get<std::vector<double>>()), output->peak_bytes};
}

}  // namespace

absl::StatusOr<PeerResult> PeerLlama::Prefill(const std::string& gguf, int depth,
                                              int num_tokens) const {
  return LlamaBench({"-m", gguf, "-p", StrCat(num_tokens), "-n", "0", "-d", StrCat(depth)});
}

absl::StatusOr<PeerResult> PeerLlama::Decode(const std::string& gguf, int depth,
                                             int num_tokens) const {
  return LlamaBench({"-m", gguf, "-p", "0", "-n", StrCat(num_tokens), "-d", StrCat(depth)});
}

absl::StatusOr<PeerResult> PeerLlama::LlamaBench(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), llama_bench_);
  arguments.insert(arguments.end(),
                   {"-t", StrCat(num_threads_), "-r", StrCat(num_repeats_), "-o", "json", "-fa"});
  return Fastest(std::move(arguments), FromLlamaBench);
}

// `arguments` end with "-fa".
absl::StatusOr<PeerResult> PeerLlama::Fastest(
    std::vector<std::string> arguments,
    const std::function<absl::StatusOr<PeerResult>(std::vector<std::string>)>& run) const {
  const auto with = [&](std::string_view flash_attention) {
    std::vector<std::string> all = arguments;
    all.emplace_back(flash_attention);
    return run(std::move(all));
  };
  if (flash_attention_ != "best") return with(flash_attention_);
  absl::StatusOr<PeerResult> on = with("on");
  absl::StatusOr<PeerResult> off = with("off");
  if (!on.ok() || !off.ok()) return on.ok() ? off : on;
  return on->tokens_per_second > off->tokens_per_second ? on : off;
}

std::string PeerLlama::Program(const char* name) const {
  return llama_bench_.substr(0, llama_bench_.rfind('/') + 1) + name;
}

absl::StatusOr<PeerResult> PeerLlama::BatchedBench(std::vector<std::string> arguments) const {
  arguments.insert(arguments.begin(), Program("llama-batched-bench"));
  // -pps computes one prompt for all sequences.
  arguments.insert(arguments.end(),
                   {"-t", StrCat(num_threads_), "-pps", "--output-format", "jsonl", "-fa"});
  return Fastest(std::move(arguments),
                 [this](std::vector<std::string> all) { return RunBatched(std::move(all)); });
}

absl::StatusOr<PeerResult> PeerLlama::RunBatched(std::vector<std::string> arguments) const {
  std::vector<double> samples;
  int64_t peak_bytes = 0;
  for (int repeat = 0; repeat < num_repeats_; ++repeat) {
    absl::StatusOr<ChildOutput> output = RunChild(arguments);
    if (!output.ok()) return output.status();
    peak_bytes = std::max(peak_bytes, output->peak_bytes);
    std::istringstream lines(output->text);
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
      if (row.is_object() && row.contains("speed_tg"))
        samples.push_back(row["speed_tg"].get<double>());
    }
  }
  if (samples.empty()) return absl::InternalError(StrCat(arguments[0], " printed no speed_tg"));
  return PeerResult{Median(samples), peak_bytes};
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
  const std::string program = Program("llama-lookup");
  // Greedy, with as little sampling as there is.
  absl::StatusOr<ChildOutput> child =
      RunChild({program, "-m", gguf, "-f", prompt_file, "-n", StrCat(num_tokens), "-c",
                StrCat(num_prompt_tokens + num_tokens + num_draft_tokens + 64), "-t",
                StrCat(num_threads_), "-fa", flash_attention_, "--samplers", "top_k", "--top-k",
                "1", "--spec-draft-n-max", StrCat(num_draft_tokens)},
               Errors::kInText);
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
  return absl::InternalError(StrCat(program, " printed no speed"));
}

}  // namespace lssar::bench

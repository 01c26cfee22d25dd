#include "clients/cli/passkey.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/rpc_calls.h"

namespace lssar::cli {
namespace {

constexpr absl::string_view kHead =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. "
    "I will quiz you about the important information there.";
constexpr absl::string_view kQuestion = "What is the pass key? The pass key is";
constexpr uint64_t kMaxKey = 50000;
// Tokens of a document besides the filler, about.
constexpr int kFrameTokens = 110;

// Each document is shorter by this, which leaves space for the answer.
constexpr int kAnswerTokens = 20;

absl::Status RunTrial(Service* stub, const SchedulingFlags& scheduling, Interrupt* interrupt,
                      PasskeyTrial* trial) {
  const PasskeyDocument& document = trial->document;
  ASSIGN_OR_RETURN(const auto prompt, Tokenize(stub, document.text, std::nullopt, interrupt));
  ASSIGN_OR_RETURN(const auto whole, Tokenize(stub, StrCat(document.text, " ", document.key, "."),
                                              std::nullopt, interrupt));
  // Else the ids behind those of the prompt are no answer to it, and a hit would be one to nothing.
  if (whole.size() <= prompt.size() || !std::equal(prompt.begin(), prompt.end(), whole.begin())) {
    return absl::InternalError(
        StrCat("the tokenizer gives the answer no tokens of its own: the ids of the document with "
               "the answer \"",
               document.key, ".\" do not begin with those of the document alone"));
  }
  const std::vector<int32_t> expected(whole.begin() + int64_t(prompt.size()), whole.end());
  trial->num_prompt_tokens = int(prompt.size());

  v1::GenerateRequest request;
  FillScheduling(scheduling, &request);
  request.mutable_tokens()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(int32_t(expected.size()));
  request.set_ignore_eos(true);
  request.set_logprobs(0);
  GenerateResult result;
  RETURN_IF_ERROR(RetryRefused(interrupt, [&] {
    return RunGenerate(
        stub, request, interrupt, [](const v1::Delta&) {}, &result);
  }));
  std::vector<int32_t> got;
  for (const v1::Token& token : result.choices[0].tokens) {
    got.push_back(token.token().id());
    trial->answer += token.token().piece();
  }
  trial->is_hit = got == expected;
  if (result.finished) trial->attention = result.finished->receipt().attention();
  trial->is_done = true;
  return absl::OkStatus();
}

}  // namespace

uint64_t PasskeyRandom::Next() {
  state_ += 0x9E3779B97F4A7C15u;
  uint64_t bits = state_;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
  return bits ^ (bits >> 31);
}

PasskeyDocument MakePasskeyDocument(int num_filler, std::optional<double> depth,
                                    PasskeyRandom* random) {
  LSSAR_CHECK(num_filler >= 0);
  PasskeyDocument document;
  document.key = StrCat(1 + random->Next() % kMaxKey);
  document.depth = depth.has_value() ? *depth : double(random->Next() >> 11) * 0x1p-53;
  // Halves go to the even neighbour, as with Python's round.
  const auto key_idx = int(std::nearbyint(document.depth * num_filler));
  LSSAR_CHECK(key_idx >= 0 && key_idx <= num_filler);
  document.text = std::string(kHead);
  for (int i = 0; i <= num_filler; ++i) {
    if (i == key_idx) {
      document.text += StrCat(" The pass key is ", document.key, ". Remember it. ", document.key,
                              " is the pass key.");
    }
    if (i < num_filler) document.text += StrCat(" ", kPasskeyFiller);
  }
  document.text += StrCat(" ", kQuestion);
  return document;
}

int NumPasskeyFiller(int length, int filler_tokens) {
  LSSAR_CHECK(filler_tokens > 0);
  return std::max(0, (length - kFrameTokens) / filler_tokens);
}

Interval WilsonInterval(int num_hits, int num_trials) {
  LSSAR_CHECK(num_hits >= 0 && num_hits <= num_trials);
  if (num_trials == 0) return {};
  constexpr double kZ = 1.959963984540054;  // 97.5% point of the standard normal
  const double n = num_trials;
  const double share = num_hits / n;
  const double denominator = 1 + kZ * kZ / n;
  const double centre = (share + kZ * kZ / (2 * n)) / denominator;
  const double half = kZ * std::sqrt(share * (1 - share) / n + kZ * kZ / (4 * n * n)) / denominator;
  return {.low = num_hits == 0 ? 0.0 : std::max(0.0, centre - half),
          .high = num_hits == num_trials ? 1.0 : std::min(1.0, centre + half)};
}

std::vector<PasskeyTrial> MakePasskeyTrials(const PasskeyOptions& options, int filler_tokens) {
  LSSAR_CHECK(options.num_trials.size() == 1 ||
              options.num_trials.size() == options.lengths.size());
  std::vector<std::optional<double>> depths(options.depths.begin(), options.depths.end());
  if (depths.empty()) depths.emplace_back();
  std::vector<PasskeyTrial> trials;
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    const int length = options.lengths[i];
    const int num_trials = options.num_trials[options.num_trials.size() == 1 ? 0 : i];
    const int num_filler = NumPasskeyFiller(length - kAnswerTokens, filler_tokens);
    PasskeyRandom random(options.seed);
    int number = 0;
    for (const std::optional<double>& depth : depths) {
      for (int trial = 0; trial < num_trials; ++trial) {
        PasskeyTrial& added = trials.emplace_back();
        added.length = length;
        added.number = number++;
        added.document = MakePasskeyDocument(num_filler, depth, &random);
      }
    }
  }
  return trials;
}

absl::StatusOr<int> CountFillerTokens(Service* stub) {
  Interrupt interrupt;
  ASSIGN_OR_RETURN(const auto ids, Tokenize(stub, std::string(kPasskeyFiller), false, &interrupt));
  if (ids.empty()) return absl::InternalError("the tokenizer gives the filler no tokens");
  return int(ids.size());
}

absl::Status RunPasskeyTrials(Service* stub, const PasskeyOptions& options, Interrupt* interrupt,
                              std::vector<PasskeyTrial>* trials,
                              const std::function<absl::Status(const PasskeyTrial&)>& on_done) {
  int64_t num_all_tokens = 0;
  for (const PasskeyTrial& trial : *trials) num_all_tokens += trial.length;
  std::mutex mutex;  // guards progress, num_done and first_error
  ProgressBar progress("passkey", num_all_tokens);
  size_t num_done = 0;
  const auto advance = [&](const PasskeyTrial& trial) {
    progress.Advance(trial.length, StrCat(++num_done, "/", trials->size(), " keys"));
  };
  for (const PasskeyTrial& trial : *trials) {
    if (trial.is_done) advance(trial);
  }
  absl::Status first_error;
  std::atomic<size_t> next_idx = 0;
  const auto work = [&] {
    for (size_t idx = next_idx++; idx < trials->size(); idx = next_idx++) {
      PasskeyTrial& trial = (*trials)[idx];
      if (trial.is_done) continue;
      absl::Status status = RunTrial(stub, options.scheduling, interrupt, &trial);
      const std::lock_guard lock(mutex);
      if (status.ok()) status = on_done(trial);
      if (!status.ok()) {
        first_error.Update(status);
        next_idx = trials->size();
        return;
      }
      advance(trial);
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < options.max_concurrency; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (interrupt->Fired()) return absl::CancelledError("stopped by Ctrl-C");
  return first_error;
}

}  // namespace lssar::cli

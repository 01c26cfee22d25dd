#include "clients/cli/passkey_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "clients/cli/connection.h"
#include "clients/cli/generate_call.h"
#include "clients/cli/progress_bar.h"
#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

// The reference probes this much under each length, which leaves room for the answer.
constexpr int kAnswerRoom = 20;
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{2000};
// Ten minutes: a queue that never empties is a failure.
constexpr int kMostRefusals = 300;

absl::StatusOr<std::vector<int32_t>> Tokenize(v1::Inference::StubInterface* stub,
                                              const std::string& text, std::optional<bool> add_bos,
                                              Interrupt* interrupt) {
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  v1::TokenizeRequest request;
  request.set_text(text);
  if (add_bos.has_value()) request.set_add_bos(*add_bos);
  v1::TokenizeReply reply;
  absl::Status status = ToStatus(stub->Tokenize(&context, request, &reply));
  if (!status.ok()) return status;
  return std::vector<int32_t>(reply.ids().begin(), reply.ids().end());
}

// Generates, again and again after growing pauses while the server's queue is full.
absl::Status GenerateWithPatience(v1::Inference::StubInterface* stub,
                                  const v1::GenerateRequest& request, Interrupt* interrupt,
                                  GenerateResult* result) {
  auto pause = kFirstPause;
  for (int num_refusals = 0;; ++num_refusals, pause = std::min(2 * pause, kLongestPause)) {
    absl::Status status = RunGenerate(
        stub, request, interrupt, [](const v1::Delta&) {}, result);
    if (status.code() != absl::StatusCode::kResourceExhausted || interrupt->Fired() ||
        num_refusals == kMostRefusals) {
      return status;
    }
    std::this_thread::sleep_for(pause);
  }
}

absl::Status RunTrial(v1::Inference::StubInterface* stub, Interrupt* interrupt,
                      PasskeyTrial* trial) {
  const PasskeyDocument& document = trial->document;
  const auto prompt = Tokenize(stub, document.text, std::nullopt, interrupt);
  if (!prompt.ok()) return prompt.status();
  const auto whole =
      Tokenize(stub, StrCat(document.text, " ", document.key, "."), std::nullopt, interrupt);
  if (!whole.ok()) return whole.status();
  if (whole->size() <= prompt->size()) {
    return absl::InternalError("the tokenizer gave the answer no tokens of its own");
  }
  const std::vector<int32_t> want(whole->begin() + static_cast<int64_t>(prompt->size()),
                                  whole->end());
  trial->num_prompt_tokens = static_cast<int>(prompt->size());

  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(prompt->begin(), prompt->end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(static_cast<int32_t>(want.size()));
  request.set_ignore_eos(true);
  request.set_logprobs(0);
  GenerateResult result;
  absl::Status status = GenerateWithPatience(stub, request, interrupt, &result);
  if (!status.ok()) return status;
  std::vector<int32_t> got;
  for (const v1::Token& token : result.choices[0].tokens) {
    got.push_back(token.token().id());
    trial->answer += token.token().piece();
  }
  trial->is_hit = got == want;
  return absl::OkStatus();
}

}  // namespace

std::vector<PasskeyTrial> MakePasskeyTrials(const PasskeyOptions& options, int filler_tokens) {
  LSSAR_CHECK(options.num_trials.size() == 1 ||
              options.num_trials.size() == options.lengths.size());
  std::vector<std::optional<double>> depths(options.depths.begin(), options.depths.end());
  if (depths.empty()) depths.emplace_back();
  std::vector<PasskeyTrial> trials;
  for (size_t i = 0; i < options.lengths.size(); ++i) {
    const int length = options.lengths[i];
    const int num_trials = options.num_trials[options.num_trials.size() == 1 ? 0 : i];
    const int num_filler = NumPasskeyFiller(length - kAnswerRoom, filler_tokens);
    PythonRandom rng(options.seed);
    for (const std::optional<double>& depth : depths) {
      for (int trial = 0; trial < num_trials; ++trial) {
        PasskeyTrial& added = trials.emplace_back();
        added.length = length;
        added.document = MakePasskeyDocument(num_filler, depth, &rng);
      }
    }
  }
  return trials;
}

absl::StatusOr<int> CountFillerTokens(v1::Inference::StubInterface* stub) {
  Interrupt interrupt;
  const auto ids = Tokenize(stub, std::string(kPasskeyFiller), false, &interrupt);
  if (!ids.ok()) return ids.status();
  if (ids->empty()) return absl::InternalError("the tokenizer gave the filler no tokens");
  return static_cast<int>(ids->size());
}

absl::Status RunPasskeyTrials(v1::Inference::StubInterface* stub, int num_concurrent,
                              Interrupt* interrupt, std::vector<PasskeyTrial>* trials) {
  int64_t num_all_tokens = 0;
  for (const PasskeyTrial& trial : *trials) num_all_tokens += trial.length;
  std::mutex mutex;  // guards progress, num_done and first_error
  ProgressBar progress("passkey", num_all_tokens);
  size_t num_done = 0;
  absl::Status first_error;
  std::atomic<size_t> next_idx = 0;
  const auto work = [&] {
    for (size_t idx = next_idx++; idx < trials->size(); idx = next_idx++) {
      PasskeyTrial& trial = (*trials)[idx];
      absl::Status status = RunTrial(stub, interrupt, &trial);
      const std::lock_guard lock(mutex);
      if (!status.ok()) {
        first_error.Update(status);
        next_idx = trials->size();
        return;
      }
      progress.Advance(trial.length, StrCat(++num_done, "/", trials->size(), " keys"));
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < num_concurrent; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  if (interrupt->Fired()) return absl::CancelledError("stopped by Ctrl-C");
  return first_error;
}

}  // namespace lssar::cli

#include "clients/cli/request_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

absl::Status AddLogitBiases(const std::vector<std::string>& entries, v1::Sampling* sampling) {
  for (const std::string& entry : entries) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(entry, absl::MaxSplits(':', 1));
    int32_t id = 0;
    float bias = 0;
    if (!absl::SimpleAtoi(parts.first, &id) || !absl::SimpleAtof(parts.second, &bias)) {
      return absl::InvalidArgumentError(
          StrCat("--logit-bias: '", entry, "' is not ID:BIAS, as in 17:-2.5"));
    }
    (*sampling->mutable_logit_bias())[id] = bias;
  }
  return absl::OkStatus();
}

void AddSamplingGroup(CLI::App* app, SamplingFlags* flags) {
  const auto add = [app](const char* name, auto& value, const char* text, const char* about) {
    app->add_option(name, value, about)->option_text(text)->group("Sampling");
  };
  const auto add_list = [app](const char* name, auto& values, const char* text, const char* about) {
    app->add_option(name, values, about)
        ->option_text(text)
        ->group("Sampling")
        ->allow_extra_args(false);
  };
  add("--temperature", flags->temperature, "X", "0 is greedy [0 to 100; default 1]");
  add("--top-k", flags->top_k, "N",
      "keep the N most probable tokens [0 to vocabulary; default 0: off]");
  add("--top-p", flags->top_p, "X",
      "keep the most probable tokens up to this total probability [over 0 to 1; default 1]");
  add("--min-p", flags->min_p, "X",
      "keep tokens with this share of the highest probability [0 to 1; default 0]");
  add("--repetition-penalty", flags->repetition_penalty, "X",
      "penalty on tokens of prompt and output [over 0 to 10; default 1]");
  add("--presence-penalty", flags->presence_penalty, "X",
      "penalty on tokens of the output, once [-2 to 2; default 0]");
  add("--frequency-penalty", flags->frequency_penalty, "X",
      "penalty on tokens of the output, per occurrence [-2 to 2; default 0]");
  add_list("--logit-bias", flags->logit_biases, "ID:X",
           "add X to a token's logit; repeatable [-100 to 100, up to 1024]");
  add_list("--allowed-token-id", flags->allowed_token_ids, "ID",
           "sample only these tokens; repeatable");
  add_list("--banned-token-id", flags->banned_token_ids, "ID", "never sample a token; repeatable");
  add("--seed", flags->seed, "N",
      "the same request and seed give the same text [0 to 2^64-1; default: random]");
}

}  // namespace

void AddSchedulingFlags(CLI::App* app, SchedulingFlags* flags) {
  AddQueueFlags(app, flags);
  constexpr char kGroup[] =
      "Another attention (a server allows it with --allow-attention-override)";
  app->add_option("--attention-p", flags->attention.p,
                  "power of the re-weighting [over 0 to 1000; default: the checkpoint's]")
      ->option_text("P")
      ->group(kGroup);
  app->add_option("--attention-kind", flags->attention.kind,
                  "lssar, lssa, softmax, ... as in config.json [default: the checkpoint's]")
      ->option_text("KIND")
      ->group(kGroup);
  app->add_option("--attention-phi", flags->attention.phi, "phi of kind phi: relu, gelu, ...")
      ->option_text("NAME")
      ->group(kGroup);
}

void AddQueueFlags(CLI::App* app, SchedulingFlags* flags) {
  constexpr char kGroup[] = "Scheduling and prefix cache";
  app->add_option("--priority", flags->priority, "higher runs first [-10 to 10; default 0]")
      ->option_text("N")
      ->group(kGroup);
  app->add_flag("--no-prefix-caching", flags->no_prefix_caching,
                "compute the whole prompt and do not cache it [default: use the prefix cache]")
      ->group(kGroup);
  app->add_option("--cache-salt", flags->cache_salt,
                  "share cached prompts only with equal salts [up to 128 bytes; default: none]")
      ->option_text("TEXT")
      ->group(kGroup);
  app->add_option("--checkpoint-hash", flags->checkpoint_hash,
                  "fail unless this checkpoint answers (`lssar info`) [default: any]")
      ->option_text("HASH")
      ->group(kGroup);
}

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags) {
  constexpr char kGroup[] = "Length and end";
  app->add_option("--max-tokens", flags->max_tokens,
                  "most new tokens [1 to what the context holds; default 256]")
      ->option_text("N")
      ->group(kGroup);
  app->add_option("--min-tokens", flags->min_tokens,
                  "least new tokens: EOS and stops are ignored before [0 to max-tokens; default 0]")
      ->option_text("N")
      ->group(kGroup);
  app->add_option("--stop", flags->stop_strings,
                  "end before this text; repeatable [1 to 256 bytes, up to 16]")
      ->option_text("TEXT")
      ->group(kGroup)
      ->allow_extra_args(false);
  app->add_option("--stop-token-id", flags->stop_token_ids,
                  "end before this token; repeatable [up to 64]")
      ->option_text("ID")
      ->group(kGroup)
      ->allow_extra_args(false);
  app->add_flag("--ignore-eos", flags->ignore_eos, "continue after the end-of-text token")
      ->group(kGroup);
  app->add_option("--speculative-tokens", flags->speculative_tokens,
                  "most draft tokens in a step; 0: no speculative decoding; the text is the same "
                  "[0 to 64; default: the server's]")
      ->option_text("N")
      ->group("Scheduling and prefix cache");
  AddSamplingGroup(app, flags);
  AddSchedulingFlags(app, &flags->scheduling);
}

absl::Status FillRequest(const SamplingFlags& flags, v1::GenerateRequest* request) {
  v1::Sampling* sampling = request->mutable_sampling();
  if (flags.temperature) sampling->set_temperature(*flags.temperature);
  if (flags.top_k) sampling->set_top_k(*flags.top_k);
  if (flags.top_p) sampling->set_top_p(*flags.top_p);
  if (flags.min_p) sampling->set_min_p(*flags.min_p);
  if (flags.repetition_penalty) sampling->set_repetition_penalty(*flags.repetition_penalty);
  if (flags.presence_penalty) sampling->set_presence_penalty(*flags.presence_penalty);
  if (flags.frequency_penalty) sampling->set_frequency_penalty(*flags.frequency_penalty);
  if (flags.seed) sampling->set_seed(*flags.seed);
  sampling->mutable_allowed_token_ids()->Add(flags.allowed_token_ids.begin(),
                                             flags.allowed_token_ids.end());
  sampling->mutable_banned_token_ids()->Add(flags.banned_token_ids.begin(),
                                            flags.banned_token_ids.end());
  if (flags.max_tokens) request->set_max_tokens(*flags.max_tokens);
  if (flags.min_tokens) request->set_min_tokens(*flags.min_tokens);
  if (flags.ignore_eos) request->set_ignore_eos(true);
  if (flags.speculative_tokens) request->set_speculative_tokens(*flags.speculative_tokens);
  for (const std::string& stop : flags.stop_strings) request->add_stop_strings(stop);
  request->mutable_stop_token_ids()->Add(flags.stop_token_ids.begin(), flags.stop_token_ids.end());
  FillScheduling(flags.scheduling, request);
  return AddLogitBiases(flags.logit_biases, sampling);
}

}  // namespace lssar::cli

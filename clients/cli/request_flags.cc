#include "clients/cli/request_flags.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/str_cat.h"
#include "server/api/sampling_fields.h"

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
  const auto add_list = [app](const char* name, auto& values, const char* text, const char* about) {
    app->add_option(name, values, about)
        ->option_text(text)
        ->group("Sampling")
        ->allow_extra_args(false);
  };
  for (const SamplingField& field : SamplingFields()) {
    std::visit(
        [&]<typename T>(const SamplingValue<T>& number) {
          app->add_option_function<T>(
                 field.Flag(),
                 [&sampling = flags->sampling, number](T value) { (sampling.*number.set)(value); },
                 field.FlagHelp())
              ->option_text(field.IsInteger() ? "N" : "X")
              ->group("Sampling");
        },
        field.value);
  }
  add_list("--logit-bias", flags->logit_biases, "ID:X",
           "add X to a token's logit; repeatable [-100 to 100, up to 1024]");
  add_list("--allowed-token-id", flags->allowed_token_ids, "ID",
           "sample only these tokens; repeatable");
  add_list("--banned-token-id", flags->banned_token_ids, "ID", "never sample a token; repeatable");
  app->add_option("--seed", flags->seed,
                  "the same request and seed give the same text [0 to 2^64-1; default: random]")
      ->option_text("N")
      ->group("Sampling");
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
  sampling->MergeFrom(flags.sampling);
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

#include "clients/cli/request_flags.h"

#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/str_cat.h"
#include "clients/cli/argument_parser.h"
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

void AddSamplingGroup(ArgumentParser* parser, SamplingFlags* flags) {
  const auto add_list = [parser](const char* name, auto& values, const char* text,
                                 const char* about) {
    parser->Add(name, values, about).ValueName(text).Group("Sampling").OneValueEach();
  };
  for (const SamplingField& field : SamplingFields()) {
    std::visit(
        [&]<typename T>(const SamplingValue<T>& number) {
          parser
              ->AddFunction<T>(
                  field.Flag(),
                  [&sampling = flags->sampling, number](T value) { (sampling.*number.set)(value); },
                  field.FlagHelp())
              .ValueName(field.IsInteger() ? "N" : "X")
              .Group("Sampling");
        },
        field.value);
  }
  add_list("--logit-bias", flags->logit_biases, "ID:X",
           "add X to a token's logit; repeatable [-100 to 100, up to 1024]");
  add_list("--allowed-token-id", flags->allowed_token_ids, "ID",
           "sample only these tokens; repeatable");
  add_list("--banned-token-id", flags->banned_token_ids, "ID", "never sample a token; repeatable");
  parser
      ->Add("--seed", flags->seed,
            "the same request and seed give the same text [0 to 2^64-1; default: random]")
      .ValueName("N")
      .Group("Sampling");
}

}  // namespace

void AddSchedulingFlags(ArgumentParser* parser, SchedulingFlags* flags) {
  AddQueueFlags(parser, flags);
  constexpr char kGroup[] =
      "Another attention (a server allows it with --allow-attention-override)";
  parser
      ->Add("--attention-p", flags->attention.p,
            "power of the re-weighting [over 0 to 1000; default: the checkpoint's]")
      .ValueName("P")
      .Group(kGroup);
  parser
      ->Add("--attention-kind", flags->attention.kind,
            "lssar, lssa, softmax, ... as in config.json [default: the checkpoint's]")
      .ValueName("KIND")
      .Group(kGroup);
  parser->Add("--attention-phi", flags->attention.phi, "phi of kind phi: relu, gelu, ...")
      .ValueName("NAME")
      .Group(kGroup);
}

void AddQueueFlags(ArgumentParser* parser, SchedulingFlags* flags) {
  constexpr char kGroup[] = "Scheduling and prefix cache";
  parser->Add("--priority", flags->priority, "higher runs first [-10 to 10; default 0]")
      .ValueName("N")
      .Group(kGroup);
  parser
      ->AddSwitch("--no-prefix-caching", flags->no_prefix_caching,
                  "compute the whole prompt and do not cache it [default: use the prefix cache]")
      .Group(kGroup);
  parser
      ->Add("--cache-salt", flags->cache_salt,
            "share cached prompts only with equal salts [up to 128 bytes; default: none]")
      .ValueName("TEXT")
      .Group(kGroup);
  parser
      ->Add("--checkpoint-hash", flags->checkpoint_hash,
            "fail unless this checkpoint answers (`lssar info`) [default: any]")
      .ValueName("HASH")
      .Group(kGroup);
}

void AddSamplingFlags(ArgumentParser* parser, SamplingFlags* flags) {
  constexpr char kGroup[] = "Length and end";
  parser
      ->Add("--max-tokens", flags->max_tokens,
            "most new tokens [1 to what the context holds; default 256]")
      .ValueName("N")
      .Group(kGroup);
  parser
      ->Add("--min-tokens", flags->min_tokens,
            "least new tokens: EOS and stops are ignored before [0 to max-tokens; default 0]")
      .ValueName("N")
      .Group(kGroup);
  parser
      ->Add("--stop", flags->stop_strings,
            "end before this text; repeatable [1 to 256 bytes, up to 16]")
      .ValueName("TEXT")
      .Group(kGroup)
      .OneValueEach();
  parser
      ->Add("--stop-token-id", flags->stop_token_ids,
            "end before this token; repeatable [up to 64]")
      .ValueName("ID")
      .Group(kGroup)
      .OneValueEach();
  parser->AddSwitch("--ignore-eos", flags->ignore_eos, "continue after the end-of-text token")
      .Group(kGroup);
  parser
      ->Add("--speculative-tokens", flags->speculative_tokens,
            "most draft tokens in a step; 0: no speculative decoding; the text is the same "
            "[0 to 64; default: the server's]")
      .ValueName("N")
      .Group("Scheduling and prefix cache");
  AddSamplingGroup(parser, flags);
  AddSchedulingFlags(parser, &flags->scheduling);
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

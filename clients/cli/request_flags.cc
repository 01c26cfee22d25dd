#include "clients/cli/request_flags.h"

#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/argument_parser.h"
#include "clients/cli/input.h"
#include "clients/cli/usage.h"
#include "server/api/sampling_fields.h"

namespace lssar::cli {
namespace {

constexpr double kMaxP = 1000;                             // of v1::AttentionOverride
constexpr size_t kMaxSteeringFileBytes = size_t{1} << 22;  // a million numbers

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

absl::StatusOr<v1::Steering> ReadSteeringEntry(const std::string& entry) {
  const std::vector<std::string> parts = absl::StrSplit(entry, ':');
  v1::Steering steering;
  int32_t layer = 0, first_position = 0;
  float scale = 1;
  if (parts.size() < 2 || parts.size() > 4 || !absl::SimpleAtoi(parts[0], &layer) ||
      (parts.size() > 2 && !absl::SimpleAtof(parts[2], &scale)) ||
      (parts.size() > 3 && !absl::SimpleAtoi(parts[3], &first_position))) {
    return absl::InvalidArgumentError(StrCat("--steer: '", entry,
                                             "' is not LAYER:FILE[:SCALE[:FIRST_POSITION]], as in "
                                             "3:direction.f32:1.5"));
  }
  steering.set_layer(layer);
  steering.set_scale(scale);
  steering.set_first_position(first_position);
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(parts[1], kMaxSteeringFileBytes));
  if (bytes.empty() || bytes.size() % sizeof(float) != 0) {
    return absl::InvalidArgumentError(StrCat("--steer: ", parts[1], " has ", bytes.size(),
                                             " bytes; it must have 4 for each number (fp32)"));
  }
  steering.mutable_vector()->Resize(int(bytes.size() / sizeof(float)), 0);
  std::memcpy(steering.mutable_vector()->mutable_data(), bytes.data(), bytes.size());
  return steering;
}

void AddConstraintGroup(ArgumentParser* parser, ConstraintFlags* flags) {
  constexpr char kGroup[] = "Structured output (at most one)";
  parser
      ->Add("--json-schema", flags->json_schema_path,
            "the text is JSON that fits this JSON Schema [- : standard input]")
      .ValueName("FILE")
      .Group(kGroup);
  parser->AddSwitch("--json-object", flags->json_object, "the text is a JSON object").Group(kGroup);
  parser->Add("--regex", flags->regex, "the whole text matches this regular expression")
      .ValueName("TEXT")
      .Group(kGroup);
  parser
      ->Add("--grammar", flags->grammar_path,
            "the text fits this grammar in GBNF's notation [- : standard input]")
      .ValueName("FILE")
      .Group(kGroup);
  parser->Add("--choice", flags->choices, "the text is one of these; repeatable [up to 1024]")
      .ValueName("TEXT")
      .Group(kGroup)
      .OneValueEach();
}

absl::Status FillConstraint(const ConstraintFlags& flags, v1::GenerateRequest* request) {
  int num_set = 0;
  for (const bool is_set :
       {!flags.json_schema_path.empty(), flags.json_object, flags.regex.has_value(),
        !flags.grammar_path.empty(), !flags.choices.empty()}) {
    num_set += is_set ? 1 : 0;
  }
  if (num_set > 1) {
    return absl::InvalidArgumentError(
        "--json-schema, --json-object, --regex, --grammar and --choice: give one of them");
  }
  if (!flags.json_schema_path.empty()) {
    ASSIGN_OR_RETURN(*request->mutable_json_schema(), ReadText(flags.json_schema_path));
  }
  if (!flags.grammar_path.empty()) {
    ASSIGN_OR_RETURN(*request->mutable_grammar(), ReadText(flags.grammar_path));
  }
  if (flags.json_object) request->set_json_object(true);
  if (flags.regex) request->set_regex(*flags.regex);
  for (const std::string& choice : flags.choices) request->mutable_choice()->add_texts(choice);
  return absl::OkStatus();
}

void AddSamplingGroup(ArgumentParser* parser, SamplingFlags* flags) {
  const auto add_list = [parser](const char* name, auto& values, const char* text,
                                 const char* about) {
    parser->Add(name, values, about).ValueName(text).Group("Sampling").OneValueEach();
  };
  SamplingParams defaults;  // of the server, but for what the command has set
  LSSAR_CHECK(ReadSamplingFields(flags->sampling, kVocabularySize, &defaults).ok());
  for (const SamplingField& field : SamplingFields()) {
    std::visit(
        [&]<typename T>(const SamplingValue<T>& number) {
          parser
              ->AddFunction<T>(
                  field.Flag(),
                  [&sampling = flags->sampling, number](T value) { (sampling.*number.set)(value); },
                  field.FlagHelp(defaults))
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

absl::StatusOr<std::vector<double>> ParsePowers(const std::string& flag, const std::string& list) {
  return ParseNumbers(
      flag, list, [](double p) { return p > 0 && p <= kMaxP; },
      StrCat("not a number in (0, ", kMaxP, "]; give a list such as 1,3,15"));
}

absl::StatusOr<std::vector<PowerStep>> ParsePowerSteps(const std::string& flag,
                                                       const std::string& list) {
  std::vector<PowerStep> steps;
  for (const absl::string_view entry : absl::StrSplit(list, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(StrCat(flag, ": '", entry,
                                               "' has not the form N:P, a number of keys and a "
                                               "power; give a list such as 256:10,1K:5"));
    }
    ASSIGN_OR_RETURN(const std::vector<int> keys, ParseCounts(flag, parts[0], 2, kMaxLength));
    ASSIGN_OR_RETURN(const std::vector<double> powers, ParsePowers(flag, parts[1]));
    steps.push_back({.min_keys = keys.front(), .p = powers.front()});
  }
  return steps;
}

void AddSchedulingFlags(ArgumentParser* parser, SchedulingFlags* flags) {
  AddQueueFlags(parser, flags);
  static constexpr char kGroup[] =
      "Another attention (a server allows it with --allow-attention-override)";
  parser
      ->Add("--attention-p", flags->attention.p,
            "power of the re-weighting [over 0 to 1000; default: the checkpoint's]")
      .ValueName("P")
      .Group(kGroup);
  // Reads a list with `parse` into `to`.
  const auto add_list = [parser](const char* name, auto& to, auto parse, const char* about) {
    const auto read = [name, &to, parse](const std::string& list) {
      auto parsed = parse(name, list);
      if (parsed.ok()) to = *std::move(parsed);
      return parsed.status();
    };
    parser->AddRead(name, read, about).ValueName("LIST").Group(kGroup);
  };
  add_list("--attention-p-by-layer", flags->attention.p_by_layer, ParsePowers,
           "in place of --attention-p: of each layer, such as 3,5,15");
  add_list("--attention-p-by-head", flags->attention.p_by_head, ParsePowers,
           "the same of each query head: of every layer, or those of layer 0, of layer 1, ...");
  add_list("--attention-p-by-length", flags->attention.p_by_length, ParsePowerSteps,
           "other powers of tokens that attend to N keys or more, as N:P, such as 256:10,1K:5 "
           "[N from 2; 1K is 1024; up to 64]");
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

void AddSteeringFlags(ArgumentParser* parser, SteeringFlags* flags) {
  parser
      ->Add("--steer", flags->entries,
            "add SCALE [default 1] times the vector in FILE, hidden_size fp32 numbers, to the "
            "residual stream behind block LAYER (0: the embedding) from token FIRST [default 0] "
            "on; repeatable")
      .ValueName("LAYER:FILE[:SCALE[:FIRST]]")
      .Group("Steering (a server allows it with --allow-steering)")
      .OneValueEach();
}

absl::StatusOr<std::vector<v1::Steering>> ReadSteering(const SteeringFlags& flags) {
  std::vector<v1::Steering> all;
  for (const std::string& entry : flags.entries) {
    ASSIGN_OR_RETURN(v1::Steering steering, ReadSteeringEntry(entry));
    all.push_back(std::move(steering));
  }
  return all;
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
  AddConstraintGroup(parser, &flags->constraint);
  AddSchedulingFlags(parser, &flags->scheduling);
  AddSteeringFlags(parser, &flags->steering);
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
  RETURN_IF_ERROR(FillSteering(flags.steering, request));
  RETURN_IF_ERROR(FillConstraint(flags.constraint, request));
  return AddLogitBiases(flags.logit_biases, sampling);
}

}  // namespace lssar::cli

// Flags that become fields of a request: priority, prefix cache, sampling, length and end.
//
// An unset flag stays unset in the request: the server's defaults and limits are the only ones.
#ifndef LSSAR_CLIENTS_CLI_REQUEST_FLAGS_H_
#define LSSAR_CLIENTS_CLI_REQUEST_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

class ArgumentParser;

// Another power for tokens that attend to at least min_keys keys.
struct PowerStep {
  int min_keys = 0;
  double p = 0;
};

// Another attention than the checkpoint's.
struct AttentionFlags {
  std::optional<double> p = {};
  std::string kind = {};
  std::string phi = {};
  std::vector<double> p_by_layer = {};
  std::vector<double> p_by_head = {};
  std::vector<PowerStep> p_by_length = {};

  bool IsSet() const {
    return p || !kind.empty() || !phi.empty() || !p_by_layer.empty() || !p_by_head.empty() ||
           !p_by_length.empty();
  }
};

// "1,3,15".
// Errors  INVALID_ARGUMENT: an entry is no number in (0, 1000]; names `flag` and the entry
absl::StatusOr<std::vector<double>> ParsePowers(const std::string& flag, const std::string& list);

// "256:10,1K:5": powers from 256 and from 1024 keys on.
// Errors  INVALID_ARGUMENT: an entry has another form; names `flag` and the entry
absl::StatusOr<std::vector<PowerStep>> ParsePowerSteps(const std::string& flag,
                                                       const std::string& list);

// Flags of every request.
struct SchedulingFlags {
  std::optional<int> priority;
  bool no_prefix_caching = false;
  std::string cache_salt;
  std::string checkpoint_hash;
  AttentionFlags attention = {};
};

void AddSchedulingFlags(ArgumentParser* parser, SchedulingFlags* flags);
// The same without those of `attention`.
void AddQueueFlags(ArgumentParser* parser, SchedulingFlags* flags);

// `Request`: v1::GenerateRequest, v1::ScoreRequest, v1::EmbedRequest or
// v1::CaptureAttentionRequest.
template <typename Request>
void FillScheduling(const SchedulingFlags& flags, Request* request) {
  if (flags.priority) request->set_priority(*flags.priority);
  if (flags.no_prefix_caching) request->set_use_prefix_cache(false);
  request->set_cache_salt(flags.cache_salt);
  request->set_checkpoint_hash(flags.checkpoint_hash);
  if (!flags.attention.IsSet()) return;
  v1::AttentionOverride& change = *request->mutable_attention_override();
  if (flags.attention.p) change.set_p(*flags.attention.p);
  change.set_kind(flags.attention.kind);
  change.set_phi(flags.attention.phi);
  for (const double p : flags.attention.p_by_layer) change.add_p_by_layer(p);
  for (const double p : flags.attention.p_by_head) change.add_p_by_head(p);
  for (const PowerStep& step : flags.attention.p_by_length) {
    v1::AttentionPower& power = *change.add_p_by_length();
    power.set_min_keys(step.min_keys);
    power.set_p(step.p);
  }
}

// Vectors that are added to the residual stream: "LAYER:FILE", "LAYER:FILE:SCALE" or
// "LAYER:FILE:SCALE:FIRST_POSITION" each.
struct SteeringFlags {
  std::vector<std::string> entries;
};

void AddSteeringFlags(ArgumentParser* parser, SteeringFlags* flags);

// Reads the files: little-endian fp32 numbers.
// Errors  INVALID_ARGUMENT: an entry has another form, or a file another size; those of ReadFile
absl::StatusOr<std::vector<v1::Steering>> ReadSteering(const SteeringFlags& flags);

// `Request`: as in FillScheduling.
template <typename Request>
absl::Status FillSteering(const SteeringFlags& flags, Request* request) {
  auto steering = ReadSteering(flags);
  if (!steering.ok()) return steering.status();
  for (v1::Steering& each : *steering) *request->add_steering() = std::move(each);
  return absl::OkStatus();
}

// What the text must be: at most one of them.
struct ConstraintFlags {
  bool json_object = false;
  std::string json_schema_path, grammar_path;
  std::optional<std::string> regex;
  std::vector<std::string> choices;
};

// Flags of the commands that generate text.
struct SamplingFlags {
  v1::Sampling sampling;                  // the fields of server/api/sampling_fields.h
  std::vector<std::string> logit_biases;  // "ID:BIAS"
  std::vector<int> allowed_token_ids;
  std::vector<int> banned_token_ids;
  std::optional<uint64_t> seed;
  std::optional<int> max_tokens;
  std::optional<int> min_tokens;
  bool ignore_eos = false;
  std::optional<int> speculative_tokens;
  std::vector<std::string> stop_strings;
  std::vector<int> stop_token_ids;
  ConstraintFlags constraint;
  SchedulingFlags scheduling;
  SteeringFlags steering;
};

// What `flags` has already is the command's default.
void AddSamplingFlags(ArgumentParser* parser, SamplingFlags* flags);

// Errors  INVALID_ARGUMENT: --logit-bias is not ID:BIAS, or two constraints
//         those of ReadSteering and ReadText: of the files
absl::Status FillRequest(const SamplingFlags& flags, v1::GenerateRequest* request);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_REQUEST_FLAGS_H_

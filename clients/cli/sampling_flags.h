// The flags of every command that generates: lssar.v1.Sampling, a choice's end, what is shared.
#ifndef LSSAR_CLIENTS_CLI_SAMPLING_FLAGS_H_
#define LSSAR_CLIENTS_CLI_SAMPLING_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/cli/sharing_flags.h"
#include "lssar/v1/inference.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar::cli {

// Unset stays unset on the wire: the server's defaults and limits are the only ones.
struct SamplingFlags {
  std::optional<float> temperature;
  std::optional<int> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<float> presence_penalty;
  std::optional<float> frequency_penalty;
  std::vector<std::string> logit_biases;  // "ID:BIAS"
  std::vector<int> allowed_ids;
  std::vector<int> banned_ids;
  std::optional<uint64_t> seed;
  std::optional<int> max_tokens;
  std::optional<int> min_tokens;
  bool ignore_eos = false;
  std::vector<std::string> stop_strings;
  std::vector<int> stop_ids;
  SharingFlags sharing;
};

void AddSamplingFlags(CLI::App* app, SamplingFlags* flags);

// Errors  INVALID_ARGUMENT: a --logit-bias that is not ID:BIAS
absl::Status FillRequest(const SamplingFlags& flags, v1::GenerateRequest* request);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SAMPLING_FLAGS_H_

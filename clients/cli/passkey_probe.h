// The passkey experiment: documents, concurrent greedy answers, hits.
#ifndef LSSAR_CLIENTS_CLI_PASSKEY_PROBE_H_
#define LSSAR_CLIENTS_CLI_PASSKEY_PROBE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/passkey_document.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

struct PasskeyOptions {
  std::vector<int> lengths;     // tokens that prompt and answer may take
  std::vector<int> num_trials;  // by length, or one for all; with `depths`: trials of each depth
  std::vector<double> depths;   // [0, 1]; empty: each document draws its own
  uint64_t seed = 7;
  int num_concurrent = 4;  // requests under way at once
};

struct PasskeyTrial {
  int length = 0;
  PasskeyDocument document;
  // The answer as it came: as many tokens as key and full stop take.
  int num_prompt_tokens = 0;
  std::string answer;
  bool is_hit = false;  // every token as expected
};

// The documents that the reference's probe makes: a generator of the same seed for each length.
// Cost  a document is about 4 bytes a token
std::vector<PasskeyTrial> MakePasskeyTrials(const PasskeyOptions& options, int filler_tokens);

// Tokens of one filler unit, by the server's tokenizer.
absl::StatusOr<int> CountFillerTokens(v1::Inference::StubInterface* stub);

// Asks for every trial's key and fills the answers in; a progress bar on stderr while it runs. A
// full queue (RESOURCE_EXHAUSTED) is waited for.
// Errors  the first error of a call; CANCELLED: interrupted
absl::Status RunPasskeyTrials(v1::Inference::StubInterface* stub, int num_concurrent,
                              Interrupt* interrupt, std::vector<PasskeyTrial>* trials);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PASSKEY_PROBE_H_

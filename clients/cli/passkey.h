// The passkey experiment: documents with a hidden key, greedy answers, hits and their confidence.
#ifndef LSSAR_CLIENTS_CLI_PASSKEY_H_
#define LSSAR_CLIENTS_CLI_PASSKEY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/python_random.h"
#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

// One unit of filler text.
inline constexpr absl::string_view kPasskeyFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// Passkey-retrieval documents (Mohtashami & Jaggi 2023), word for word as
// models/training/passkey.py makes them.
struct PasskeyDocument {
  std::string text;  // ends with the question for the key
  std::string key;   // 1 to 50000
  double depth = 0;  // [0, 1]: position of the key, as the share of the filler before it
};

// Draws the key, and then the depth unless it is given.
// Requires  num_filler >= 0, depth in [0, 1]
PasskeyDocument MakePasskeyDocument(int num_filler, std::optional<double> depth, PythonRandom* rng);

// Filler units of a document of about `length` tokens; the text around them takes about 110.
int NumPasskeyFiller(int length, int filler_tokens);

struct Interval {
  double low = 0;
  double high = 1;
};

// 95% score interval of a binomial share. It stays in [0, 1] and is not empty at 0 or all hits,
// where the normal approximation is empty.
// Requires  0 <= num_hits <= num_trials; no trials: [0, 1]
// Source    E. B. Wilson, JASA 22 (1927) 209
Interval WilsonInterval(int num_hits, int num_trials);

struct PasskeyOptions {
  std::vector<int> lengths;     // tokens of prompt and answer
  std::vector<int> num_trials;  // per length, or one for all; with `depths`: per depth
  std::vector<double> depths;   // [0, 1]; empty: drawn for each document
  uint64_t seed = 7;
  int max_concurrency = 4;  // requests in flight
};

struct PasskeyTrial {
  int length = 0;
  PasskeyDocument document;
  // The answer: as many tokens as the key and a full stop take.
  int num_prompt_tokens = 0;
  std::string answer;
  bool is_hit = false;  // every token is as expected
};

// The documents of the reference: each length starts a generator with the same seed.
// Cost  about 4 bytes per token of a document
std::vector<PasskeyTrial> MakePasskeyTrials(const PasskeyOptions& options, int filler_tokens);

// Tokens of one filler unit in the server's tokenizer.
absl::StatusOr<int> CountFillerTokens(v1::Inference::StubInterface* stub);

// Runs every trial and stores its answer. Shows a progress bar on stderr. Repeats a call while the
// server's queue is full.
// Errors  the first error of a call; CANCELLED: interrupted
absl::Status RunPasskeyTrials(v1::Inference::StubInterface* stub, int max_concurrency,
                              Interrupt* interrupt, std::vector<PasskeyTrial>* trials);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PASSKEY_H_

// The passkey experiment: documents with a hidden key, greedy answers, hits and their confidence.
#ifndef LSSAR_CLIENTS_CLI_PASSKEY_H_
#define LSSAR_CLIENTS_CLI_PASSKEY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/interrupt.h"
#include "clients/cli/request_flags.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

class Service;

// One unit of filler text.
inline constexpr absl::string_view kPasskeyFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

// The draws of a seed: SplitMix64. models/training/passkey.py has the same.
// Source  G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014
class PasskeyRandom {
 public:
  explicit PasskeyRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next();

 private:
  uint64_t state_;
};

// A passkey-retrieval document (Mohtashami & Jaggi 2023).
struct PasskeyDocument {
  std::string text;  // ends with the question for the key
  std::string key;   // 1 to 50000
  double depth = 0;  // [0, 1]: position of the key, as the share of the filler before it
};

// Draws the key, and then the depth unless it is given.
// Requires  num_filler >= 0, depth in [0, 1]
PasskeyDocument MakePasskeyDocument(int num_filler, std::optional<double> depth,
                                    PasskeyRandom* random);

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
  SchedulingFlags scheduling = {};
};

struct PasskeyTrial {
  int length = 0;
  int number = 0;  // from 0, of this length
  PasskeyDocument document;
  bool is_done = false;
  // The answer: as many tokens as the key and a full stop take.
  int num_prompt_tokens = 0;
  std::string answer;
  bool is_hit = false;         // every token is as expected
  std::string attention = {};  // that computed it, of the reply's receipt
};

// Each length starts with the seed, so that a length has the same documents beside any others.
// Cost  about 4 bytes per token of a document
std::vector<PasskeyTrial> MakePasskeyTrials(const PasskeyOptions& options, int filler_tokens);

// Tokens of one filler unit in the server's tokenizer.
absl::StatusOr<int> CountFillerTokens(Service* stub);

// Runs every trial that is not done, stores its answer and calls on_done, one call at a time. Shows
// a progress bar on stderr. Repeats a call while the server's queue is full.
// Errors  the first error of a call or of on_done; CANCELLED: interrupted
absl::Status RunPasskeyTrials(Service* stub, const PasskeyOptions& options, Interrupt* interrupt,
                              std::vector<PasskeyTrial>* trials,
                              const std::function<absl::Status(const PasskeyTrial&)>& on_done);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PASSKEY_H_

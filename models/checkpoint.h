// Loads a checkpoint directory: config, weights on a backend, tokenizer, chat template; and checks
// the loaded model against the golden logits that came with it.
#ifndef LSSAR_MODELS_CHECKPOINT_H_
#define LSSAR_MODELS_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/config.h"
#include "models/language_model.h"
#include "models/text/chat_template.h"
#include "models/text/tokenizer.h"

namespace lssar {

struct LoadOptions {
  // The element type of the matrices in memory; nullopt: as the checkpoint stores them. Norms and
  // biases are fp32.
  std::optional<DType> dtype = std::nullopt;
  // Tokens of one Forward at most: activations are allocated for that many.
  int max_num_batched_tokens = 512;
  // Called before any weights are read; its error is the load's. Null: nothing is checked.
  std::function<absl::Status(const ModelConfig&)> check = nullptr;
  // The same, after `check`, with the bytes of the matrices in memory, at least (LeastBytes).
  std::function<absl::Status(const ModelConfig&, int64_t weight_bytes)> check_memory = nullptr;
};

// Const after load, except that `model` runs one step at a time.
struct Checkpoint {
  std::string name;  // the directory's last path component
  std::string hash;  // first 16 hex digits of the SHA-256 over config.json and the weights' files
  // The same over config.json and what else a reply depends on: tokenizer_config.json,
  // special_tokens_map.json, added_tokens.json, the files of the chat template,
  // generation_config.json.
  std::string config_hash;
  ModelConfig config;
  DType dtype = DType::kF16;  // of fewest bits among the matrices' types
  int64_t num_parameters = 0;
  int max_num_batched_tokens = 0;  // from LoadOptions
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;  // null: the checkpoint has none and serves token ids
  std::optional<ChatTemplate> chat_template;
  // Why there is no chat template although the directory has one: the server says it at its start.
  std::string chat_warning;
  bool add_bos = false;              // prompts given as text start with config.bos_id
  std::string bos_token, eos_token;  // their texts, for the chat template
  std::vector<std::string> chat_stop_strings;
  std::string tokenizer_config;  // the text of tokenizer_config.json, which is JSON; empty: none
};

// `backend` must outlive the result.
// Errors  NOT_FOUND: the directory or one of its files is missing; INVALID_ARGUMENT: a file has a
//         bad value (the message names file, field, value and limit); UNIMPLEMENTED: the backend
//         does not compute this attention kind
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory, Backend* backend,
                                          const LoadOptions& options);

struct SelfCheckReport {
  int num_rows = 0;        // golden positions compared; 0: no golden.safetensors
  double worst_error = 0;  // max |d| of a position's logits, in units of their max |logit|
  double tolerance = 0;
};

struct SelfCheckProgress {
  int num_rows = 0;
  int64_t num_tokens = 0;  // of all rows
  int64_t num_tokens_done = 0;
};
using OnSelfCheckProgress = std::function<void(const SelfCheckProgress&)>;

// Bounds of golden.safetensors: a server starts only after all of it was computed.
inline constexpr int64_t kMaxGoldenRowTokens = 16384;
inline constexpr int64_t kMaxGoldenTokens = 32768;  // of all rows

// Runs the token rows of `directory`/golden.safetensors through the model and compares logits.
// `kv_cache_dtype`: the K/V element type that will be served. `on_progress`, which may be null, is
// called before the first row and after each step.
// Errors  INVALID_ARGUMENT: the file is damaged or exceeds a bound; nothing was computed
//         FAILED_PRECONDITION: an error beyond the tolerance, or NaN; the message names row,
//         position and error
absl::StatusOr<SelfCheckReport> SelfCheck(const std::string& directory,
                                          const Checkpoint& checkpoint, Backend* backend,
                                          DType kv_cache_dtype, int page_size,
                                          const OnSelfCheckProgress& on_progress = nullptr);

}  // namespace lssar

#endif  // LSSAR_MODELS_CHECKPOINT_H_

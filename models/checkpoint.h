// A checkpoint directory, loaded: config, weights on a backend, tokenizer, chat template, and the
// self-check against the golden logits that came with it.
#ifndef LSSAR_MODELS_CHECKPOINT_H_
#define LSSAR_MODELS_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/chat_template.h"
#include "models/config.h"
#include "models/language_model.h"
#include "models/tokenizer.h"

namespace lssar {

struct LoadOptions {
  // How matrices are kept; nullopt: as the checkpoint stores them. Norms and biases are fp32.
  std::optional<DType> weights;
  // Rows that one Forward may carry at most: activations are reserved for that many.
  int max_num_batched_tokens = 512;
};

// Const after load, except that `model` runs one step at a time.
struct Checkpoint {
  std::string name;  // the directory's last path component
  std::string hash;  // first 16 hex digits of the SHA-256 over config.json and the weights' files
  ModelConfig config;
  DType weights = DType::kF16;  // of the embedding; the other matrices may differ
  int64_t num_parameters = 0;
  int max_num_batched_tokens = 0;  // as LoadOptions had it
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<Tokenizer> tokenizer;  // null: the checkpoint has none, token ids only
  std::optional<ChatTemplate> chat_template;
  bool add_bos = false;              // prompts given as text start with config.bos_id
  std::string bos_token, eos_token;  // their texts, for the chat template
  std::vector<std::string> chat_stop_strings;
};

// `backend` must outlive the result.
// Errors  NOT_FOUND: the directory or a file of it; INVALID_ARGUMENT: a file that says something
//         impossible (field, value and limit named); UNIMPLEMENTED: a kind this backend lacks.
absl::StatusOr<Checkpoint> LoadCheckpoint(const std::string& directory, Backend* backend,
                                          const LoadOptions& options);

struct SelfCheckReport {
  int num_rows = 0;        // golden rows compared; 0: the checkpoint ships no golden.safetensors
  double worst_error = 0;  // max |d| over the rows, in units of the row's max |logit|
  double tolerance = 0;
};

// Runs the rows of `directory`/golden.safetensors through the model and compares logits.
// `kv_cache_dtype`: the K/V element type that will be served.
// Errors  FAILED_PRECONDITION: a row beyond the tolerance, or NaN: names row, position, worst
// error.
absl::StatusOr<SelfCheckReport> SelfCheck(const std::string& directory, Checkpoint& checkpoint,
                                          Backend* backend, DType kv_cache_dtype, int page_size);

}  // namespace lssar

#endif  // LSSAR_MODELS_CHECKPOINT_H_

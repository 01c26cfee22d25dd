// Golden vectors: an index.json of attention cases and models, each run on a backend.
#ifndef LSSAR_TESTS_GOLDEN_GOLDEN_CASE_H_
#define LSSAR_TESTS_GOLDEN_GOLDEN_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lssar {

// One entry of index.json.
struct GoldenCase {
  std::string name;
  // True: a checkpoint in the folder `name`. False: attention, file `name`.safetensors.
  bool is_model = false;
  // For attention:
  int first = 0;  // position of the first query row
  int num_heads = 0;
  int num_rows = 0;  // query rows
  int num_keys = 0;  // >= first + num_rows
  int head_dim = 0;
  std::string kind;
  double p = 15;
  std::string phi;
};

// Errors  NOT_FOUND: no index.json; INVALID_ARGUMENT: it has another form
absl::StatusOr<std::vector<GoldenCase>> ReadGoldenIndex(const std::string& directory);

struct GoldenSetup {
  Backend* backend = nullptr;
  DType kv_cache_dtype = DType::kF32;
  int page_size = 64;
};

// The result of a case. The functions below return UNIMPLEMENTED where the backend refuses the
// case; any other error fails the case.
struct GoldenError {
  double worst = 0;  // NaN where a result is NaN
  double tolerance = 0;
  double worst_logprob = 0;  // of models: max |d| of a log-probability; NaN where one is NaN
  bool Passes() const { return worst <= tolerance; }
};

// Writes q, k and v to pages with RopeWrite (identity rotation), then runs Attention over them.
// `worst`: max |d|, in units of max |v|.
absl::StatusOr<GoldenError> RunAttentionCase(const std::string& directory, const GoldenCase& wanted,
                                             const GoldenSetup& setup);

// Runs the checkpoint over the tokens of expected.safetensors, in chunks, with the rotary base of
// exactly that many tokens. `worst`: LogitsError (models/page_pool.h).
absl::StatusOr<GoldenError> RunModelCase(const std::string& directory, const GoldenCase& wanted,
                                         const GoldenSetup& setup);

}  // namespace lssar

#endif  // LSSAR_TESTS_GOLDEN_GOLDEN_CASE_H_

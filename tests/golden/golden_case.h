// The golden vectors: an index.json of attention cases and models, each run on a backend.
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
  bool is_model =
      false;  // a checkpoint in a folder `name`; else attention, file `name`.safetensors
  // Attention alone:
  int first = 0;  // position of the first query row
  int num_heads = 0;
  int num_rows = 0;  // query rows
  int num_keys = 0;  // >= first + num_rows
  int head_dim = 0;
  std::string kind;
  double p = 15;
  std::string phi;
};

// Errors  NOT_FOUND, INVALID_ARGUMENT: no index.json there, or not of this form
absl::StatusOr<std::vector<GoldenCase>> ReadGoldenIndex(const std::string& directory);

struct GoldenSetup {
  Backend* backend = nullptr;
  DType kv_cache_dtype = DType::kF32;
  int page_size = 64;
};

// Errors of the runs below: UNIMPLEMENTED where this build refuses what the case asks for; anything
// else is a failure of the case.
struct GoldenError {
  double worst = 0;      // NaN where a result is NaN
  double tolerance = 0;  // of `worst`
  bool Passes() const { return worst <= tolerance; }
};

// q, k and v through RopeWrite (by the identity rotation) into pages, then Attention over them.
// `worst`: max |d|, in units of max |v|.
absl::StatusOr<GoldenError> RunAttentionCase(const std::string& directory, const GoldenCase& wanted,
                                             const GoldenSetup& setup);

// The checkpoint's forward over expected.safetensors' tokens, in chunks, its rotary base that of
// exactly that many tokens. `worst`: max |d| of a row's logits, in units of its largest one.
absl::StatusOr<GoldenError> RunModelCase(const std::string& directory, const GoldenCase& wanted,
                                         const GoldenSetup& setup);

}  // namespace lssar

#endif  // LSSAR_TESTS_GOLDEN_GOLDEN_CASE_H_

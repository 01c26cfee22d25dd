// The numbers of a request's sampling, in one table. The readers of gRPC and HTTP requests, the
// receipt, /openapi.json and the flags of the CLI follow it.
#ifndef LSSAR_SERVER_API_SAMPLING_FIELDS_H_
#define LSSAR_SERVER_API_SAMPLING_FIELDS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "kernels/sampling.h"
#include "lssar/v1/inference.pb.h"

namespace lssar {

// As the upper end of a range: the size of the vocabulary.
inline constexpr int32_t kVocabularySize = std::numeric_limits<int32_t>::max();

template <typename T>
struct SamplingValue {
  T SamplingParams::*param;  // its initial value is the field's default
  T low, high;
  bool (v1::Sampling::*has)() const;
  T (v1::Sampling::*get)() const;
  void (v1::Sampling::*set)(T);
};

struct SamplingField {
  std::string_view name;  // of v1::Sampling and of the JSON; a flag has '-' in place of '_'
  std::variant<SamplingValue<float>, SamplingValue<int32_t>> value;
  bool excludes_low = false;
  bool has_minus_one = false;  // over HTTP -1 is the default, as in vLLM
  std::string_view help;

  bool IsInteger() const { return value.index() == 1; }
  // "--top-k"
  std::string Flag() const;
  // The help with range and default: "keep ... [0 to vocabulary; default 0]".
  std::string FlagHelp(const SamplingParams& defaults) const;
};

// In the order in which messages and receipts show them.
std::span<const SamplingField> SamplingFields();

// Reads the fields of `message` that the table has. Errors  INVALID_ARGUMENT, as of parse_request.h
absl::Status ReadSamplingFields(const v1::Sampling& message, int vocab_size,
                                SamplingParams* params);

// The fields of the table as they are in `params`.
v1::Sampling ToMessage(const SamplingParams& params);

// "NAME": {a JSON Schema}, for each field, separated by commas.
std::string SamplingFieldSchemas();
// The same of values that were used.
std::string SamplingValueSchemas();

}  // namespace lssar

#endif  // LSSAR_SERVER_API_SAMPLING_FIELDS_H_

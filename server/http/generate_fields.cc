#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/fields.h"
#include "server/api/sampling_fields.h"
#include "server/config/limits.h"
#include "server/http/openai_request.h"
#include "server/http/request_fields.h"
#include "server/http/scheduling_fields.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// All that is generated is returned.
absl::Status CheckBestOf(const BodyFields& fields) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> best_of, fields.Int("best_of"));
  ASSIGN_OR_RETURN(const std::optional<int64_t> n, fields.Int("n"));
  if (!best_of || *best_of == n.value_or(1)) return absl::OkStatus();
  return FieldError("best_of", StrCat("is ", *best_of,
                                      "; this server returns all that it generates, so it must be "
                                      "equal to n or left out"));
}

absl::Status ReadLogitBias(const Json& biases, v1::Sampling* sampling) {
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(biases, "logit_bias"));
  for (const auto& [key, value] : biases.items()) {
    int32_t id = 0;
    // Written in one way alone: "5" and "05" would be two values for one id.
    if (!absl::SimpleAtoi(key, &id) || StrCat(id) != key) {
      return FieldError("logit_bias",
                        StrCat("has the key ", Quote(key), "; it must be a token id"));
    }
    ASSIGN_OR_RETURN(const double bias, ReadNumber(fields.Name(key), value));
    RETURN_IF_ERROR(CheckRange<double>(StrCat("logit_bias[", key, "]"), bias,
                                       -limits::kMaxLogitBias, limits::kMaxLogitBias));
    (*sampling->mutable_logit_bias())[id] = float(bias);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(const BodyFields& fields, v1::Sampling* sampling) {
  for (const SamplingField& field : SamplingFields()) {
    if (const auto* number = std::get_if<SamplingValue<float>>(&field.value)) {
      ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(field.name));
      if (!value) continue;
      // Before fp32 makes another number of it.
      const auto check = field.excludes_low ? CheckRangeAbove<double> : CheckRange<double>;
      RETURN_IF_ERROR(check(std::string(field.name), *value, number->low, number->high));
      auto narrow = float(*value);
      // A number above an end that is excluded is above it in fp32, too.
      if (field.excludes_low && *value > double{number->low}) {
        narrow = std::max(narrow, std::nextafter(number->low, number->high));
      }
      (sampling->*number->set)(narrow);
    } else {
      const auto& integer = std::get<SamplingValue<int32_t>>(field.value);
      ASSIGN_OR_RETURN(const std::optional<int32_t> value, fields.Int32(field.name));
      if (!value || (*value == -1 && field.has_minus_one)) continue;
      if (*value < integer.low && field.has_minus_one) {
        return ValueError(std::string(field.name), *value,
                          StrCat("at least ", integer.low, ", or -1 for the default"));
      }
      (sampling->*integer.set)(*value);
    }
  }
  if (const Json* seed = fields.Find("seed"); seed != nullptr && seed->is_number_unsigned()) {
    sampling->set_seed(seed->get<uint64_t>());
  } else if (seed != nullptr) {
    ASSIGN_OR_RETURN(const int64_t value, ReadInt("seed", *seed));
    // -1 is a random seed, as in vLLM and llama.cpp.
    if (value != -1) sampling->set_seed(uint64_t(value));
  }
  if (const Json* biases = fields.Find("logit_bias")) {
    RETURN_IF_ERROR(ReadLogitBias(*biases, sampling));
  }
  if (const Json* allowed = fields.Find("allowed_token_ids")) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("allowed_token_ids", *allowed));
    if (ids.empty()) return FieldError("allowed_token_ids", "is empty; leave it out");
    sampling->mutable_allowed_token_ids()->Assign(ids.begin(), ids.end());
  }
  if (const Json* banned = fields.Find("banned_token_ids")) {
    ASSIGN_OR_RETURN(const auto ids, ReadIds("banned_token_ids", *banned));
    sampling->mutable_banned_token_ids()->Assign(ids.begin(), ids.end());
  }
  if (const Json* words = fields.Find("bad_words")) {
    ASSIGN_OR_RETURN(const auto texts, ReadStrings("bad_words", *words));
    sampling->mutable_bad_words()->Assign(texts.begin(), texts.end());
  }
  return absl::OkStatus();
}

absl::Status ReadStop(const BodyFields& fields, v1::GenerateRequest* request) {
  const Json* stop = fields.Find("stop");
  if (stop != nullptr && stop->is_string()) {
    request->add_stop_strings(stop->get<std::string>());
  } else if (stop != nullptr && !stop->is_array()) {
    return FieldError("stop",
                      StrCat("is ", TypeName(*stop), "; it must be a string or a list of strings"));
  } else if (stop != nullptr) {
    ASSIGN_OR_RETURN(const auto texts, ReadStrings("stop", *stop));
    request->mutable_stop_strings()->Assign(texts.begin(), texts.end());
  }
  if (const Json* ids = fields.Find("stop_token_ids")) {
    ASSIGN_OR_RETURN(const auto values, ReadIds("stop_token_ids", *ids));
    request->mutable_stop_token_ids()->Assign(values.begin(), values.end());
  }
  return absl::OkStatus();
}

absl::Status ReadStream(const BodyFields& fields, CompletionRequest* request) {
  ASSIGN_OR_RETURN(const std::optional<bool> stream, fields.Bool("stream"));
  request->stream = stream.value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!request->stream) {
    return FieldError("stream_options", "is set; it may be set only where stream is true");
  }
  ASSIGN_OR_RETURN(const BodyFields option_fields, BodyFields::Of(*options, "stream_options"));
  RETURN_IF_ERROR(CheckFields(kStreamOptions, option_fields));
  ASSIGN_OR_RETURN(const std::optional<bool> usage, option_fields.Bool("include_usage"));
  ASSIGN_OR_RETURN(const std::optional<bool> continuous,
                   option_fields.Bool("continuous_usage_stats"));
  request->include_usage = usage.value_or(false);
  request->continuous_usage = request->include_usage && continuous.value_or(false);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGenerateFields(const BodyFields& fields, CompletionRequest* request,
                                v1::GenerateRequest* shared) {
  RETURN_IF_ERROR(CheckBestOf(fields));
  RETURN_IF_ERROR(ReadStream(fields, request));
  RETURN_IF_ERROR(ReadSampling(fields, shared->mutable_sampling()));
  RETURN_IF_ERROR(ReadStop(fields, shared));
  ASSIGN_OR_RETURN(request->constraint, ReadConstraint(fields, shared));
  RETURN_IF_ERROR(ReadSchedulingFields(fields, shared));
  ASSIGN_OR_RETURN(const std::optional<int32_t> n, fields.Int32("n"));
  if (n) shared->set_n(*n);
  ASSIGN_OR_RETURN(const std::optional<int32_t> min_tokens, fields.Int32("min_tokens"));
  if (min_tokens) shared->set_min_tokens(*min_tokens);
  ASSIGN_OR_RETURN(const std::optional<bool> ignore_eos, fields.Bool("ignore_eos"));
  if (ignore_eos) shared->set_ignore_eos(*ignore_eos);
  ASSIGN_OR_RETURN(const std::optional<bool> with_stop, fields.Bool("include_stop_str_in_output"));
  if (with_stop) shared->set_include_stop_str_in_output(*with_stop);
  ASSIGN_OR_RETURN(const std::optional<bool> skip_special, fields.Bool("skip_special_tokens"));
  if (skip_special) shared->set_skip_special_tokens(*skip_special);
  ASSIGN_OR_RETURN(const std::optional<int32_t> draft, fields.Int32("speculative_tokens"));
  if (draft) shared->set_speculative_tokens(*draft);
  ASSIGN_OR_RETURN(const std::optional<int32_t> interval, fields.Int32("stream_interval"));
  if (interval) shared->set_stream_interval(*interval);
  ASSIGN_OR_RETURN(const std::optional<int32_t> logprobs, fields.Int32("prompt_logprobs"));
  if (logprobs) {
    if (request->stream) {
      return FieldError("prompt_logprobs", "is set; it is not available where stream is true");
    }
    request->num_prompt_logprobs = *logprobs;
    shared->set_prompt_logprobs(request->num_prompt_logprobs);
  }
  ASSIGN_OR_RETURN(const std::optional<bool> as_ids, fields.Bool("return_tokens_as_token_ids"));
  request->tokens_as_ids = as_ids.value_or(false);
  return absl::OkStatus();
}

}  // namespace lssar

#include "server/api/sampling_fields.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/api/fields.h"

namespace lssar {
namespace {

using Float = SamplingValue<float>;
using Integer = SamplingValue<int32_t>;

// A new number is a row here, a field of v1::Sampling and one of SamplingParams.
constexpr std::array kFields = std::to_array<SamplingField>({
    {.name = "temperature",
     .value = Float{&SamplingParams::temperature, 0, limits::kMaxTemperature,
                    &v1::Sampling::has_temperature, &v1::Sampling::temperature,
                    &v1::Sampling::set_temperature},
     .help = "0 is greedy"},
    {.name = "top_k",
     .value = Integer{&SamplingParams::top_k, 0, kVocabularySize, &v1::Sampling::has_top_k,
                      &v1::Sampling::top_k, &v1::Sampling::set_top_k},
     .has_minus_one = true,
     .help = "keep the N most probable tokens; 0: all"},
    {.name = "top_p",
     .value = Float{&SamplingParams::top_p, 0, 1, &v1::Sampling::has_top_p, &v1::Sampling::top_p,
                    &v1::Sampling::set_top_p},
     .help = "keep the most probable tokens up to this total probability; 0: the best one"},
    {.name = "min_p",
     .value = Float{&SamplingParams::min_p, 0, 1, &v1::Sampling::has_min_p, &v1::Sampling::min_p,
                    &v1::Sampling::set_min_p},
     .help = "keep tokens with this share of the highest probability"},
    {.name = "repetition_penalty",
     .value = Float{&SamplingParams::repetition_penalty, 0, limits::kMaxRepetitionPenalty,
                    &v1::Sampling::has_repetition_penalty, &v1::Sampling::repetition_penalty,
                    &v1::Sampling::set_repetition_penalty},
     .excludes_low = true,
     .help = "penalty on tokens of prompt and output"},
    {.name = "presence_penalty",
     .value = Float{&SamplingParams::presence_penalty, -limits::kMaxPenalty, limits::kMaxPenalty,
                    &v1::Sampling::has_presence_penalty, &v1::Sampling::presence_penalty,
                    &v1::Sampling::set_presence_penalty},
     .help = "penalty on tokens of the output, once"},
    {.name = "frequency_penalty",
     .value = Float{&SamplingParams::frequency_penalty, -limits::kMaxPenalty, limits::kMaxPenalty,
                    &v1::Sampling::has_frequency_penalty, &v1::Sampling::frequency_penalty,
                    &v1::Sampling::set_frequency_penalty},
     .help = "penalty on tokens of the output, per occurrence"},
});

template <typename T>
std::string High(const SamplingValue<T>& value) {
  if constexpr (std::is_same_v<T, int32_t>) {
    if (value.high == kVocabularySize) return "vocabulary";
  }
  return StrCat(value.high);
}

}  // namespace

std::string SamplingField::Flag() const {
  std::string flag = StrCat("--", name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::string SamplingField::FlagHelp(const SamplingParams& defaults) const {
  return std::visit(
      [this, &defaults](const auto& number) {
        return StrCat(help, " [", excludes_low ? "over " : "", number.low, " to ", High(number),
                      "; default ", defaults.*number.param, "]");
      },
      value);
}

std::span<const SamplingField> SamplingFields() { return kFields; }

absl::Status ReadSamplingFields(const v1::Sampling& message, int vocab_size,
                                SamplingParams* params) {
  for (const SamplingField& field : kFields) {
    const std::string name = StrCat("sampling.", field.name);
    RETURN_IF_ERROR(std::visit(
        [&]<typename T>(const SamplingValue<T>& number) -> absl::Status {
          if ((message.*number.has)()) params->*number.param = (message.*number.get)();
          T high = number.high;
          if constexpr (std::is_same_v<T, int32_t>) {
            if (high == kVocabularySize) high = vocab_size;
          }
          const auto check = field.excludes_low ? CheckRangeAbove<T> : CheckRange<T>;
          return check(name, params->*number.param, number.low, high);
        },
        field.value));
  }
  return absl::OkStatus();
}

v1::Sampling ToMessage(const SamplingParams& params) {
  v1::Sampling message;
  for (const SamplingField& field : kFields) {
    std::visit([&](const auto& number) { (message.*number.set)(params.*number.param); },
               field.value);
  }
  return message;
}

std::string SamplingFieldSchemas() {
  return StrJoin(kFields, [](const SamplingField& field) {
    return std::visit(
        [&](const auto& number) {
          const std::string low =
              field.has_minus_one
                  ? "\"minimum\": -1"
                  : StrCat(field.excludes_low ? "\"exclusiveMinimum\": " : "\"minimum\": ",
                           number.low);
          return StrCat("\"", field.name, "\": {\"type\": [\"",
                        field.IsInteger() ? "integer" : "number", "\", \"null\"], ", low,
                        ", \"maximum\": ", number.high,
                        ", \"default\": ", SamplingParams().*number.param, ", \"description\": \"",
                        field.help, field.has_minus_one ? "; -1: the default" : "", "\"}");
        },
        field.value);
  });
}

std::string SamplingValueSchemas() {
  return StrJoin(kFields, [](const SamplingField& field) {
    return StrCat("\"", field.name, "\": {\"type\": \"", field.IsInteger() ? "integer" : "number",
                  "\"}");
  });
}

}  // namespace lssar

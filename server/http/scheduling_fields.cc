#include "server/http/scheduling_fields.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "lssar/v1/inference.pb.h"
#include "server/api/fields.h"
#include "server/config/limits.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// Appends a list of numbers; not there: nothing.
template <typename Numbers>
absl::Status ReadNumbers(const BodyFields& fields, std::string_view name, Numbers* list) {
  ASSIGN_OR_RETURN(const Json* const numbers, fields.List(name, "numbers"));
  if (numbers == nullptr) return absl::OkStatus();
  const std::string field = fields.Name(name);
  if (numbers->empty()) return FieldError(field, "is empty; leave it out");
  return ReadElements(field, *numbers, ReadNumber, [list](double number) { list->Add(number); });
}

// An unknown field could mean another function.
absl::Status CheckClosed(const Json& object, const std::string& field,
                         std::span<const std::string_view> names) {
  for (const auto& [name, value] : object.items()) {
    if (std::ranges::count(names, name) > 0) continue;
    return FieldError(field, StrCat("has a field ", Quote(name), "; it may have ", StrJoin(names)));
  }
  return absl::OkStatus();
}

// The fields of v1::AttentionOverride and v1::AttentionPower.
template <typename Message>
absl::Status ReadPower(const BodyFields& fields, Message* message) {
  ASSIGN_OR_RETURN(const std::optional<double> p, fields.Number("p"));
  if (p) message->set_p(*p);
  RETURN_IF_ERROR(ReadNumbers(fields, "p_by_layer", message->mutable_p_by_layer()));
  return ReadNumbers(fields, "p_by_head", message->mutable_p_by_head());
}

// {"p": 5, "kind": "lssar", "p_by_length": [{"min_keys": 256, "p": 3}]}. The objects are closed.
absl::Status ReadAttentionOverride(const Json& object, v1::AttentionOverride* message) {
  const std::string field = "attention_override";
  ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(object, field));
  constexpr std::array<std::string_view, 6> kNames = {"p",          "kind",      "phi",
                                                      "p_by_layer", "p_by_head", "p_by_length"};
  RETURN_IF_ERROR(CheckClosed(object, field, kNames));
  RETURN_IF_ERROR(ReadPower(fields, message));
  ASSIGN_OR_RETURN(const Json* const steps, fields.List("p_by_length", "objects"));
  if (steps != nullptr) {
    const std::string name = fields.Name("p_by_length");
    if (steps->empty()) return FieldError(name, "is empty; leave it out");
    for (size_t i = 0; i < steps->size(); ++i) {
      const std::string entry = StrCat(name, "[", i, "]");
      ASSIGN_OR_RETURN(const BodyFields step, BodyFields::Of((*steps)[i], entry));
      constexpr std::array<std::string_view, 4> kStepNames = {"min_keys", "p", "p_by_layer",
                                                              "p_by_head"};
      RETURN_IF_ERROR(CheckClosed((*steps)[i], entry, kStepNames));
      v1::AttentionPower& power = *message->add_p_by_length();
      ASSIGN_OR_RETURN(const std::optional<int32_t> min_keys, step.Int32("min_keys"));
      if (!min_keys) return FieldError(entry + ".min_keys", "is missing");
      power.set_min_keys(*min_keys);
      RETURN_IF_ERROR(ReadPower(step, &power));
    }
  }
  ASSIGN_OR_RETURN(std::optional<std::string> kind, fields.String("kind"));
  if (kind) message->set_kind(*std::move(kind));
  ASSIGN_OR_RETURN(std::optional<std::string> phi, fields.String("phi"));
  if (phi) message->set_phi(*std::move(phi));
  return absl::OkStatus();
}

// [{"layer": 3, "vector": [...], "scale": 1.5, "first_position": 10}]. The objects are closed.
template <typename Vectors>
absl::Status ReadSteering(const Json& list, Vectors* vectors) {
  if (!list.is_array()) {
    return FieldError("steering", StrCat("is ", TypeName(list), "; it must be a list of objects"));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string field = StrCat("steering[", i, "]");
    ASSIGN_OR_RETURN(const BodyFields fields, BodyFields::Of(list[i], field));
    constexpr std::array<std::string_view, 4> kNames = {"layer", "vector", "scale",
                                                        "first_position"};
    RETURN_IF_ERROR(CheckClosed(list[i], field, kNames));
    v1::Steering& message = *vectors->Add();
    ASSIGN_OR_RETURN(const std::optional<int32_t> layer, fields.Int32("layer"));
    if (!layer) return FieldError(field + ".layer", "is missing");
    message.set_layer(*layer);
    ASSIGN_OR_RETURN(const std::optional<int32_t> first, fields.Int32("first_position"));
    message.set_first_position(first.value_or(0));
    ASSIGN_OR_RETURN(const std::optional<double> scale, fields.Number("scale"));
    if (scale) message.set_scale(float(*scale));
    const Json* vector = fields.Find("vector");
    if (vector == nullptr || !vector->is_array()) {
      return FieldError(field + ".vector", vector == nullptr ? "is missing; it must be a list"
                                                             : "must be a list of numbers");
    }
    RETURN_IF_ERROR(ReadElements(field + ".vector", *vector, ReadNumber,
                                 [&message](double number) { message.add_vector(float(number)); }));
  }
  return absl::OkStatus();
}

}  // namespace

template <typename Message>
absl::Status ReadSchedulingFields(const BodyFields& fields, Message* message) {
  if (const Json* change = fields.Find("attention_override")) {
    RETURN_IF_ERROR(ReadAttentionOverride(*change, message->mutable_attention_override()));
  }
  if (const Json* steering = fields.Find("steering")) {
    RETURN_IF_ERROR(ReadSteering(*steering, message->mutable_steering()));
  }
  ASSIGN_OR_RETURN(std::optional<std::string> hash, fields.String("checkpoint_hash"));
  if (hash) message->set_checkpoint_hash(*std::move(hash));
  ASSIGN_OR_RETURN(const std::optional<int64_t> priority, fields.Int("priority"));
  if (priority) {
    RETURN_IF_ERROR(
        CheckRange<int64_t>("priority", *priority, -limits::kMaxPriority, limits::kMaxPriority));
    // vLLM: the lowest value runs first. In lssar.v1 the highest does.
    message->set_priority(-int32_t(*priority));
  }
  ASSIGN_OR_RETURN(std::optional<std::string> salt, fields.String("cache_salt"));
  if (salt) message->set_cache_salt(*std::move(salt));
  ASSIGN_OR_RETURN(const std::optional<bool> cache, fields.Bool("use_prefix_cache"));
  if (cache) message->set_use_prefix_cache(*cache);
  return absl::OkStatus();
}

template absl::Status ReadSchedulingFields(const BodyFields&, v1::GenerateRequest*);
template absl::Status ReadSchedulingFields(const BodyFields&, v1::ScoreRequest*);
template absl::Status ReadSchedulingFields(const BodyFields&, v1::EmbedRequest*);
template absl::Status ReadSchedulingFields(const BodyFields&, v1::CaptureAttentionRequest*);

}  // namespace lssar

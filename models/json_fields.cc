#include "models/json_fields.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "kernels/str_cat.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kMaxQuotedBytes = 120;

// A value as the file has it, shortened if it is long.
std::string Quote(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMaxQuotedBytes) text = text.substr(0, kMaxQuotedBytes) + "...";
  return text;
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view source) {
  std::vector<std::set<std::string>> names;  // of each open object, outermost first
  std::string fault;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kMaxDepth && fault.empty()) {
      fault = StrCat("nested more than ", kMaxDepth, " levels deep");
    }
    if (!fault.empty()) return false;  // the file is refused: store nothing more
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed).second) {
      fault = StrCat("the name ", Quote(parsed), " occurs twice in one object");
    }
    return true;
  };
  json parsed;
  try {
    parsed = json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& error) {
    if (fault.empty()) fault = StrCat("not JSON: at byte ", error.byte, " of ", text.size());
  } catch (const json::exception& error) {
    fault = StrCat("not JSON: ", error.what());
  }
  if (!fault.empty()) return absl::InvalidArgumentError(StrCat(source, ": ", fault));
  return parsed;
}

JsonFields::JsonFields(const json& object, std::string source)
    : object_(object), source_(std::move(source)) {
  if (!object_.is_object()) Fail(StrCat("is ", Quote(object_), ", must be a JSON object"));
}

const json* JsonFields::Find(std::string_view name) const {
  if (!object_.is_object()) return nullptr;
  const auto found = object_.find(std::string(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(std::string_view problem) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(StrCat(source_, ": ", problem));
}

void JsonFields::FailType(std::string_view name, std::string_view wanted) {
  Fail(StrCat(name, " is ", Quote(*Find(name)), ", must be ", wanted));
}

void JsonFields::FailMissing(std::string_view name) { Fail(StrCat(name, " is missing")); }

int64_t JsonFields::Int(std::string_view name, int64_t min, int64_t max,
                        std::optional<int64_t> fallback) {
  const json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) FailMissing(name);
    return fallback.value_or(min);
  }
  // An unsigned value above int64 would become negative; it is out of every range here.
  const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= uint64_t(INT64_MAX)
                                                : value->is_number_integer();
  const int64_t number = fits ? value->get<int64_t>() : 0;
  if (!fits || number < min || number > max) {
    FailType(name, StrCat("an integer in [", min, ", ", max, "]"));
    return min;
  }
  return number;
}

std::optional<int32_t> JsonFields::OptionalInt(std::string_view name, int32_t min, int32_t max) {
  if (!Has(name)) return std::nullopt;
  return int32_t(Int(name, min, max));
}

double JsonFields::Number(std::string_view name, double min, double max,
                          std::optional<double> fallback) {
  const json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) FailMissing(name);
    return fallback.value_or(min);
  }
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= min && number <= max)) {
    FailType(name, StrCat("a number in [", min, ", ", max, "]"));
    return min;
  }
  return number;
}

double JsonFields::Positive(std::string_view name, double max, std::optional<double> fallback) {
  const json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) FailMissing(name);
    return fallback.value_or(max);
  }
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number > 0 && number <= max)) {
    FailType(name, StrCat("a number in (0, ", max, "]"));
    return max;
  }
  return number;
}

bool JsonFields::Bool(std::string_view name, bool fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    FailType(name, "true or false");
    return fallback;
  }
  return value->get<bool>();
}

std::string JsonFields::Text(std::string_view name, std::optional<std::string> fallback) {
  const json* value = Find(name);
  if (value == nullptr) {
    if (!fallback) FailMissing(name);
    return std::move(fallback).value_or("");
  }
  if (!value->is_string()) {
    FailType(name, "a string");
    return "";
  }
  return value->get<std::string>();
}

int JsonFields::Choice(std::string_view name, std::initializer_list<std::string_view> choices) {
  const json* value = Find(name);
  if (value == nullptr) return 0;
  int index = 0;
  for (const std::string_view choice : choices) {
    if (value->is_string() && value->get_ref<const std::string&>() == choice) return index;
    ++index;
  }
  FailType(name, StrCat("one of ", StrJoin(choices)));
  return 0;
}

const json* JsonFields::Object(std::string_view name) {
  const json* value = Find(name);
  if (value != nullptr && !value->is_object()) FailType(name, "an object");
  return value != nullptr && value->is_object() ? value : nullptr;
}

const json* JsonFields::Array(std::string_view name) {
  const json* value = Find(name);
  if (value != nullptr && !value->is_array()) FailType(name, "an array");
  return value != nullptr && value->is_array() ? value : nullptr;
}

void JsonFields::RefuseOthers(std::initializer_list<std::string_view> known) {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    bool is_known = false;
    for (const std::string_view k : known) is_known |= k == name;
    if (!is_known) {
      Fail(StrCat("unknown field \"", name, "\" (", Quote(value),
                  "); known fields: ", StrJoin(known)));
    }
  }
}

}  // namespace lssar

#include "models/json_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/json_builder.h"

namespace lssar {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;

using VisitMember = absl::FunctionRef<absl::Status(const std::string&, const json&)>;

class StrictReader final : public JsonBuilder<json> {
 public:
  // With `visit` the members of the outermost object go there, and are not kept.
  explicit StrictReader(const VisitMember* visit) : JsonBuilder(kMaxDepth), visit_(visit) {}

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;  // the library's number of this error
    return Fail(error.id == kOutOfRange ? StrCat("the number at byte ", position, " is too large")
                                        : StrCat("not JSON: at byte ", position));
  }

  const absl::Status& VisitStatus() const { return visit_status_; }

 private:
  bool OnValue(const json& value) override {
    if (visit_ == nullptr || NumOpen() > 0 || value.is_object()) return true;
    return Fail(StrCat("is ", value.type_name(), ", not a JSON object"));
  }
  bool OnEnd() override {
    if (visit_ == nullptr || NumOpen() != 1) return true;
    visit_status_ = (*visit_)(Root().begin().key(), Root().front());
    Root().clear();
    return visit_status_.ok();
  }
  std::string DepthError() const override {
    return StrCat("nested more than ", kMaxDepth, " levels deep");
  }
  std::string RepeatError(const std::string& name) const override {
    return StrCat("the name ", QuoteJson(name), " occurs twice in one object");
  }

  const VisitMember* const visit_;
  absl::Status visit_status_;
};

absl::Status Read(std::string_view text, std::string_view source, StrictReader* reader) {
  try {
    reader->Parse(text);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        StrCat(source, ": no memory to read its ", text.size(), " bytes"));
  } catch (const json::exception&) {
    return absl::InvalidArgumentError(StrCat(source, ": not JSON"));
  }
  if (!reader->Error().empty()) {
    return absl::InvalidArgumentError(StrCat(source, ": ", reader->Error()));
  }
  return reader->VisitStatus();
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text, std::string_view source) {
  StrictReader reader(/*visit=*/nullptr);
  RETURN_IF_ERROR(Read(text, source, &reader));
  return std::move(reader.Root());
}

absl::Status ForEachJsonMember(std::string_view text, std::string_view source, VisitMember visit) {
  StrictReader reader(&visit);
  return Read(text, source, &reader);
}

std::string QuoteJson(const json& value) {
  constexpr size_t kMaxBytes = 120;
  return Shorten(value.dump(-1, ' ', /*ensure_ascii=*/true), kMaxBytes);
}

std::string ShortName(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  return Shorten(name, kMaxBytes);
}

JsonFields::JsonFields(const json& object, std::string source)
    : object_(object), source_(std::move(source)) {
  if (!object_.is_object()) Fail(StrCat("is ", QuoteJson(object_), ", must be a JSON object"));
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
  Fail(StrCat(name, " is ", QuoteJson(*Find(name)), ", must be ", wanted));
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

float JsonFields::PositiveFloat(std::string_view name, double max, std::optional<double> fallback) {
  constexpr double kMin = std::numeric_limits<float>::min();
  const double number = Positive(name, max, fallback);
  if (number < kMin) {
    FailType(name, StrCat("at least ", kMin, ", the smallest normal number in fp32"));
  }
  return float(std::max(number, kMin));
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

std::vector<std::string> JsonFields::Texts(std::string_view name, size_t max_count,
                                           size_t max_bytes) {
  const json* const list = Array(name);
  if (list == nullptr) return {};
  if (list->size() > max_count) {
    Fail(StrCat(name, " has ", list->size(), " elements, must have at most ", max_count));
    return {};
  }
  std::vector<std::string> texts;
  for (const json& element : *list) {
    const auto* const text = element.get_ptr<const std::string*>();
    if (text == nullptr || text->empty() || text->size() > max_bytes) {
      Fail(StrCat(name, " has the element ", QuoteJson(element), ", must hold texts of 1 to ",
                  max_bytes, " bytes"));
      return {};
    }
    texts.push_back(*text);
  }
  return texts;
}

void JsonFields::RejectOthers(std::initializer_list<std::string_view> known) {
  if (!object_.is_object()) return;
  for (const auto& [name, value] : object_.items()) {
    bool is_known = false;
    for (const std::string_view k : known) is_known |= k == name;
    if (!is_known) {
      Fail(StrCat("unknown field \"", ShortName(name), "\" (", QuoteJson(value),
                  "); known fields: ", StrJoin(known)));
    }
  }
}

}  // namespace lssar

#include "server/http/json_text.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/quote.h"
#include "base/str_cat.h"
#include "models/json_builder.h"
#include "models/text/tokenizer.h"
#include "server/config/limits.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

// Bytes of the library's reason, which may quote as much of the body as it likes.
constexpr size_t kMaxReasonBytes = 160;
// Values between two polls of should_stop.
constexpr int kPollInterval = 4096;

class StrictBuilder final : public JsonBuilder<Json> {
 public:
  explicit StrictBuilder(absl::FunctionRef<bool()> should_stop)
      : JsonBuilder(size_t(kMaxJsonDepth)), should_stop_(should_stop) {}

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: ...": the reason alone.
    std::string_view what = error.what();
    for (const std::string_view end : {": ", "] "}) {
      if (const size_t at = what.find(end); at != std::string_view::npos) {
        what.remove_prefix(at + end.size());
        break;
      }
    }
    return Fail(
        StrCat("the body is not JSON at byte ", position, ": ", Shorten(what, kMaxReasonBytes)));
  }

  bool IsStopped() const { return is_stopped_; }

 private:
  bool OnValue(const Json& /*value*/) override {
    if (++num_values_ % kPollInterval == 0 && should_stop_()) {
      is_stopped_ = true;
      return false;
    }
    if (num_values_ <= limits::kMaxJsonValues) return true;
    return Fail(StrCat("the body has more than ", limits::kMaxJsonValues, " values"));
  }
  bool OnKey() override {
    if (++num_keys_ <= limits::kMaxJsonKeys) return true;
    return Fail(StrCat("the body has more than ", limits::kMaxJsonKeys, " keys"));
  }
  std::string DepthError() const override {
    return StrCat("the body nests deeper than ", kMaxJsonDepth, " levels");
  }
  std::string RepeatError(const std::string& name) const override {
    return StrCat("the body has the key ", Quote(name), " twice in one object");
  }

  absl::FunctionRef<bool()> should_stop_;
  int num_values_ = 0;
  int num_keys_ = 0;
  bool is_stopped_ = false;
};

// Writes the events of the value at a path as JSON text.
class Extractor : public nlohmann::json_sax<Json> {
 public:
  explicit Extractor(std::span<const std::string> path) : path_(path) {}

  bool null() override { return Scalar("null"); }
  bool boolean(bool value) override { return Scalar(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return Scalar(Json(value).dump()); }
  bool number_unsigned(number_unsigned_t value) override { return Scalar(Json(value).dump()); }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return Scalar(Json(value).dump());
  }
  bool string(string_t& value) override {
    CountElement();
    return IsInside() ? Write(JsonString(value)) : true;
  }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none
  bool start_object(size_t /*size*/) override { return Open('{'); }
  bool key(string_t& name) override {
    if (IsInside()) {
      Separate();
      AppendJsonString(name, &text_);
      text_ += ':';
    } else if (IsInPath() && path_[num_found_] == name) {
      ++num_found_;
    }
    return true;
  }
  bool end_object() override { return Close('}'); }
  bool start_array(size_t /*size*/) override { return Open('['); }
  bool end_array() override { return Close(']'); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

  std::string TakeText() { return std::move(text_); }

 private:
  // At or within the value at the path. Objects beside the path leave depth_ above num_found_.
  bool IsInside() const { return num_found_ == path_.size() && depth_ >= num_found_; }
  // Directly within the object or list that has the next value of the path.
  bool IsInPath() const { return depth_ == num_found_ + 1 && num_found_ < path_.size(); }
  // Before each value.
  void CountElement() {
    if (is_in_list_ && IsInPath() && path_[num_found_] == std::to_string(num_elements_++)) {
      ++num_found_;
    }
  }
  void Separate() {
    if (!text_.empty() && text_.back() != '{' && text_.back() != '[' && text_.back() != ':') {
      text_ += ',';
    }
  }
  bool Scalar(std::string_view value) {
    CountElement();
    return IsInside() ? Write(value) : true;
  }
  bool Write(std::string_view scalar) {
    Separate();
    text_ += scalar;
    return !IsEnd();
  }
  bool Open(char bracket) {
    CountElement();
    if (IsInside()) {
      Separate();
      text_ += bracket;
    } else if (depth_ == num_found_) {
      is_in_list_ = bracket == '[';
      num_elements_ = 0;
    }
    ++depth_;
    return true;
  }
  bool Close(char bracket) {
    --depth_;
    if (IsInside()) text_ += bracket;
    return !IsEnd();
  }
  // After the value at the path nothing is read.
  bool IsEnd() const { return IsInside() && depth_ == path_.size(); }

  std::span<const std::string> path_;
  size_t num_found_ = 0;  // keys and positions of the path that lead here
  size_t depth_ = 0;      // objects and arrays that are open
  // The innermost open one that leads to the value is a list, of which so many elements were seen.
  bool is_in_list_ = false;
  size_t num_elements_ = 0;
  std::string text_;
};

}  // namespace

std::string JsonAt(std::string_view text, std::span<const std::string> path) {
  Extractor extractor(path);
  Json::sax_parse(text.begin(), text.end(), &extractor);
  return extractor.TakeText();
}

absl::StatusOr<Json> ParseJson(std::string_view text, absl::FunctionRef<bool()> should_stop) {
  if (text.empty()) return absl::InvalidArgumentError("the body is empty; it must be JSON");
  StrictBuilder builder(should_stop);
  if (builder.Parse(text)) return std::move(builder.Root());
  if (builder.IsStopped()) return absl::CancelledError("parsing was stopped");
  return absl::InvalidArgumentError(builder.Error());
}

void AppendJsonString(std::string_view text, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  *out += '"';
  std::string mended;
  if (FindInvalidUtf8(text)) {
    mended = Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
    out->append(mended, 1);  // without its first quote, with its last
    return;
  }
  size_t begin = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text.substr(begin, i - begin));
    begin = i + 1;
    switch (c) {
      case '"': *out += "\\\""; break;
      case '\\': *out += "\\\\"; break;
      case '\n': *out += "\\n"; break;
      case '\r': *out += "\\r"; break;
      case '\t': *out += "\\t"; break;
      default:
        *out += "\\u00";
        *out += kHex[c >> 4];
        *out += kHex[c & 15];
    }
  }
  out->append(text.substr(begin));
  *out += '"';
}

std::string JsonString(std::string_view text) {
  std::string json;
  AppendJsonString(text, &json);
  return json;
}

}  // namespace lssar

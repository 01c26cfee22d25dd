#include "server/batch/batch_row.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/quote.h"
#include "base/str_cat.h"
#include "server/config/limits.h"
#include "server/http/json_text.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kIdBegin = R"({"id":"batch_req_)";
// Longer messages of a reply are shortened in the error that repeats them.
constexpr size_t kMaxRepeatedBytes = 256;
constexpr std::array<std::string_view, 4> kRowFields = {"custom_id", "method", "url", "body"};

std::string Begin(const BatchRow& row) {
  return StrCat(kIdBegin, row.number, R"(","custom_id":)",
                row.custom_id.empty() ? "null" : JsonString(row.custom_id));
}

std::string ErrorObject(std::string_view code, std::string_view message) {
  return StrCat(R"({"code":)", JsonString(code), R"(,"message":)", JsonString(message), "}");
}

// What is wrong with the fields beside custom_id; empty: nothing.
std::string ProblemOf(const Json& line, std::string_view endpoint) {
  for (const auto& [name, value] : line.items()) {
    if (std::ranges::find(kRowFields, name) == kRowFields.end()) {
      return StrCat("has a field ", Quote(name), "; it may have custom_id, method, url and body");
    }
  }
  const auto text = [&line](const char* name) {
    const auto found = line.find(name);
    return found != line.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (text("method") != "POST") {
    return StrCat("method is ", Quote(text("method")), "; it must be \"POST\"");
  }
  if (text("url") != endpoint) {
    return StrCat("url is ", Quote(text("url")), "; it must be the batch's endpoint, ",
                  Quote(endpoint));
  }
  const auto body = line.find("body");
  if (body == line.end() || !body->is_object()) return "body must be an object";
  const auto stream = body->find("stream");
  if (stream != body->end() && stream->is_boolean() && stream->get<bool>()) {
    return "body.stream is true; answers of a batch are whole";
  }
  return {};
}

}  // namespace

bool IsBlankLine(std::string_view line) {
  return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos;
}

BatchRow ParseBatchRow(int number, std::string_view line, std::string_view endpoint) {
  BatchRow row{.number = number};
  const auto reject = [&row](std::string_view code, std::string_view problem) {
    row.error_code = code;
    row.error = StrCat("line ", row.number, ": ", problem);
    return row;
  };
  if (line.size() > size_t(limits::kMaxBatchRowBytes)) {
    return reject("line_too_long",
                  StrCat("has ", line.size(), " bytes; it may have ", limits::kMaxBatchRowBytes));
  }
  {
    const auto parsed = ParseJson(line);
    if (!parsed.ok())
      return reject("invalid_json", StrCat("not JSON: ", parsed.status().message()));
    if (!parsed->is_object()) return reject("invalid_request", "not an object");
    const auto id = parsed->find("custom_id");
    if (id == parsed->end() || !id->is_string() || id->get_ref<const std::string&>().empty() ||
        id->get_ref<const std::string&>().size() > size_t(limits::kMaxCustomIdBytes)) {
      return reject("invalid_request", StrCat("custom_id must be a text of 1 to ",
                                              limits::kMaxCustomIdBytes, " bytes"));
    }
    row.custom_id = id->get<std::string>();
    const std::string problem = ProblemOf(*parsed, endpoint);
    if (!problem.empty()) return reject("invalid_request", problem);
  }
  // The order of a schema's properties is that of the output.
  row.body = JsonAt(line, std::array<std::string, 1>{"body"});
  return row;
}

std::string AnsweredLine(const BatchRow& row, int status, std::string_view request_id,
                         std::string body) {
  std::string error = "null";
  if (status != 200) {
    const Json reply = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    const Json reply_error = reply.is_object() ? reply.value("error", Json()) : Json();
    const auto text = [&reply_error](const char* name) {
      if (!reply_error.is_object()) return std::string();
      const auto found = reply_error.find(name);
      return found != reply_error.end() && found->is_string() ? found->get<std::string>()
                                                              : std::string();
    };
    std::string code = text("code");
    if (code.empty()) code = text("type");
    if (code.empty()) code = StrCat("status_", status);
    error = ErrorObject(code, Shorten(text("message"), kMaxRepeatedBytes));
    if (reply.is_discarded()) body = JsonString(body);
  }
  // A line: outside of strings, where JSON has none, line ends are white space.
  std::ranges::replace(body, '\n', ' ');
  return StrCat(Begin(row), R"(,"response":{"status_code":)", status, R"(,"request_id":)",
                JsonString(request_id), R"(,"body":)", body, R"(},"error":)", error, "}\n");
}

std::string UnansweredLine(const BatchRow& row, std::string_view code, std::string_view message) {
  return StrCat(Begin(row), R"(,"response":null,"error":)", ErrorObject(code, message), "}\n");
}

std::optional<int> AnsweredRow(std::string_view begin) {
  if (!begin.starts_with(kIdBegin)) return std::nullopt;
  begin.remove_prefix(kIdBegin.size());
  int number = 0;
  const auto [end, error] = std::from_chars(begin.data(), begin.data() + begin.size(), number);
  if (error != std::errc() || number < 1 || end == begin.data() + begin.size() || *end != '"') {
    return std::nullopt;
  }
  return number;
}

}  // namespace lssar

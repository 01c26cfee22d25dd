#include "clients/cli/json_output.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "clients/cli/terminal.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

Json LogprobToJson(const v1::TokenLogprob& token) {
  Json json = {{"id", token.id()}, {"piece", PieceText(token.piece())}};
  json["logprob"] = token.has_logprob() ? Json(token.logprob()) : Json();
  return json;
}

}  // namespace

std::string PieceText(std::string_view piece) {
  if (!FindInvalidUtf8(piece)) return std::string(piece);
  std::string text = "bytes:";
  for (const char c : piece) absl::StrAppendFormat(&text, "\\x%02x", uint8_t(c));
  return text;
}

Json TokenToJson(const v1::Token& token) {
  Json json = LogprobToJson(token.token());
  if (!token.top().empty()) {
    json["top"] = Json::array();
    for (const auto& other : token.top()) json["top"].push_back(LogprobToJson(other));
  }
  return json;
}

Json TokensToJson(const std::vector<v1::Token>& tokens) {
  Json json = Json::array();
  for (const auto& token : tokens) json.push_back(TokenToJson(token));
  return json;
}

Json UsageToJson(const v1::Usage& usage) {
  return {{"num_prompt_tokens", usage.num_prompt_tokens()},
          {"num_cached_tokens", usage.num_cached_tokens()},
          {"num_generated_tokens", usage.num_generated_tokens()},
          {"num_preemptions", usage.num_preemptions()},
          {"num_draft_tokens", usage.num_draft_tokens()},
          {"num_accepted_tokens", usage.num_accepted_tokens()},
          {"num_value_rows", usage.num_value_rows()},
          {"num_value_rows_read", usage.num_value_rows_read()}};
}

Json TimingsToJson(const v1::Timings& timings) {
  return {{"queue_us", timings.queue_us()},
          {"prefill_us", timings.prefill_us()},
          {"decode_us", timings.decode_us()}};
}

HeadMeans::HeadMeans(const v1::HeadStatistics& head) {
  const auto rows = double(std::max<int64_t>(1, head.num_rows()));
  zero = double(head.num_zero()) / double(std::max<int64_t>(1, head.num_keys()));
  negligible =
      double(head.num_keys() - head.num_nonzero()) / double(std::max<int64_t>(1, head.num_keys()));
  effective_keys = head.effective_keys() / rows;
  first_token_mass = head.first_token_mass() / rows;
  for (const double mass : head.distance_mass()) distance_mass.push_back(mass / rows);
}

Json HeadStatisticsToJson(const v1::HeadStatistics& head) {
  const HeadMeans means(head);
  return {{"layer", head.layer()},
          {"head", head.head()},
          {"num_rows", head.num_rows()},
          {"num_keys", head.num_keys()},
          {"num_nonzero", head.num_nonzero()},
          {"num_zero", head.num_zero()},
          {"zero", means.zero},
          {"negligible", means.negligible},
          {"effective_keys", means.effective_keys},
          {"first_token_mass", means.first_token_mass},
          {"distance_mass", means.distance_mass}};
}

Json MessageToJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string text;
  LSSAR_CHECK(google::protobuf::util::MessageToJsonString(message, &text, options).ok());
  return Json::parse(text);
}

std::string Describe(const v1::TextOrTokens& text, int max_columns) {
  if (text.has_tokens()) return StrCat("[", text.tokens().ids_size(), " ids]");
  return OneLine(text.text(), max_columns);
}

std::string JsonLine(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void PrintJson(const Json& value) {
  const std::string line = JsonLine(value);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace lssar::cli

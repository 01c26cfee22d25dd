#include "clients/cli/json_output.h"

#include <cstdio>
#include <string>

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

Json LogprobToJson(const v1::TokenLogprob& token) {
  Json json = {{"id", token.id()}, {"piece", token.piece()}};
  json["logprob"] = token.has_logprob() ? Json(token.logprob()) : Json();
  return json;
}

}  // namespace

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
          {"num_value_rows", usage.num_value_rows()},
          {"num_value_rows_read", usage.num_value_rows_read()}};
}

Json TimingsToJson(const v1::Timings& timings) {
  return {{"queue_us", timings.queue_us()},
          {"prefill_us", timings.prefill_us()},
          {"decode_us", timings.decode_us()}};
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

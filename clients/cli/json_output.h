// Messages of the service as JSON, for --json, and a text in one line. A token may be a part of a
// character: its piece is then PieceText's. Elsewhere bytes that are not UTF-8 become U+FFFD.
#ifndef LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_
#define LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_

#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

nlohmann::ordered_json TokenToJson(const v1::Token& token);
nlohmann::ordered_json TokensToJson(const std::vector<v1::Token>& tokens);
nlohmann::ordered_json UsageToJson(const v1::Usage& usage);
nlohmann::ordered_json TimingsToJson(const v1::Timings& timings);

// A message with the names of its proto, as protobuf's JSON mapping has it.
nlohmann::ordered_json MessageToJson(const google::protobuf::Message& message);

// Means over the rows of a head.
struct HeadMeans {
  explicit HeadMeans(const v1::HeadStatistics& head);

  double zero = 0;        // share of the keys whose weight is exactly zero by the formula
  double negligible = 0;  // share of the keys whose weight is below 2^-32 of the row's largest
  double effective_keys = 0;
  double first_token_mass = 0;
  std::vector<double> distance_mass;
};

// Counts, and the means over the rows.
nlohmann::ordered_json HeadStatisticsToJson(const v1::HeadStatistics& head);

// A token's bytes as JSON text: "bytes:\\xc3" if they are no whole UTF-8, as the HTTP API has them.
std::string PieceText(std::string_view piece);

// The text in a line of at most `max_columns`, or how many ids there are.
std::string Describe(const v1::TextOrTokens& text, int max_columns);

// One line without its end.
std::string JsonLine(const nlohmann::ordered_json& value);

// Prints one line on stdout and flushes it.
void PrintJson(const nlohmann::ordered_json& value);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_

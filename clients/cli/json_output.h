// The wire's messages as JSON for --json. Text that is not UTF-8 (a token may be half a character)
// shows U+FFFD; its id stands beside it.
#ifndef LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_
#define LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_

#include <vector>

#include "lssar/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace lssar::cli {

nlohmann::ordered_json TokenToJson(const v1::Token& token);
nlohmann::ordered_json TokensToJson(const std::vector<v1::Token>& tokens);
nlohmann::ordered_json UsageToJson(const v1::Usage& usage);
nlohmann::ordered_json TimingsToJson(const v1::Timings& timings);

// One line on stdout, flushed.
void PrintJson(const nlohmann::ordered_json& value);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_JSON_OUTPUT_H_

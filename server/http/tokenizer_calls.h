// The calls that the engine has no part in: models, tokenize, detokenize, tokenizer_info.
#ifndef LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_
#define LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/api/parse_request.h"
#include "server/served_model.h"

namespace lssar {

// The body of each reply. `body`: of the request.
absl::StatusOr<std::string> TokenizeJson(const nlohmann::json& body, const ParseContext& context);
absl::StatusOr<std::string> DetokenizeJson(const nlohmann::json& body, const ParseContext& context);

// Repeats tokenizer_config.json as it was loaded.
absl::StatusOr<std::string> TokenizerInfoJson(const ServedModel& model);

// `created`: seconds since 1970.
std::string ModelJson(const ServedModel& model, int64_t created);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_

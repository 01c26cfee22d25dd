// The calls that the engine has no part in: models, tokenize, detokenize, count_tokens,
// tokenizer_info.
#ifndef LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_
#define LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/http/http_message.h"
#include "server/loaded_model.h"

namespace lssar {

// The body of each reply. Worker thread.
absl::StatusOr<std::string> TokenizeJson(const HttpRequest& request, const CallContext& context);
// POST /v1/messages/count_tokens: the prompt's tokens, as Anthropic's API counts them.
absl::StatusOr<std::string> CountTokensJson(const HttpRequest& request, const CallContext& context);
absl::StatusOr<std::string> DetokenizeJson(const HttpRequest& request, const CallContext& context);

// Repeats tokenizer_config.json as it was loaded.
absl::StatusOr<std::string> TokenizerInfoJson(const HttpRequest& request,
                                              const CallContext& context);

// `name`: one of the model's. `created`: seconds since 1970.
std::string ModelJson(const LoadedModel& model, const std::string& name, int64_t created);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_TOKENIZER_CALLS_H_

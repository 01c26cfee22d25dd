// OpenAI's /v1/files and /v1/batches: what a key's clients see of server/batch.
#ifndef LSSAR_SERVER_HTTP_BATCH_CALLS_H_
#define LSSAR_SERVER_HTTP_BATCH_CALLS_H_

#include <span>
#include <string_view>

#include "server/batch/batch_store.h"
#include "server/http/http_codec.h"

namespace lssar {

inline constexpr std::string_view kFilesPath = "/v1/files";

struct BatchPath {
  std::string_view method;
  std::string_view path;  // "/v1/files/{id}/content"
  std::string_view rpc;   // the call's name in the log line
  // `store` outlives the calls.
  HttpMethod (*make)(BatchStore* store);
};
std::span<const BatchPath> BatchPaths();
// The `path` of BatchPaths that `path` is one of; empty: of none.
std::string_view BatchPathOf(std::string_view path);

// The answer of these paths on a server without --batch-dir.
HttpMethod MakeBatchesOff();

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_BATCH_CALLS_H_

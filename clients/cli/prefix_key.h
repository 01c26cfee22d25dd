// The header by which a load balancer sends requests of one prefix to one server, where pages of
// that prefix are (deploy/cluster). The same as the Python package's _prefix.py.
#ifndef LSSAR_CLIENTS_CLI_PREFIX_KEY_H_
#define LSSAR_CLIENTS_CLI_PREFIX_KEY_H_

#include <string>

#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

inline constexpr char kPrefixHeader[] = "x-lssar-prefix";

// The first 16 hex digits of the SHA-256 of cache_salt and the beginning of the request: the first
// 256 bytes of a text, the first 64 ids in decimal with ", " between them, the
// messages of a chat up to the user's first. Several items: the first one's.
std::string PrefixKey(const v1::GenerateRequest& request);
std::string PrefixKey(const v1::ScoreRequest& request);
std::string PrefixKey(const v1::EmbedRequest& request);
std::string PrefixKey(const v1::CaptureAttentionRequest& request);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PREFIX_KEY_H_

// The fields that Generate, Score and CaptureAttention have: how a request shares the engine with
// others.
#ifndef LSSAR_SERVER_PARSE_SHARING_H_
#define LSSAR_SERVER_PARSE_SHARING_H_

#include "absl/status/status.h"
#include "runtime/limits.h"
#include "runtime/request.h"
#include "server/fields.h"

namespace lssar {

// `Message`: v1::GenerateRequest, v1::ScoreRequest or v1::CaptureAttentionRequest.
template <typename Message>
absl::Status ReadSharing(const Message& message, Request& request) {
  request.priority = message.priority();
  if (message.has_use_prefix_cache()) request.use_prefix_cache = message.use_prefix_cache();
  request.cache_salt = message.cache_salt();
  RETURN_IF_ERROR(
      CheckRange("priority", request.priority, -limits::kMaxPriority, limits::kMaxPriority));
  RETURN_IF_ERROR(CheckText("cache_salt", request.cache_salt));
  return CheckBytes("cache_salt", request.cache_salt.size(), 0, limits::kMaxCacheSaltBytes);
}

}  // namespace lssar

#endif  // LSSAR_SERVER_PARSE_SHARING_H_

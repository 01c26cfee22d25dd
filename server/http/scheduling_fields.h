// The fields of a body that all requests to the engine have: how a request is scheduled, and what
// must answer it.
#ifndef LSSAR_SERVER_HTTP_SCHEDULING_FIELDS_H_
#define LSSAR_SERVER_HTTP_SCHEDULING_FIELDS_H_

#include "absl/status/status.h"
#include "server/http/body_fields.h"

namespace lssar {

// attention_override, steering, checkpoint_hash, priority, cache_salt, use_prefix_cache.
// `Message`: v1::GenerateRequest, v1::ScoreRequest, v1::EmbedRequest or
// v1::CaptureAttentionRequest.
template <typename Message>
absl::Status ReadSchedulingFields(const BodyFields& fields, Message* message);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_SCHEDULING_FIELDS_H_

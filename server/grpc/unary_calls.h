// The unary calls, as functions of the request and the model.
#ifndef LSSAR_SERVER_GRPC_UNARY_CALLS_H_
#define LSSAR_SERVER_GRPC_UNARY_CALLS_H_

#include "absl/status/statusor.h"
#include "lssar/v1/inference.pb.h"
#include "server/api/parse_request.h"
#include "server/ops/metrics.h"
#include "server/served_model.h"

namespace lssar {

absl::StatusOr<v1::TokenizeReply> Tokenize(const v1::TokenizeRequest& request,
                                           const ParseContext& context);

absl::StatusOr<v1::DetokenizeReply> Detokenize(const v1::DetokenizeRequest& request,
                                               const ParseContext& context);

// The served model, its limits and the current load.
absl::StatusOr<v1::GetInfoReply> GetInfo(const v1::GetInfoRequest& request,
                                         const ServedModel& model);

// Counts since the server's start and the current load.
absl::StatusOr<v1::GetStatsReply> GetStats(const ServedModel& model, const Metrics& metrics);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_UNARY_CALLS_H_

// Converts between gRPC's types and the server's own: call metadata, messages and statuses.
#ifndef LSSAR_SERVER_GRPC_ADAPTER_H_
#define LSSAR_SERVER_GRPC_ADAPTER_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "server/api/call_context.h"

namespace lssar {

// Reads the call's metadata and its deadline.
CallMetadata ReadMetadata(std::string_view rpc, std::optional<CallKind> kind,
                          const grpc::ServerContextBase& context);

// Returns x-request-id and traceparent to the client as trailing metadata.
void SendIds(const CallContext& call, grpc::ServerContextBase& context);

// Parses a request. The service takes raw bytes because gRPC answers a request that does not parse
// (for example a text field that is not UTF-8) with UNIMPLEMENTED and no message.
// Errors  INVALID_ARGUMENT: a text field that is not UTF-8 (names the field and the byte), a field
//         that the message type does not have (names its number), or bytes that are not a message
//         of this type
//         CANCELLED: the client left before it sent the request
absl::Status ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Requires  the message is smaller than protobuf's limit of 2 GiB; every reply's size is bounded
//           far below it
grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

// Keeps code and message. RESOURCE_EXHAUSTED carries google.rpc.RetryInfo with RetryDelay(status),
// what has an ErrorReason google.rpc.ErrorInfo.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_ADAPTER_H_

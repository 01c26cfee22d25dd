// Messages as bytes. The services take raw bytes because gRPC answers a request that does not parse
// (a text field that is not UTF-8, say) with an empty UNIMPLEMENTED: a user needs the field's name.
#ifndef LSSAR_SERVER_WIRE_H_
#define LSSAR_SERVER_WIRE_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace lssar {

// Errors  INVALID_ARGUMENT: a text field that is not UTF-8 (names the field and the byte), or bytes
//         that are not a message of this type; CANCELLED: no bytes, because the client went
absl::Status ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Requires  a message within protobuf's 2 GiB: every reply's size is bounded long before that
grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message);

}  // namespace lssar

#endif  // LSSAR_SERVER_WIRE_H_

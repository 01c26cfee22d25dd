#include "server/wire.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/slice.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/str_cat.h"
#include "models/tokenizer.h"

namespace lssar {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// The first text field in `bytes`, a message of `type`, that is not UTF-8, as a sentence. Reads
// through an empty message, whose unknown fields are everything: they are not checked for UTF-8.
std::optional<std::string> FindBadText(const Descriptor& type, const std::string& bytes) {
  google::protobuf::Empty empty;
  if (!empty.ParseFromString(bytes)) return std::nullopt;
  const auto& fields = empty.GetReflection()->GetUnknownFields(empty);
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& value = fields.field(i);
    const FieldDescriptor* field = type.FindFieldByNumber(value.number());
    if (field == nullptr || value.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const auto inner = FindBadText(*field->message_type(), value.length_delimited());
      if (inner) return StrCat(field->name(), ".", *inner);
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      const auto offset = FindInvalidUtf8(value.length_delimited());
      if (offset) return StrCat(field->name(), " is not UTF-8 at byte ", *offset);
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  // gRPC starts a call whose message never came, too.
  if (!bytes.Dump(&slices).ok()) {
    return absl::CancelledError("the client went before its request came");
  }
  std::string joined;
  joined.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  if (message->ParseFromString(joined)) return absl::OkStatus();
  const auto bad_text = FindBadText(*message->GetDescriptor(), joined);
  return absl::InvalidArgumentError(
      bad_text ? *bad_text
               : StrCat("the request's ", joined.size(), " bytes are not a ",
                        message->GetDescriptor()->full_name(), " message"));
}

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message) {
  std::string joined;
  LSSAR_CHECK(message.SerializeToString(&joined));
  const grpc::Slice slice(joined);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace lssar

#include "server/grpc/adapter.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpc/slice.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/error_details.h"
#include "base/field_error.h"
#include "base/quote.h"
#include "base/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "models/text/tokenizer.h"
#include "server/config/limits.h"

namespace lssar {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// Empty if the client sent no such metadata.
std::string MetadataValue(const grpc::ServerContextBase& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

// All values, with commas between them.
std::string MetadataValues(const grpc::ServerContextBase& context, const char* key) {
  std::string values;
  const auto [begin, end] = context.client_metadata().equal_range(key);
  for (auto at = begin; at != end; ++at) {
    if (!values.empty()) values += ',';
    values.append(at->second.data(), at->second.size());
  }
  return values;
}

std::optional<Clock::time_point> ReadDeadline(const grpc::ServerContextBase& context) {
  using std::chrono::system_clock;
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return std::nullopt;
  const auto remaining = deadline - system_clock::now();
  // A deadline more than a year away counts as none, so that the sum of the clocks cannot overflow.
  if (remaining > std::chrono::hours(24 * 365)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(remaining);
}

using Wire = google::protobuf::internal::WireFormatLite;

bool IsWireTypeOf(const FieldDescriptor& field, Wire::WireType type) {
  return type == Wire::WireTypeForFieldType(Wire::FieldType(field.type())) ||
         (type == Wire::WIRETYPE_LENGTH_DELIMITED && field.is_packable());
}

// What a request is refused for before it is parsed.
struct WireScan {
  int num_objects = 0;  // sub-messages, strings and lists: two bytes become an object of 50
  // A field that Protobuf would ignore. The path is of the message that has it; empty: the request.
  std::optional<FieldProblem> unknown;
};

// Scans `input`, a message of `type`, up to `limit` objects or an unknown field. What does not
// parse counts as nothing.
void Scan(const Descriptor& type, int limit, google::protobuf::io::CodedInputStream* input,
          WireScan* scan) {
  while (scan->num_objects < limit) {
    const uint32_t tag = input->ReadTag();  // 0 at the end
    if (tag == 0) return;
    const int number = Wire::GetTagFieldNumber(tag);
    const Wire::WireType wire_type = Wire::GetTagWireType(tag);
    if (wire_type == Wire::WIRETYPE_END_GROUP || wire_type > Wire::WIRETYPE_FIXED32) return;
    const FieldDescriptor* field = type.FindFieldByNumber(number);
    if (field == nullptr || !IsWireTypeOf(*field, wire_type)) {
      scan->unknown = {
          .path = "",
          .problem = StrCat("has a field of number ", number, " and wire type ", int(wire_type),
                            "; ", type.full_name(), " of lssar ", LSSAR_VERSION, " has none")};
      return;
    }
    if (wire_type != Wire::WIRETYPE_LENGTH_DELIMITED) {
      if (!Wire::SkipField(input, tag)) return;
      continue;
    }
    int num_bytes = 0;
    if (!input->ReadVarintSizeAsInt(&num_bytes)) return;
    ++scan->num_objects;
    if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      const auto outer = input->PushLimit(num_bytes);
      Scan(*field->message_type(), limit, input, scan);
      if (scan->unknown) {
        std::string& path = scan->unknown->path;
        path = path.empty() ? field->name() : StrCat(field->name(), ".", path);
        return;
      }
      if (scan->num_objects >= limit) return;
      const int left = input->BytesUntilLimit();
      if (left > 0 && !input->Skip(left)) return;
      input->PopLimit(outer);
    } else if (!input->Skip(num_bytes)) {
      return;
    }
  }
}

// Names the first text field in `bytes`, a message of `type`, that is not UTF-8. Parses the bytes
// as an empty message: all fields are then unknown fields, which protobuf does not check for UTF-8.
std::optional<FieldProblem> FindBadText(const Descriptor& type, const std::string& bytes) {
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
      auto inner = FindBadText(*field->message_type(), value.length_delimited());
      if (!inner) continue;
      inner->path = StrCat(field->name(), ".", inner->path);
      return inner;
    } else if (field->type() == FieldDescriptor::TYPE_STRING) {
      const auto offset = FindInvalidUtf8(value.length_delimited());
      if (offset) {
        return FieldProblem{.path = field->name(),
                            .problem = StrCat("is not UTF-8 at byte ", *offset)};
      }
    }
  }
  return std::nullopt;
}

google::rpc::RetryInfo RetryInfo(absl::Duration delay) {
  const int64_t seconds = absl::ToInt64Seconds(delay);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(seconds);
  retry.mutable_retry_delay()->set_nanos(
      int32_t(absl::ToInt64Nanoseconds(delay - absl::Seconds(seconds))));
  return retry;
}

google::rpc::ErrorInfo ErrorInfo(const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain(kErrorDomain);
  return info;
}

// A serialized google.rpc.Status; empty if there is nothing to add.
std::string ErrorDetails(const absl::Status& status) {
  google::rpc::Status details;
  if (absl::IsResourceExhausted(status)) {
    details.add_details()->PackFrom(RetryInfo(RetryDelay(status)));
  }
  if (const std::string reason = ErrorReason(status); !reason.empty()) {
    details.add_details()->PackFrom(ErrorInfo(reason));
  }
  if (details.details().empty()) return "";
  details.set_code(int32_t(status.code()));
  details.set_message(std::string(status.message()));
  return details.SerializeAsString();
}

}  // namespace

CallMetadata ReadMetadata(std::string_view rpc, std::optional<CallKind> kind,
                          const grpc::ServerContextBase& context) {
  return {.rpc = rpc,
          .kind = kind,
          .request_id = MetadataValue(context, "x-request-id"),
          .traceparent = MetadataValue(context, "traceparent"),
          .authorization = MetadataValue(context, "authorization"),
          .peer = context.peer(),
          .forwarded_for = MetadataValues(context, "x-forwarded-for"),
          .model = MetadataValue(context, "x-lssar-model"),
          .deadline = ReadDeadline(context)};
}

void SendIds(const CallContext& call, grpc::ServerContextBase& context) {
  context.AddTrailingMetadata("x-request-id", call.RequestId());
  context.AddTrailingMetadata("traceparent", call.Traceparent());
}

absl::Status ReadMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  std::vector<grpc::Slice> slices;
  // gRPC also starts a call whose request message never arrived.
  if (!bytes.Dump(&slices).ok()) {
    return absl::CancelledError("the client closed the call before it sent a request");
  }
  std::string joined;
  joined.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) {
    joined.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(joined.data()),
                                               int(joined.size()));
  WireScan scan;
  Scan(*message->GetDescriptor(), limits::kMaxMessageObjects + 1, &input, &scan);
  if (scan.num_objects > limits::kMaxMessageObjects) {
    return absl::InvalidArgumentError(
        StrCat("the request has more than ", limits::kMaxMessageObjects,
               " strings, lists and messages in it; send several requests"));
  }
  if (scan.unknown) {
    const auto& [field, problem] = *scan.unknown;
    return FieldError(field, problem, field.empty() ? "the request" : "");
  }
  if (message->ParseFromString(joined)) return absl::OkStatus();
  const auto bad_text = FindBadText(*message->GetDescriptor(), joined);
  if (bad_text) return FieldError(bad_text->path, bad_text->problem);
  return absl::InvalidArgumentError(StrCat("the request's ", joined.size(), " bytes are not a ",
                                           message->GetDescriptor()->full_name(), " message"));
}

grpc::ByteBuffer WriteMessage(const google::protobuf::Message& message) {
  const size_t num_bytes = message.ByteSizeLong();
  grpc_slice bytes = grpc_slice_malloc(num_bytes);
  message.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(bytes));
  const grpc::Slice slice(bytes, grpc::Slice::STEAL_REF);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  // Both enumerations have the canonical codes.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message =
      Shorten({status.message().data(), status.message().size()}, limits::kMaxErrorBytes);
  return {code, message, ErrorDetails(status)};
}

}  // namespace lssar

#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <unordered_set>
#include <utility>

#include "base/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace lssar {
namespace {

namespace v1alpha = grpc::reflection::v1alpha;
using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using ReflectionRequest = v1alpha::ServerReflectionRequest;
using ReflectionResponse = v1alpha::ServerReflectionResponse;

constexpr int kMaxStreams = 128;
// The limit of one request. Its response repeats it.
constexpr size_t kMaxQueryBytes = 4096;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// `file` and all that it imports.
void AddFile(const google::protobuf::FileDescriptor& file,
             v1alpha::FileDescriptorResponse* response,
             std::unordered_set<const google::protobuf::FileDescriptor*>* seen) {
  if (!seen->insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  *response->add_file_descriptor_proto() = proto.SerializeAsString();
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), response, seen);
}

grpc::Status AnswerFile(const google::protobuf::FileDescriptor* file,
                        ReflectionResponse* response) {
  if (file == nullptr) return {grpc::StatusCode::NOT_FOUND, "the server has no such file"};
  std::unordered_set<const google::protobuf::FileDescriptor*> seen;
  AddFile(*file, response->mutable_file_descriptor_response(), &seen);
  return grpc::Status::OK;
}

grpc::Status AnswerExtension(const v1alpha::ExtensionRequest& request,
                             ReflectionResponse* response) {
  const Descriptor* const type = Pool().FindMessageTypeByName(request.containing_type());
  const FieldDescriptor* const extension =
      type == nullptr ? nullptr : Pool().FindExtensionByNumber(type, request.extension_number());
  return AnswerFile(extension == nullptr ? nullptr : extension->file(), response);
}

grpc::Status AnswerExtensionNumbers(const std::string& type_name, ReflectionResponse* response) {
  const Descriptor* const type = Pool().FindMessageTypeByName(type_name);
  if (type == nullptr) return {grpc::StatusCode::NOT_FOUND, "the server has no such type"};
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(type, &extensions);
  auto* const numbers = response->mutable_all_extension_numbers_response();
  numbers->set_base_type_name(type_name);
  for (const FieldDescriptor* extension : extensions) {
    numbers->add_extension_number(extension->number());
  }
  return grpc::Status::OK;
}

grpc::Status Answer(const ReflectionRequest& request, const std::vector<std::string>& services,
                    ReflectionResponse* response) {
  switch (request.message_request_case()) {
    case ReflectionRequest::kFileByFilename:
      return AnswerFile(Pool().FindFileByName(request.file_by_filename()), response);
    case ReflectionRequest::kFileContainingSymbol:
      return AnswerFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
                        response);
    case ReflectionRequest::kFileContainingExtension:
      return AnswerExtension(request.file_containing_extension(), response);
    case ReflectionRequest::kAllExtensionNumbersOfType:
      return AnswerExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case ReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response->mutable_list_services_response()->add_service()->set_name(name);
      }
      return grpc::Status::OK;
    case ReflectionRequest::MESSAGE_REQUEST_NOT_SET: break;
  }
  return {grpc::StatusCode::INVALID_ARGUMENT, "message_request is not set"};
}

// One stream: reads a request, writes its response, and so on. Owns itself until OnDone.
class ReflectionStream final
    : public grpc::ServerBidiReactor<ReflectionRequest, ReflectionResponse> {
 public:
  ReflectionStream(const std::vector<std::string>& services, std::atomic<int>* num_streams)
      : services_(services), num_streams_(*num_streams) {
    if (++num_streams_ > kMaxStreams) {
      Finish({grpc::StatusCode::RESOURCE_EXHAUSTED,
              "the server has too many reflection streams; try again"});
      return;
    }
    StartRead(&request_);
  }
  ~ReflectionStream() override { --num_streams_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    const size_t num_bytes = request_.ByteSizeLong();
    if (num_bytes > kMaxQueryBytes) {
      Finish({grpc::StatusCode::INVALID_ARGUMENT,
              StrCat("the request has ", num_bytes, " bytes; it may have ", kMaxQueryBytes)});
      return;
    }
    response_.Clear();
    const grpc::Status status = Answer(request_, services_, &response_);
    if (!status.ok()) {
      response_.mutable_error_response()->set_error_code(status.error_code());
      response_.mutable_error_response()->set_error_message(status.error_message());
    }
    response_.set_valid_host(request_.host());
    *response_.mutable_original_request() = request_;
    StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (ok) {
      StartRead(&request_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  std::atomic<int>& num_streams_;
  ReflectionRequest request_;
  ReflectionResponse response_;
};

class ReflectionService final
    : public v1alpha::ServerReflection::WithCallbackMethod_ServerReflectionInfo<
          v1alpha::ServerReflection::Service> {
 public:
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<ReflectionRequest, ReflectionResponse>* ServerReflectionInfo(
      grpc::CallbackServerContext* /*context*/) override {
    return new ReflectionStream(services_, &num_streams_);
  }

 private:
  const std::vector<std::string> services_;
  std::atomic<int> num_streams_ = 0;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services) {
  // The linker would leave out a description that nothing uses.
  google::protobuf::LinkMessageReflection<grpc::health::v1::HealthCheckRequest>();
  return std::make_unique<ReflectionService>(std::move(services));
}

}  // namespace lssar

#include "tests/server/raw_call.h"

#include <vector>

namespace lssar {
namespace {

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ToBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method)
    : stub_(channel), call_(stub_.PrepareCall(&context_, method, &queue_)) {
  call_->StartCall(this);
  Wait();
}

RawCall::RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& request)
    : RawCall(channel, method) {
  call_->WriteLast(ToBuffer(request), grpc::WriteOptions(), this);
  Wait();
}

RawCall::~RawCall() {
  if (!is_finished_) {
    context_.TryCancel();
    Finish();
  }
  queue_.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
  }
}

std::optional<std::string> RawCall::Read() {
  grpc::ByteBuffer reply;
  call_->Read(&reply, this);
  if (!Wait()) return std::nullopt;
  return ToBytes(reply);
}

grpc::Status RawCall::Finish() {
  grpc::Status status;
  is_finished_ = true;
  call_->Finish(&status, this);
  Wait();
  return status;
}

bool RawCall::Wait() {
  void* tag = nullptr;
  bool ok = false;
  return queue_.Next(&tag, &ok) && ok;
}

std::optional<int> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& service) {
  RawCall call(channel, "/grpc.health.v1.Health/Check", HealthRequest(service));
  const auto reply = call.Read();
  if (!call.Finish().ok() || !reply) return std::nullopt;
  return HealthStatus(*reply);
}

std::string HealthRequest(const std::string& service) {
  if (service.empty()) return "";
  return std::string{'\x0a', static_cast<char>(service.size())}.append(service);
}

int HealthStatus(const std::string& reply) {
  return reply.size() == 2 && reply[0] == '\x08' ? reply[1] : 0;
}

}  // namespace lssar

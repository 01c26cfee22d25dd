#include "server/inference_service.h"

#include <memory>
#include <string_view>
#include <utility>

#include "server/call_record.h"
#include "server/generate_stream.h"
#include "server/grpc_status.h"
#include "server/score_stream.h"
#include "server/unary_calls.h"
#include "server/wire.h"

namespace lssar {
namespace {

// Reads, answers and writes one unary call, on gRPC's thread.
template <typename Request, typename Reply>
absl::Status AnswerUnary(CallRecord& record, CallGate& gate, const grpc::ByteBuffer& bytes,
                         absl::StatusOr<Reply> (*answer)(const Request&, const ServedModel&),
                         grpc::ByteBuffer& reply_bytes) {
  if (absl::Status status = record.Enter(gate); !status.ok()) return status;
  Request request;
  if (absl::Status status = ReadMessage(bytes, &request); !status.ok()) return status;
  const auto reply = answer(request, record.Model());
  if (reply.ok()) reply_bytes = WriteMessage(*reply);
  return reply.status();
}

template <typename Stream>
Stream* BeginStream(CallRecord record, CallGate& gate, const grpc::ByteBuffer& bytes) {
  const auto stream = std::make_shared<Stream>(std::move(record));
  stream->Begin(gate, bytes);
  return stream.get();  // alive until gRPC's OnDone
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(Context* context,
                                                                       const Bytes* request) {
  return BeginStream<GenerateStream>(CallRecord("Generate", *context, log_), *gate_, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Score(Context* context,
                                                                    const Bytes* request) {
  return BeginStream<ScoreStream>(CallRecord("Score", *context, log_), *gate_, *request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(Context* context, const Bytes* request,
                                                     Bytes* reply) {
  CallRecord record("Tokenize", *context, log_);
  const absl::Status status = AnswerUnary(record, *gate_, *request, lssar::Tokenize, *reply);
  record.WriteLog(status);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  CallRecord record("Detokenize", *context, log_);
  const absl::Status status = AnswerUnary(record, *gate_, *request, lssar::Detokenize, *reply);
  record.WriteLog(status);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetInfo(Context* context, const Bytes* request,
                                                    Bytes* reply) {
  CallRecord record("GetInfo", *context, log_);
  const absl::Status status = AnswerUnary(record, *gate_, *request, Describe, *reply);
  record.WriteLog(status);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

}  // namespace lssar

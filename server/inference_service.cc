#include "server/inference_service.h"

#include <memory>
#include <string_view>
#include <utility>

#include "server/call_context.h"
#include "server/capture_stream.h"
#include "server/generate_stream.h"
#include "server/grpc_status.h"
#include "server/score_stream.h"
#include "server/unary_calls.h"
#include "server/wire.h"

namespace lssar {
namespace {

// Reads, answers and writes one unary call, on gRPC's thread.
// `role`: whose call it is. `answer`: (const Request&, const ServedModel&) -> absl::StatusOr<reply
// message>
template <typename Request, typename Answer>
absl::Status AnswerUnary(CallContext& record, KeyRole role, const grpc::ByteBuffer& bytes,
                         const Answer& answer, grpc::ByteBuffer& reply_bytes) {
  if (absl::Status status = record.Enter(role); !status.ok()) return status;
  Request request;
  if (absl::Status status = ReadMessage(bytes, &request); !status.ok()) return status;
  const auto reply = answer(request, record.Model());
  if (reply.ok()) reply_bytes = WriteMessage(*reply);
  return reply.status();
}

grpc::ServerUnaryReactor* End(grpc::CallbackServerContext& context, CallContext& record,
                              const absl::Status& status) {
  record.End(status);
  record.LeaveKey();
  auto* reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <typename Stream>
Stream* BeginStream(grpc::CallbackServerContext& context, const ServiceParts& parts,
                    const grpc::ByteBuffer& bytes) {
  const auto stream = std::make_shared<Stream>(context, parts);
  stream->Begin(bytes);
  return stream.get();  // alive until gRPC's OnDone
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(Context* context,
                                                                       const Bytes* request) {
  return BeginStream<GenerateStream>(*context, parts_, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Score(Context* context,
                                                                    const Bytes* request) {
  return BeginStream<ScoreStream>(*context, parts_, *request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::CaptureAttention(
    Context* context, const Bytes* request) {
  return BeginStream<CaptureStream>(*context, parts_, *request);
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(Context* context, const Bytes* request,
                                                     Bytes* reply) {
  CallContext record("Tokenize", *context, parts_);
  return End(
      *context, record,
      AnswerUnary<v1::TokenizeRequest>(record, KeyRole::kUser, *request, lssar::Tokenize, *reply));
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(Context* context, const Bytes* request,
                                                       Bytes* reply) {
  CallContext record("Detokenize", *context, parts_);
  return End(*context, record,
             AnswerUnary<v1::DetokenizeRequest>(record, KeyRole::kUser, *request, lssar::Detokenize,
                                                *reply));
}

grpc::ServerUnaryReactor* InferenceService::GetInfo(Context* context, const Bytes* request,
                                                    Bytes* reply) {
  CallContext record("GetInfo", *context, parts_);
  return End(*context, record,
             AnswerUnary<v1::GetInfoRequest>(record, KeyRole::kUser, *request, Describe, *reply));
}

grpc::ServerUnaryReactor* InferenceService::GetStats(Context* context, const Bytes* request,
                                                     Bytes* reply) {
  CallContext record("GetStats", *context, parts_);
  const auto report = [this](const v1::GetStatsRequest&, const ServedModel& model) {
    return Report(model, *parts_.metrics);
  };
  return End(*context, record,
             AnswerUnary<v1::GetStatsRequest>(record, KeyRole::kAdmin, *request, report, *reply));
}

}  // namespace lssar

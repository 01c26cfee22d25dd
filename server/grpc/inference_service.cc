#include "server/grpc/inference_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "server/api/capture.h"
#include "server/api/embed.h"
#include "server/api/generate.h"
#include "server/api/score.h"
#include "server/api/server_info.h"
#include "server/api/tokenize.h"
#include "server/grpc/adapter.h"
#include "server/grpc/grpc_call.h"
#include "server/grpc/reply_writer.h"
#include "server/grpc/stream.h"

namespace lssar {
namespace {

// Every rpc is raw: the service gets and returns bytes (ReadMessage in adapter.h says why).
// Streaming rpcs are on a completion queue of ours, so that their writes are batched (ReplyWriter).
using RawInference = v1::Inference::WithRawMethod_Generate<v1::Inference::WithRawMethod_Score<
    v1::Inference::WithRawCallbackMethod_Tokenize<v1::Inference::WithRawCallbackMethod_Detokenize<
        v1::Inference::WithRawCallbackMethod_GetInfo<v1::Inference::WithRawCallbackMethod_GetStats<
            v1::Inference::WithRawMethod_CaptureAttention<
                v1::Inference::WithRawMethod_Embed<v1::Inference::Service>>>>>>>>;

constexpr size_t kLargeRequestBytes = 512;

// Each call is an object of its own; the service only creates them.
class InferenceService final : public RawInference {
 public:
  InferenceService(const ServiceContext& parts, OnLargeRequest on_large_request,
                   FindSocketCork find_socket)
      : parts_(parts),
        on_large_request_(std::move(on_large_request)),
        find_socket_(std::move(find_socket)) {}

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  using Unary = grpc::ServerUnaryReactor;

  void AcceptStreams() {
    using Rpcs = InferenceService;
    Accept<GenerateMethod>("Generate", CallKind::kGenerate, &Rpcs::RequestGenerate);
    Accept<ScoreMethod>("Score", CallKind::kScore, &Rpcs::RequestScore);
    Accept<EmbedMethod>("Embed", CallKind::kEmbed, &Rpcs::RequestEmbed);
    Accept<CaptureMethod>("CaptureAttention", CallKind::kCapture, &Rpcs::RequestCaptureAttention);
  }

  Unary* Tokenize(Context* context, const Bytes* request, Bytes* reply) override {
    return BeginUnary("Tokenize", context, *request, reply, TokenizeText);
  }
  Unary* Detokenize(Context* context, const Bytes* request, Bytes* reply) override {
    return BeginUnary("Detokenize", context, *request, reply, DetokenizeIds);
  }
  Unary* GetInfo(Context* context, const Bytes* request, Bytes* reply) override {
    return Answer("GetInfo", KeyRole::kUser, context, *request, reply, [](const CallContext& call) {
      return lssar::GetInfo(call.Model(), call.SeesLoad());
    });
  }
  Unary* GetStats(Context* context, const Bytes* request, Bytes* reply) override {
    return Answer(
        "GetStats", KeyRole::kAdmin, context, *request, reply,
        [this](const CallContext& call) { return lssar::GetStats(call.Model(), *parts_.metrics); });
  }

 private:
  void CountRequest(const grpc::ServerContextBase& context, const Bytes& request) const {
    if (request.Length() >= kLargeRequestBytes) on_large_request_(context.peer(), request.Length());
  }

  using RequestCall = void (InferenceService::*)(grpc::ServerContext*, Bytes*,
                                                 grpc::ServerAsyncWriter<Bytes>*,
                                                 grpc::CompletionQueue*,
                                                 grpc::ServerCompletionQueue*, void*);

  // Asks gRPC for the next call of one rpc; `request` is the generated method that asks.
  template <typename RpcMethod>
  void Accept(std::string_view rpc, CallKind kind, RequestCall request) {
    auto* const stream = new GrpcStream(parts_.replies);  // owned by the completion
    stream->arrived.run = [this, stream, rpc, kind, request](bool ok) {
      std::unique_ptr<GrpcStream> arrived(stream);
      if (!ok) return;  // the server has shut down
      Accept<RpcMethod>(rpc, kind, request);
      CountRequest(arrived->context, arrived->request);
      arrived->socket = find_socket_(arrived->context.peer());
      std::make_shared<GrpcStreamCall>(rpc, kind, std::make_unique<RpcMethod>(), std::move(arrived),
                                       parts_)
          ->Start();
    };
    stream->context.AsyncNotifyWhenDone(&stream->done);
    grpc::ServerCompletionQueue* const queue = parts_.replies->Queue();
    (this->*request)(&stream->context, &stream->request, &stream->writer, queue, queue,
                     &stream->arrived);
  }

  // A call that a worker answers.
  template <typename Request, typename Reply>
  Unary* BeginUnary(std::string_view rpc, Context* context, const Bytes& bytes, Bytes* reply_bytes,
                    absl::StatusOr<Reply> (*answer)(const Request&, const ParseContext&)) {
    CountRequest(*context, bytes);
    const auto call = std::make_shared<GrpcUnaryCall>(
        rpc, std::make_unique<ImmediateMethod<Request, Reply>>(answer), *context, parts_, bytes,
        reply_bytes);
    call->Start();
    return call.get();  // owns itself until gRPC's OnDone
  }

  // A unary call whose request has no fields, answered at once, on gRPC's thread: it takes
  // microseconds, and it must answer whatever the workers have to do.
  // `role`: what the call requires. `answer`: (const CallContext&) -> absl::StatusOr<reply message>
  template <typename Function>
  Unary* Answer(std::string_view rpc, KeyRole role, Context* grpc_context, const Bytes& bytes,
                Bytes* reply_bytes, const Function& answer) {
    CountRequest(*grpc_context, bytes);
    CallContext context(ReadMetadata(rpc, std::nullopt, *grpc_context), parts_);
    SendIds(context, *grpc_context);
    const absl::Status status = [&]() -> absl::Status {
      RETURN_IF_ERROR(context.Admit(role));
      if (bytes.Length() > 0) {
        return absl::InvalidArgumentError(StrCat("the request has ", bytes.Length(), " bytes; ",
                                                 rpc, " of lssar ", LSSAR_VERSION,
                                                 " has no fields"));
      }
      ASSIGN_OR_RETURN(const auto reply, answer(context));
      *reply_bytes = WriteMessage(reply);
      return absl::OkStatus();
    }();
    context.End(status);
    Unary* const reactor = grpc_context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  const ServiceContext parts_;
  const OnLargeRequest on_large_request_;
  const FindSocketCork find_socket_;
};

}  // namespace

InferenceRpcs MakeInferenceService(const ServiceContext& parts, OnLargeRequest on_large_request,
                                   FindSocketCork find_socket) {
  auto service = std::make_unique<InferenceService>(parts, std::move(on_large_request),
                                                    std::move(find_socket));
  auto accept = [service = service.get()] { service->AcceptStreams(); };
  return {.service = std::move(service), .accept = std::move(accept)};
}

}  // namespace lssar

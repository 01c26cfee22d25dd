#include "server/grpc/inference_service.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
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

// Every rpc is raw: the service gets and returns bytes (ReadMessage in grpc_adapter.h says why).
// And to gRPC each is a stream in both directions, whose requests it reads when it is asked to: of
// other rpcs it reads the request, of up to 32 MiB, before it tells of the call, and a client
// without a key would have sent it. On the wire there is no difference.
// Streaming rpcs are on a completion queue of ours, so that their writes are batched (ReplyWriter).

// A unary call that is answered at once, on gRPC's thread: it takes microseconds, and it must
// answer whatever the workers have to do. Owns itself until OnDone.
class QuickCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  using Answer = std::function<grpc::Status(const grpc::ByteBuffer& request, grpc::ByteBuffer*)>;
  explicit QuickCall(Answer answer) : answer_(std::move(answer)) { StartRead(&request_); }
  // Refused by its metadata: the request is not read.
  explicit QuickCall(const grpc::Status& refusal) { Finish(refusal); }

  void OnReadDone(bool ok) override {
    const grpc::Status status = ok ? answer_(request_, &reply_) : ToGrpcStatus(NoRequest());
    if (status.ok()) {
      StartWriteAndFinish(&reply_, grpc::WriteOptions(), status);
    } else {
      Finish(status);
    }
  }
  void OnDone() override { delete this; }

 private:
  const Answer answer_;
  grpc::ByteBuffer request_, reply_;
};

constexpr size_t kLargeRequestBytes = 512;

// Each call is an object of its own; the service only creates them.
class InferenceService final : public v1::Inference::Service {
 public:
  InferenceService(const ServiceContext& parts, OnLargeRequest on_large_request,
                   FindReplySocket find_socket)
      : parts_(parts),
        on_large_request_(std::move(on_large_request)),
        find_socket_(std::move(find_socket)) {
    for (const char* rpc : {"Generate", "Score", "Embed", "CaptureAttention"}) {
      MarkMethodStreamed(IndexOf(rpc), nullptr);
      MarkMethodRaw(IndexOf(rpc));
    }
    Serve("Tokenize", [this](Context* context) -> Reactor* {
      return BeginUnary("Tokenize", context, TokenizeText);
    });
    Serve("Detokenize", [this](Context* context) -> Reactor* {
      return BeginUnary("Detokenize", context, DetokenizeIds);
    });
    Serve("GetInfo", [this](Context* context) {
      return BeginQuick<v1::GetInfoRequest>(
          "GetInfo", KeyRole::kUser, context,
          [](const CallContext& call) { return lssar::GetInfo(call.Model(), call.SeesLoad()); });
    });
    Serve("GetStats", [this](Context* context) {
      return BeginQuick<v1::GetStatsRequest>(
          "GetStats", KeyRole::kAdmin, context, [this](const CallContext& call) {
            return lssar::GetStats(call.Model(), *parts_.metrics);
          });
    });
  }

  void AcceptStreams() {
    Accept<GenerateMethod>("Generate", CallKind::kGenerate);
    Accept<ScoreMethod>("Score", CallKind::kScore);
    Accept<EmbedMethod>("Embed", CallKind::kEmbed);
    Accept<CaptureMethod>("CaptureAttention", CallKind::kCapture);
  }

 private:
  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  using Reactor = grpc::ServerBidiReactor<Bytes, Bytes>;

  static int IndexOf(const char* rpc) {
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            v1::Inference::service_full_name());
    return service->FindMethodByName(rpc)->index();
  }

  // Serves a unary rpc by gRPC's callback API.
  void Serve(const char* rpc, std::function<Reactor*(Context*)> make_reactor) {
    MarkMethodStreamed(IndexOf(rpc), nullptr);
    MarkMethodRawCallback(IndexOf(rpc), new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(
                                            std::move(make_reactor)));
  }

  void CountRequest(const grpc::ServerContextBase& context, const Bytes& request) const {
    if (request.Length() >= kLargeRequestBytes) on_large_request_(context.peer(), request.Length());
  }

  // Checks what a call's metadata say, before its request is read: the server's state and the key.
  // The admission itself comes with the request. A call that is refused here has a log line.
  absl::StatusOr<Caller> CheckCaller(const CallMetadata& metadata, KeyRole role,
                                     grpc::ServerContextBase* context) const {
    auto caller = [&]() -> absl::StatusOr<Caller> {
      RETURN_IF_ERROR(parts_.admission->Readiness());
      return parts_.admission->Authenticate(metadata.authorization, role);
    }();
    if (!caller.ok()) {
      CallContext refused(metadata, parts_);
      SendIds(refused, *context);
      refused.End(caller.status());
    }
    return caller;
  }

  // Asks gRPC for the next call of one rpc.
  template <typename RpcMethod>
  void Accept(const char* rpc, CallKind kind) {
    AcceptNext<RpcMethod>(rpc, IndexOf(rpc), kind);
  }
  template <typename RpcMethod>
  void AcceptNext(const char* rpc, int index, CallKind kind) {
    auto* const stream = new GrpcStream(parts_.replies);  // owned by the completion
    stream->arrived.run = [this, stream, rpc, index, kind](bool ok) {
      std::unique_ptr<GrpcStream> arrived(stream);
      if (!ok) return;  // the server has shut down
      AcceptNext<RpcMethod>(rpc, index, kind);
      auto caller =
          CheckCaller(ReadMetadata(rpc, kind, arrived->context), KeyRole::kUser, &arrived->context);
      if (!caller.ok()) {
        EndCall(std::move(arrived), ToGrpcStatus(caller.status()));
        return;
      }
      arrived->caller = *std::move(caller);
      ReadRequest(std::move(arrived), [this, rpc, kind](std::unique_ptr<GrpcStream> complete) {
        CountRequest(complete->context, complete->request);
        complete->socket = find_socket_(complete->context.peer());
        std::make_shared<GrpcStreamCall>(rpc, kind, std::make_unique<RpcMethod>(),
                                         std::move(complete), parts_)
            ->Start();
      });
    };
    stream->context.AsyncNotifyWhenDone(&stream->done);
    grpc::ServerCompletionQueue* const queue = parts_.replies->Queue();
    RequestAsyncBidiStreaming(index, &stream->context, &stream->messages, queue, queue,
                              &stream->arrived);
  }

  // A call that a worker answers.
  template <typename Request, typename Reply>
  Reactor* BeginUnary(std::string_view rpc, Context* context,
                      absl::StatusOr<Reply> (*answer)(const Request&, const ParseContext&)) const {
    CallMetadata metadata = ReadMetadata(rpc, std::nullopt, *context);
    auto caller = CheckCaller(metadata, KeyRole::kUser, context);
    if (!caller.ok()) return new QuickCall(ToGrpcStatus(caller.status()));
    metadata.caller = *std::move(caller);
    const auto call = std::make_shared<GrpcUnaryCall>(
        std::move(metadata), std::make_unique<ImmediateMethod<Request, Reply>>(answer), *context,
        parts_, [this, context](const Bytes& request) { CountRequest(*context, request); });
    call->Start();
    return call.get();  // owns itself until gRPC's OnDone
  }

  // A call without fields, which is answered at once.
  // `role`: what the call requires. `answer`: (const CallContext&) -> absl::StatusOr<reply message>
  template <typename Request, typename Function>
  Reactor* BeginQuick(std::string_view rpc, KeyRole role, Context* grpc_context,
                      const Function& answer) const {
    CallMetadata metadata = ReadMetadata(rpc, std::nullopt, *grpc_context);
    auto caller = CheckCaller(metadata, role, grpc_context);
    if (!caller.ok()) return new QuickCall(ToGrpcStatus(caller.status()));
    metadata.caller = *std::move(caller);
    return new QuickCall([this, rpc, role, grpc_context, answer, metadata = std::move(metadata)](
                             const Bytes& bytes, Bytes* reply_bytes) {
      CountRequest(*grpc_context, bytes);
      CallContext context(metadata, parts_);
      SendIds(context, *grpc_context);
      const absl::Status status = [&]() -> absl::Status {
        RETURN_IF_ERROR(context.Admit(role));
        if (bytes.Length() > kMaxEmptyRequestBytes) {
          return absl::InvalidArgumentError(StrCat("the request has ", bytes.Length(), " bytes; ",
                                                   rpc, " has no fields and takes ",
                                                   kMaxEmptyRequestBytes, " at most"));
        }
        Request request;
        RETURN_IF_ERROR(ReadMessage(bytes, &request));
        ASSIGN_OR_RETURN(const auto reply, answer(context));
        *reply_bytes = WriteMessage(reply);
        return absl::OkStatus();
      }();
      context.End(status);
      return ToGrpcStatus(status);
    });
  }

  // GetInfo and GetStats have no fields; a newer client's unknown ones are tolerated.
  static constexpr size_t kMaxEmptyRequestBytes = 1024;

  const ServiceContext parts_;
  const OnLargeRequest on_large_request_;
  const FindReplySocket find_socket_;
};

}  // namespace

InferenceRpcs MakeInferenceService(const ServiceContext& parts, OnLargeRequest on_large_request,
                                   FindReplySocket find_socket) {
  auto service = std::make_unique<InferenceService>(parts, std::move(on_large_request),
                                                    std::move(find_socket));
  auto accept = [service = service.get()] { service->AcceptStreams(); };
  return {.service = std::move(service), .accept = std::move(accept)};
}

}  // namespace lssar

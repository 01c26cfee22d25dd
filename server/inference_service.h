// lssar.v1.Inference over gRPC's callback API. One call is one object; this only makes them.
#ifndef LSSAR_SERVER_INFERENCE_SERVICE_H_
#define LSSAR_SERVER_INFERENCE_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "lssar/v1/inference.grpc.pb.h"
#include "server/call_gate.h"
#include "server/call_record.h"

namespace lssar {

// Requests and replies are raw bytes here: see wire.h.
using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Score<v1::Inference::WithRawCallbackMethod_Tokenize<
        v1::Inference::WithRawCallbackMethod_Detokenize<
            v1::Inference::WithRawCallbackMethod_GetInfo<
                v1::Inference::WithRawCallbackMethod_GetStats<v1::Inference::Service>>>>>>;

class InferenceService final : public RawInference {
 public:
  // `gate` and what `observers` names must outlive the service and its calls.
  InferenceService(CallGate* gate, const CallObservers& observers)
      : gate_(gate), observers_(observers) {}

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  grpc::ServerWriteReactor<Bytes>* Generate(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* Score(Context* context, const Bytes* request) override;
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Detokenize(Context* context, const Bytes* request,
                                       Bytes* reply) override;
  grpc::ServerUnaryReactor* GetInfo(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* GetStats(Context* context, const Bytes* request, Bytes* reply) override;

 private:
  CallGate* const gate_;
  const CallObservers observers_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_INFERENCE_SERVICE_H_

// lssar.v1.Inference over gRPC's callback API. One call is one object; this only makes them.
#ifndef LSSAR_SERVER_INFERENCE_SERVICE_H_
#define LSSAR_SERVER_INFERENCE_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "lssar/v1/inference.grpc.pb.h"
#include "server/service_parts.h"

namespace lssar {

// Requests and replies are raw bytes here: see wire.h.
using RawInference = v1::Inference::WithRawCallbackMethod_Generate<
    v1::Inference::WithRawCallbackMethod_Score<v1::Inference::WithRawCallbackMethod_Tokenize<
        v1::Inference::WithRawCallbackMethod_Detokenize<
            v1::Inference::WithRawCallbackMethod_GetInfo<
                v1::Inference::WithRawCallbackMethod_GetStats<
                    v1::Inference::WithRawCallbackMethod_CaptureAttention<
                        v1::Inference::Service>>>>>>>;

class InferenceService final : public RawInference {
 public:
  explicit InferenceService(const ServiceParts& parts) : parts_(parts) {}

  using Bytes = grpc::ByteBuffer;
  using Context = grpc::CallbackServerContext;
  grpc::ServerWriteReactor<Bytes>* Generate(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* Score(Context* context, const Bytes* request) override;
  grpc::ServerWriteReactor<Bytes>* CaptureAttention(Context* context,
                                                    const Bytes* request) override;
  grpc::ServerUnaryReactor* Tokenize(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* Detokenize(Context* context, const Bytes* request,
                                       Bytes* reply) override;
  grpc::ServerUnaryReactor* GetInfo(Context* context, const Bytes* request, Bytes* reply) override;
  grpc::ServerUnaryReactor* GetStats(Context* context, const Bytes* request, Bytes* reply) override;

 private:
  const ServiceParts parts_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_INFERENCE_SERVICE_H_

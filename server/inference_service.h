// The gRPC service lssar.v1.Inference over gRPC's callback API.
#ifndef LSSAR_SERVER_INFERENCE_SERVICE_H_
#define LSSAR_SERVER_INFERENCE_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>

#include "server/call_context.h"

namespace lssar {

std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceParts& parts);

}  // namespace lssar

#endif  // LSSAR_SERVER_INFERENCE_SERVICE_H_

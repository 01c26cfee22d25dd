// The gRPC service lssar.v1.Inference over gRPC's callback API.
#ifndef LSSAR_SERVER_INFERENCE_SERVICE_H_
#define LSSAR_SERVER_INFERENCE_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>

#include "server/call_context.h"

namespace lssar {

// A request of more than a few hundred bytes has arrived from `peer` (ServerContextBase::peer()).
using OnLargeRequest = std::function<void(const std::string& peer, size_t num_bytes)>;

std::unique_ptr<grpc::Service> MakeInferenceService(const ServiceParts& parts,
                                                    OnLargeRequest on_large_request);

}  // namespace lssar

#endif  // LSSAR_SERVER_INFERENCE_SERVICE_H_

// The gRPC service lssar.v1.Inference: streaming rpcs by gRPC's completion queue API on a
// ReplyWriter, the others by its callback API.
#ifndef LSSAR_SERVER_GRPC_INFERENCE_SERVICE_H_
#define LSSAR_SERVER_GRPC_INFERENCE_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <functional>
#include <memory>
#include <string>

#include "server/api/call_context.h"
#include "server/net/socket_cork.h"

namespace lssar {

// A request of more than a few hundred bytes has arrived from `peer` (ServerContextBase::peer()).
using OnLargeRequest = std::function<void(const std::string& peer, size_t num_bytes)>;

// The socket of the connection to `peer`; null: none.
using FindSocketCork = std::function<std::shared_ptr<SocketCork>(const std::string& peer)>;

struct InferenceRpcs {
  std::unique_ptr<grpc::Service> service;
  // Takes streaming calls from now on. Call once, when gRPC's server has started.
  std::function<void()> accept;
};
// Requires  parts.replies starts after `accept`
InferenceRpcs MakeInferenceService(const ServiceContext& parts, OnLargeRequest on_large_request,
                                   FindSocketCork find_socket);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_INFERENCE_SERVICE_H_

// The gRPC service grpc.reflection.v1alpha.ServerReflection, for tools such as grpcurl.
#ifndef LSSAR_SERVER_GRPC_REFLECTION_SERVICE_H_
#define LSSAR_SERVER_GRPC_REFLECTION_SERVICE_H_

#include <grpcpp/impl/service_type.h>

#include <memory>
#include <string>
#include <vector>

namespace lssar {

// gRPC's own implementation holds a thread for each open stream. This one holds none, and has at
// most 128 streams at a time; further ones end with RESOURCE_EXHAUSTED.
// `services`: the full names that a tool is shown
std::unique_ptr<grpc::Service> MakeReflectionService(std::vector<std::string> services);

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_REFLECTION_SERVICE_H_

// The stub of the service. A type of its own, because v1::Inference::StubInterface cannot be named
// without gRPC's headers: files that pass a Service on declare it and do without them.
#ifndef LSSAR_CLIENTS_CLI_SERVICE_H_
#define LSSAR_CLIENTS_CLI_SERVICE_H_

#include <memory>
#include <utility>

#include "lssar/v1/inference.grpc.pb.h"

namespace lssar::cli {

class Service {
 public:
  explicit Service(std::unique_ptr<v1::Inference::StubInterface> stub) : stub_(std::move(stub)) {}

  v1::Inference::StubInterface* operator->() const { return stub_.get(); }

 private:
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_SERVICE_H_

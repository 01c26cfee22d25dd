// Calls with raw bytes, for services without generated code (health, reflection) and for bytes
// that generated code never sends.
#ifndef LSSAR_TESTS_SERVER_RAW_CALL_H_
#define LSSAR_TESTS_SERVER_RAW_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>

namespace lssar {

// One call: send the request, read replies until there is none, then read the status.
class RawCall {
 public:
  // `method`: "/lssar.v1.Inference/Generate"
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
          const std::string& request);
  // A call that never sends its request.
  RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& method);
  ~RawCall();

  void Cancel() { context_.TryCancel(); }

  // The bytes of the next reply; nullopt after the last one.
  std::optional<std::string> Read();
  grpc::Status Finish();

 private:
  bool Wait();

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
  bool is_finished_ = false;
};

// The result of grpc.health.v1 Check for `service`; nullopt: the call failed.
std::optional<int> CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& service);

// Values of grpc.health.v1.HealthCheckResponse.ServingStatus.
inline constexpr int kServing = 1;
inline constexpr int kNotServing = 2;

// The bytes of a HealthCheckRequest for `service`, and the status in a HealthCheckResponse's.
std::string HealthRequest(const std::string& service);
int HealthStatus(const std::string& reply);

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_RAW_CALL_H_

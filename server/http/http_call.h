// The HTTP port's calls: a Call whose replies a codec writes to an exchange.
#ifndef LSSAR_SERVER_HTTP_HTTP_CALL_H_
#define LSSAR_SERVER_HTTP_HTTP_CALL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/api/call.h"
#include "server/http/http_codec.h"
#include "server/http/http_exchange.h"

namespace lssar {

class HttpCall final : public Call, public ExchangeListener {
 public:
  // `rpc` and `route`: static storage.
  HttpCall(std::string_view rpc, std::string_view route, std::optional<CallKind> kind,
           HttpMethod method, std::shared_ptr<HttpExchange> exchange, const ServiceContext& parts);

  // Call once, on an I/O thread.
  void Start();

  void OnSpace() override;
  void OnClientGone(const absl::Status& reason) override { Stop(reason); }
  void OnFinished(const absl::Status& status) override;

 private:
  absl::Status OnAdmission(const absl::Status& status) override;
  absl::Status Decode() override;
  absl::Status InPortsNames(const absl::Status& status) const override;
  absl::Status OnParsed(const std::vector<SubRequest>& items) override;
  void OnSubmitted() override;
  bool HasSpace() const override { return exchange_->HasSpace(); }
  void Send(int prompt, std::unique_ptr<Message> reply) override {
    codec_->OnReply(prompt, *reply);
  }
  void SendEnd(const absl::Status& status) override;
  void RunLater(std::chrono::milliseconds delay, std::function<void()> work) override {
    exchange_->RunLater(delay, std::move(work));
  }

  // Once both ends are there.
  void EndContext(const absl::Status& status);
  // Has a worker send what the codec still has.
  void SendMore();
  // Keeps a stream from looking dead, until it has ended.
  void SendComments();

  const std::unique_ptr<HttpCodec> codec_;
  const std::shared_ptr<HttpExchange> exchange_;

  // The log line is written when both are set.
  std::mutex end_mutex_;
  std::optional<absl::Status> ended_;     // of the call
  std::optional<absl::Status> finished_;  // of the exchange, which no longer refers to the call
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_CALL_H_

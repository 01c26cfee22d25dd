// POST /v1/attention: attention weights of a prompt, as events or as one object.
#ifndef LSSAR_SERVER_HTTP_ATTENTION_CALL_H_
#define LSSAR_SERVER_HTTP_ATTENTION_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http/engine_call.h"

namespace lssar {

class HttpAttentionCall final : public EngineCall {
 public:
  HttpAttentionCall(std::shared_ptr<HttpExchange> exchange, const ServiceParts& parts)
      : EngineCall("POST /v1/attention", CallKind::kCapture, std::move(exchange), parts) {}

 private:
  absl::StatusOr<std::vector<Item>> Parse() override;
  void OnItemAdmitted(int item, const RequestStats& stats) override;
  void OnWeights(int item, std::vector<RowWeights> rows) override;
  void OnStatistics(int item, std::vector<HeadStatistics> heads) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

  // {"id", "object", "model", ...: the fields of the whole reply and of its first event, open.
  std::string Head() const;
  // The prompt's tokens up to the last captured row, as a JSON list.
  std::string TokensJson() const;

  bool is_stream_ = false;
  std::vector<int32_t> prompt_;  // up to the last captured row
  std::string rows_;             // of the whole reply: its rows as JSON, separated by commas
  std::string statistics_;       // the heads' statistics as a JSON list; empty: not asked for
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_ATTENTION_CALL_H_

// POST /v1/embeddings.
#ifndef LSSAR_SERVER_HTTP_EMBEDDING_CALL_H_
#define LSSAR_SERVER_HTTP_EMBEDDING_CALL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/http/engine_call.h"

namespace lssar {

class HttpEmbeddingCall final : public EngineCall {
 public:
  HttpEmbeddingCall(std::shared_ptr<HttpExchange> exchange, const ServiceParts& parts)
      : EngineCall("POST /v1/embeddings", CallKind::kEmbed, std::move(exchange), parts) {}

 private:
  absl::StatusOr<std::vector<Item>> Parse() override;
  void OnEmbeddings(int item, EmbeddingBlock block) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

  bool is_base64_ = false;
  bool is_per_token_ = false;
  std::vector<std::string> vectors_;  // of each input: its vectors as JSON, separated by commas
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_EMBEDDING_CALL_H_

// Embed: hidden states of texts.
#ifndef LSSAR_SERVER_API_EMBED_H_
#define LSSAR_SERVER_API_EMBED_H_

#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/api/method.h"

namespace lssar {

class EmbedMethod final : public Method {
 public:
  v1::EmbedRequest request;

  Message* Request() override { return &request; }
  absl::StatusOr<std::vector<SubRequest>> Parse() override;
  absl::Status CheckResult(const EngineResult& result) const override;
  void OnResult(int input, EngineResult result) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_EMBED_H_

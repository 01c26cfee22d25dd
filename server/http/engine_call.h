// An HTTP call that the engine works for: one or more engine requests, a few of them at a time.
#ifndef LSSAR_SERVER_HTTP_ENGINE_CALL_H_
#define LSSAR_SERVER_HTTP_ENGINE_CALL_H_

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "server/api/call_context.h"
#include "server/api/engine_items.h"
#include "server/http/http_exchange.h"

namespace lssar {

// Start is called on an I/O thread, once. A worker parses the request and submits its items. Then
// results come on the engine's thread, and the call ends exactly once: by OnEnd, with the first
// error or after the last item.
class EngineCall : public HttpCall,
                   public EngineItems::Owner,
                   public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(std::string_view rpc, CallKind kind, std::shared_ptr<HttpExchange> exchange,
             const ServiceParts& parts);

  // Admits the call and has a worker parse and submit it; replies with the error where one of these
  // fails.
  void Start();

  void OnSpace() final { items_.Resume(); }
  void OnClientGone(const absl::Status& reason) final;
  void OnFinished(const absl::Status& status) final;

 protected:
  using Item = EngineItems::Item;

  // Reads and validates the request. Worker thread; the call has been admitted.
  virtual absl::StatusOr<std::vector<Item>> Parse() = 0;

  // Results of one item. Engine thread, under the call's lock, none after the end.
  virtual void OnItemAdmitted(int /*item*/, const RequestStats& /*stats*/) {}
  virtual void OnPromptLogprobs(int /*item*/, PromptDelta /*delta*/) {}
  virtual void OnTokens(int /*item*/, GenerateDelta /*delta*/) {}
  virtual void OnScore(int /*item*/, ContinuationScore /*score*/) {}
  virtual void OnEmbeddings(int /*item*/, EmbeddingBlock /*block*/) {}
  virtual void OnWeights(int /*item*/, std::vector<RowWeights> /*rows*/) {}
  virtual void OnStatistics(int /*item*/, std::vector<HeadStatistics> /*heads*/) {}
  virtual void OnItemFinished(int /*item*/, const RequestStats& /*stats*/) {}

  // Sends the rest of the answer, and ends it. Under the call's lock. `total`: over all items.
  virtual void OnEnd(const absl::Status& status, const RequestStats& total) = 0;

  // The reason of the choice that ended last; for the log and the metrics.
  void SetFinishReason(FinishReason finish) { finish_ = finish; }

  // The receipt as JSON (server/api/receipt.h). Valid once Parse has returned.
  const std::string& Receipt() const { return receipt_; }

  CallContext context_;
  const std::shared_ptr<HttpExchange> exchange_;

 private:
  class ItemSink;

  // Worker thread.
  void ParseAndSubmit();
  // Ends the call, unless it has ended. `total`: over the items that have ended.
  void End(const absl::Status& status, const RequestStats& total);

  bool HasSpaceForItems() const final { return exchange_->HasSpace(); }
  std::shared_ptr<OutputSink> MakeSink(int item) final;
  void RetryLater(std::chrono::milliseconds delay) final;
  void OnItemEnd(int item, const RequestStats& stats) final;
  void OnItemsEnd(const absl::Status& status, const RequestStats& total) final {
    End(status, total);
  }

  std::string receipt_;
  EngineItems items_{&context_, this};

  std::mutex output_mutex_;  // locked after that of items_; the call may be aborted while the
                             // engine reports
  bool has_ended_ = false;
  std::optional<FinishReason> finish_;
  absl::Status status_;                   // once has_ended_
  std::optional<absl::Status> finished_;  // set: the exchange has let go of the call
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_ENGINE_CALL_H_

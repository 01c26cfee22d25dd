// An HTTP call that the engine works for: one or more engine requests, a few of them at a time.
#ifndef LSSAR_SERVER_HTTP_ENGINE_CALL_H_
#define LSSAR_SERVER_HTTP_ENGINE_CALL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine.h"
#include "server/call_context.h"
#include "server/http/http_exchange.h"

namespace lssar {

// Start is called on a worker thread, once. Then results come on the engine's thread, and the call
// ends exactly once: by OnEnd, with the first error or after the last item.
class EngineCall : public HttpCall, public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(std::string_view rpc, CallKind kind, std::shared_ptr<HttpExchange> exchange,
             const ServiceParts& parts);

  // Admits the call, reads the request and submits it; replies with the error where one of these
  // fails.
  void Start();

  void OnSpace() final;
  void OnClientGone(const absl::Status& reason) final;
  void OnFinished(const absl::Status& status) final;

 protected:
  struct Item {
    Request request;
    // The engine has nothing to compute: the item ends at once, with these counts.
    std::optional<RequestStats> known = {};
  };

  // Reads and validates the request. Worker thread; the call has been admitted.
  virtual absl::StatusOr<std::vector<Item>> Parse() = 0;

  // Results of one item. Engine thread, under the call's lock, none after the end.
  virtual void OnItemAdmitted(int /*item*/, const RequestStats& /*stats*/) {}
  virtual void OnPromptLogprobs(int /*item*/, PromptDelta /*delta*/) {}
  virtual void OnTokens(int /*item*/, GenerateDelta /*delta*/) {}
  virtual void OnScore(int /*item*/, ContinuationScore /*score*/) {}
  virtual void OnEmbeddings(int /*item*/, EmbeddingBlock /*block*/) {}
  virtual void OnItemEnd(int /*item*/, const RequestStats& /*stats*/) {}

  // Sends the rest of the answer, and ends it. Under the call's lock. `total`: over all items.
  virtual void OnEnd(const absl::Status& status, const RequestStats& total) = 0;

  // The reason of the choice that ended last; for the log and the metrics.
  void SetFinishReason(FinishReason finish) { finish_ = finish; }

  CallContext context_;
  const std::shared_ptr<HttpExchange> exchange_;

 private:
  class ItemSink;

  // Items of one call that the engine has at once: one call must not fill its queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Until the next try when others fill the engine's queue and no item of this call is in it.
  static constexpr auto kRetryPause = std::chrono::milliseconds(20);

  absl::Status ParseItems();
  // Hands over items as long as the engine accepts them; ends the call after the last.
  void SubmitMore();
  absl::Status SubmitNext();
  void OnItemDone(int item, const absl::Status& status, const RequestStats& stats);
  // Ends the call, unless it has ended. `total`: over the items that have ended.
  void End(const absl::Status& status, const RequestStats& total);

  std::mutex items_mutex_;  // taken before output_mutex_ and the engine's locks
  std::vector<Item> items_;
  size_t next_item_ = 0;
  std::map<int, Engine::Handle> in_flight_;
  absl::Status error_;  // the first one; no item is submitted after it
  bool is_retry_pending_ = false;
  RequestStats total_;

  std::mutex output_mutex_;  // the call may be aborted while the engine reports
  bool has_ended_ = false;
  std::optional<FinishReason> finish_;
  absl::Status status_;                   // once has_ended_
  std::optional<absl::Status> finished_;  // set: the exchange has let go of the call
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_ENGINE_CALL_H_

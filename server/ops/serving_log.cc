#include "server/ops/serving_log.h"

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "models/page_pool.h"
#include "runtime/draft_model.h"

namespace lssar {
namespace {

// Between two log lines of a long self-check.
constexpr auto kSelfCheckLogTime = std::chrono::seconds(5);

// Size of the page pool.
int64_t KvCacheBytes(const LoadedModel& model) {
  const EngineOptions& engine = model.GetEngine().Options();
  const KvLayout layout =
      LayoutOf(model.GetCheckpoint().config, engine.kv_cache_dtype, engine.page_size);
  return model.GetEngine().Stats().num_pages * int64_t(layout.PageBytes());
}

}  // namespace

OnSelfCheckProgress LogSelfCheck(const Log& log) {
  return [&log, next = Clock::time_point()](const SelfCheckProgress& progress) mutable {
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + kSelfCheckLogTime;
    log.Info("self-check", {{"num_rows", progress.num_rows},
                            {"num_tokens", progress.num_tokens},
                            {"num_tokens_done", progress.num_tokens_done}});
  };
}

void LogServing(const LoadedModel& model, const LogFields& addresses, const Log& log) {
  if (!model.SelfCheckFailure().empty()) {
    log.Warning("self-check failed", {{"message", model.SelfCheckFailure()}});
  }
  const Checkpoint& checkpoint = model.GetCheckpoint();
  const EngineOptions& engine = model.GetEngine().Options();
  LogFields fields = {{"model", model.ServedNames().front()},
                      {"hash", checkpoint.hash},
                      {"attention", checkpoint.config.AttentionNames()},
                      {"dtype", NameOf(checkpoint.dtype)},
                      {"kv_cache_dtype", NameOf(engine.kv_cache_dtype)},
                      {"num_pages", model.GetEngine().Stats().num_pages},
                      {"page_size", engine.page_size},
                      {"kv_mib", KvCacheBytes(model) >> 20},
                      {"max_model_len", engine.max_model_len},
                      {"self_check_rows", model.GetSelfCheck().num_rows},
                      {"self_check_error", model.GetSelfCheck().worst_error}};
  // One for all layers.
  if (const std::optional<double> p = checkpoint.config.AttentionP()) fields["p"] = *p;
  if (!checkpoint.chat_warning.empty()) {
    log.Warning("no_chat", {{"model", checkpoint.name}, {"reason", checkpoint.chat_warning}});
  }
  if (const DraftModel* const draft = model.GetEngine().GetDraftModel(); draft != nullptr) {
    fields["draft_model"] = draft->Model().name;
    fields["draft_hash"] = draft->Model().hash;
    fields["draft_dtype"] = NameOf(draft->Model().dtype);
    fields["draft_kv_mib"] =
        int64_t(draft->Layout().PoolBytes() + draft->Layout().ValuePoolBytes()) >> 20;
  }
  if (Backend* const backend = model.GetBackend(); backend != nullptr) {
    fields["device"] = backend->Name();
    fields["backend"] = backend->Describe();
    const auto free_bytes = backend->FreeBytes();
    if (free_bytes.ok() && *free_bytes) fields["device_free_mib"] = **free_bytes >> 20;
  }
  fields.update(addresses);
  log.Info("serving", fields);
}

}  // namespace lssar

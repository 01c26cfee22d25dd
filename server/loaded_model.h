// A model that is ready to serve: backend, checkpoint, self-check result, draft model and engine.
#ifndef LSSAR_SERVER_LOADED_MODEL_H_
#define LSSAR_SERVER_LOADED_MODEL_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine.h"
#include "server/api/grammar_cache.h"
#include "server/config/options.h"

namespace lssar {

// What the operator, and the self-check, have decided of a model.
struct ServedAs {
  std::vector<std::string> names = {};  // empty: the checkpoint's
  std::string self_check_failure = {};
  int max_choices = limits::kMaxChoices;
  bool allows_attention_override = false;
  bool allows_steering = false;
};

class LoadedModel {
 public:
  // Creates the backend, loads the checkpoint, runs the self-check and starts the engine, in this
  // order: a checkpoint that fails its self-check is served with allow_failed_self_check only. The
  // same for a draft model.
  // Errors  those of MakeBackend, LoadCheckpoint, SelfCheck and Engine::Create; the message names
  //         the flag where one is the cause
  static absl::StatusOr<std::unique_ptr<LoadedModel>> Load(const ModelOptions& options);
  // The same on an existing backend.
  static absl::StatusOr<std::unique_ptr<LoadedModel>> LoadOn(std::unique_ptr<Backend> backend,
                                                             const ModelOptions& options);

  // For tests. `engine` runs on `checkpoint`, which runs on `backend`, which may be null, and on
  // `draft`, which may be null.
  LoadedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
              SelfCheckReport self_check, std::unique_ptr<Engine> engine,
              std::unique_ptr<Checkpoint> draft = nullptr, ServedAs served_as = {});

  Engine& GetEngine() const { return *engine_; }
  const Checkpoint& GetCheckpoint() const { return *checkpoint_; }
  const SelfCheckReport& GetSelfCheck() const { return self_check_; }
  // Why the self-check, or that of the draft model, has failed; empty: it has not.
  const std::string& SelfCheckFailure() const { return served_as_.self_check_failure; }
  // Where the server's HTTP port listens, HOST:PORT; empty: there is none.
  const std::string& HttpAddress() const { return http_address_; }
  void SetHttpAddress(std::string address) { http_address_ = std::move(address); }
  // The names that requests may give the model, the first one also in replies; by default the
  // checkpoint's. At least one.
  const std::vector<std::string>& ServedNames() const { return served_as_.names; }
  // Errors  NOT_FOUND, with reason MODEL_NOT_FOUND: `asked` is not one of ServedNames()
  absl::Status CheckName(std::string_view asked) const;
  // n of a request, at most.
  int MaxChoices() const { return served_as_.max_choices; }
  // Requests may have an attention_override.
  bool AllowsAttentionOverride() const { return served_as_.allows_attention_override; }
  // Requests may have steering.
  bool AllowsSteering() const { return served_as_.allows_steering; }
  // The compiled constraints of requests.
  GrammarCache& Grammars() const { return *grammars_; }
  // May be null in tests.
  Backend* GetBackend() const { return backend_.get(); }
  int MaxModelLen() const { return engine_->Options().max_model_len; }

 private:
  // In this order: the engine's thread uses the others until it is destroyed.
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Checkpoint> draft_;  // null: no draft model
  SelfCheckReport self_check_;
  std::string http_address_;
  std::unique_ptr<Engine> engine_;
  ServedAs served_as_;
  std::unique_ptr<GrammarCache> grammars_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_LOADED_MODEL_H_

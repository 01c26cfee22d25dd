#include "server/loaded_model.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error_details.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/gpt.h"
#include "models/page_pool.h"
#include "runtime/draft_model.h"
#include "runtime/kv_cache.h"
#include "server/api/worker_pool.h"

namespace lssar {
namespace {

absl::StatusOr<std::unique_ptr<Backend>> OpenDevice(const BackendOptions& options) {
  RETURN_IF_ERROR(CheckBackendFlags(options));
  auto backend = MakeBackend(options);
  if (backend.ok()) return backend;
  return WithPrefix(StrCat("--device ", options.name, ": "), backend.status());
}

// Errors  UNIMPLEMENTED: the KV cache type does not serve the model's attention, or the backend
//         does not support it; names those it supports
absl::Status CheckKvCacheType(const ModelConfig& config, const ModelOptions& options,
                              const Backend& backend) {
  const auto fit = [&](DType kv_cache_dtype) {
    KvLayout layout = LayoutOf(config, kv_cache_dtype, options.engine.page_size);
    return backend.FitLayout(layout);
  };
  const DType wanted = options.engine.kv_cache_dtype;
  const absl::Status of_model = CheckKvType(config, wanted);
  if (!of_model.ok()) {
    return WithPrefix(StrCat("--kv-cache-dtype ", NameOf(wanted), ": "), of_model);
  }
  const absl::Status status = fit(wanted);
  if (status.ok()) return status;
  std::vector<std::string> supported;
  for (const DType other : KvTypes()) {
    if (CheckKvType(config, other).ok() && fit(other).ok()) supported.emplace_back(NameOf(other));
  }
  if (supported.empty()) {
    return WithPrefix(StrCat("--device ", backend.Name(), ": "), status);
  }
  return WithMessage(status, StrCat("--kv-cache-dtype ", NameOf(wanted), ": --device ",
                                    backend.Name(), " supports ", StrJoin(supported)));
}

// Errors  RESOURCE_EXHAUSTED: the activations need more memory than there is beside the weights,
//         whose own need loading reports
absl::Status CheckActivationsFit(const ModelConfig& config, int max_num_batched_tokens,
                                 int64_t weight_bytes, Backend* backend) {
  ASSIGN_OR_RETURN(std::optional<int64_t> free_bytes, backend->FreeBytes());
  if (!free_bytes) free_bytes = AvailableMemoryBytes();
  if (!free_bytes || weight_bytes > *free_bytes) return absl::OkStatus();
  return Gpt::CheckActivationsFit(config, max_num_batched_tokens, *free_bytes - weight_bytes);
}

absl::Status DraftModelError(const ModelOptions& options, const absl::Status& status) {
  return WithPrefix(
      StrCat("--draft-model ", options.draft_directory, " for --model ", options.directory, ": "),
      status);
}

// What a self-check says. With allow_failed_self_check a checkpoint that computes other logits is
// no error: `failure` says why, and the report has no rows.
absl::StatusOr<SelfCheckReport> Allow(absl::StatusOr<SelfCheckReport> report,
                                      const ModelOptions& options, std::string* failure) {
  if (report.ok() || !options.allow_failed_self_check ||
      !absl::IsFailedPrecondition(report.status())) {
    return report;
  }
  *failure = std::string(report.status().message());
  return SelfCheckReport();
}

// Loads the checkpoint of the draft model, checks it against the served one and runs its
// self-check.
// Errors  with the flag's name and both directories
absl::StatusOr<std::unique_ptr<Checkpoint>> LoadDraft(const ModelOptions& options,
                                                      const Checkpoint& served, Backend* backend,
                                                      std::string* self_check_failure) {
  const auto load = [&]() -> absl::StatusOr<std::unique_ptr<Checkpoint>> {
    ASSIGN_OR_RETURN(
        Checkpoint loaded,
        LoadCheckpoint(options.draft_directory, backend,
                       {.dtype = options.draft_dtype,
                        .max_num_batched_tokens = served.max_num_batched_tokens,
                        .check_memory = [&](const ModelConfig& config, int64_t weight_bytes) {
                          return CheckActivationsFit(config, served.max_num_batched_tokens,
                                                     weight_bytes, backend);
                        }}));
    auto draft = std::make_unique<Checkpoint>(std::move(loaded));
    RETURN_IF_ERROR(CheckDraftCheckpoint(served, *draft));
    RETURN_IF_ERROR(Allow(SelfCheck(options.draft_directory, *draft, backend,
                                    DraftKvType(draft->config, options.engine.kv_cache_dtype),
                                    options.engine.page_size),
                          options, self_check_failure)
                        .status());
    return draft;
  };
  auto draft = load();
  if (!draft.ok()) return DraftModelError(options, draft.status());
  return draft;
}

// Constraints that are compiled at a time: one worker stays free.
int NumCompilers() { return WorkerPool::OptionsFor(/*max_calls=*/1).num_threads - 1; }

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::Load(const ModelOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, OpenDevice(options.backend));
  return LoadOn(std::move(backend), options);
}

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadedModel::LoadOn(std::unique_ptr<Backend> backend,
                                                                 const ModelOptions& options) {
  EngineOptions engine_options = options.engine;
  ASSIGN_OR_RETURN(engine_options.speculative_method, ChooseSpeculativeMethod(options));
  const bool has_draft = engine_options.speculative_method == SpeculativeMethod::kDraftModel;
  if (has_draft) {
    const absl::Status status = CheckDraftBackend(backend.get());
    if (!status.ok()) return DraftModelError(options, status);
  }
  // The default length is made for rotary models. Learned positions end earlier.
  const auto engine_options_for = [&](const ModelConfig& config) {
    EngineOptions shortened = engine_options;
    if (const std::optional<int> longest = config.MaxLength()) {
      shortened.max_model_len = std::min(shortened.max_model_len, *longest);
    }
    return shortened;
  };
  const LoadOptions load = {
      .dtype = options.dtype,
      .max_num_batched_tokens = options.engine.max_num_batched_tokens,
      .check =
          [&](const ModelConfig& config) { return CheckKvCacheType(config, options, *backend); },
      .check_memory =
          [&](const ModelConfig& config, int64_t weight_bytes) {
            RETURN_IF_ERROR(CheckActivationsFit(config, options.engine.max_num_batched_tokens,
                                                weight_bytes, backend.get()));
            const int64_t activation_bytes =
                Gpt::ActivationBytes(config, options.engine.max_num_batched_tokens);
            return KvCache::CheckFits(config, engine_options_for(config),
                                      weight_bytes + activation_bytes, backend.get());
          }};
  ASSIGN_OR_RETURN(Checkpoint loaded, LoadCheckpoint(options.directory, backend.get(), load));
  auto checkpoint = std::make_unique<Checkpoint>(std::move(loaded));
  engine_options = engine_options_for(checkpoint->config);
  std::string self_check_failure;
  ASSIGN_OR_RETURN(
      const SelfCheckReport self_check,
      Allow(SelfCheck(options.directory, *checkpoint, backend.get(), options.engine.kv_cache_dtype,
                      options.engine.page_size, options.on_self_check),
            options, &self_check_failure));
  std::unique_ptr<Checkpoint> draft;
  if (has_draft) {
    ASSIGN_OR_RETURN(draft, LoadDraft(options, *checkpoint, backend.get(), &self_check_failure));
    engine_options.draft_checkpoint = draft.get();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                   Engine::Create(checkpoint.get(), backend.get(), engine_options));
  return std::make_unique<LoadedModel>(
      std::move(backend), std::move(checkpoint), self_check, std::move(engine), std::move(draft),
      ServedAs{.names = options.served_names,
               .self_check_failure = std::move(self_check_failure),
               .max_choices = options.max_choices,
               .allows_attention_override = options.allow_attention_override,
               .allows_steering = options.allow_steering});
}

LoadedModel::LoadedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
                         SelfCheckReport self_check, std::unique_ptr<Engine> engine,
                         std::unique_ptr<Checkpoint> draft, ServedAs served_as)
    : backend_(std::move(backend)),
      checkpoint_(std::move(checkpoint)),
      draft_(std::move(draft)),
      self_check_(self_check),
      engine_(std::move(engine)),
      served_as_(std::move(served_as)),
      grammars_(std::make_unique<GrammarCache>(checkpoint_.get(), NumCompilers())) {
  if (served_as_.names.empty()) served_as_.names = {checkpoint_->name};
}

absl::Status LoadedModel::CheckName(std::string_view asked) const {
  if (std::ranges::count(served_as_.names, asked) > 0) return absl::OkStatus();
  absl::Status status = absl::NotFoundError(
      StrCat("there is no model ", Quote(asked), "; this server serves ",
             StrJoin(served_as_.names, [](const std::string& name) { return Quote(name); })));
  SetErrorReason(error_reason::kModelNotFound, &status);
  return status;
}

}  // namespace lssar

#include "server/served_model.h"

#include <utility>

namespace lssar {

absl::StatusOr<std::unique_ptr<ServedModel>> ServedModel::Load(const ModelOptions& options) {
  auto backend = MakeBackend(options.backend);
  if (!backend.ok()) return backend.status();

  const LoadOptions load = {.weights = options.weights,
                            .max_batch_rows = options.engine.step_tokens};
  auto loaded = LoadCheckpoint(options.directory, backend->get(), load);
  if (!loaded.ok()) return loaded.status();
  auto checkpoint = std::make_unique<Checkpoint>(*std::move(loaded));

  const auto self_check = SelfCheck(options.directory, *checkpoint, backend->get(),
                                    options.engine.kv_type, options.engine.page_tokens);
  if (!self_check.ok()) return self_check.status();

  auto engine = Engine::Create(checkpoint.get(), backend->get(), options.engine);
  if (!engine.ok()) return engine.status();
  return std::make_unique<ServedModel>(*std::move(backend), std::move(checkpoint), *self_check,
                                       *std::move(engine));
}

ServedModel::ServedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
                         SelfCheckReport self_check, std::unique_ptr<Engine> engine)
    : backend_(std::move(backend)),
      checkpoint_(std::move(checkpoint)),
      self_check_(self_check),
      engine_(std::move(engine)) {}

}  // namespace lssar

// A LoadedModel of a FakeCheckpoint, without a server.
#ifndef LSSAR_TESTS_SERVER_LOADED_FAKE_MODEL_H_
#define LSSAR_TESTS_SERVER_LOADED_FAKE_MODEL_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/loaded_model.h"
#include "tests/support/fake_checkpoint.h"

namespace lssar {

inline absl::StatusOr<std::unique_ptr<LoadedModel>> LoadFakeModel() {
  auto backend = std::make_unique<MemoryBackend>();
  auto checkpoint = std::make_unique<Checkpoint>(std::move(FakeCheckpoint().checkpoint));
  auto engine = Engine::Create(checkpoint.get(), backend.get(), {.max_model_len = 64});
  if (!engine.ok()) return engine.status();
  return std::make_unique<LoadedModel>(std::move(backend), std::move(checkpoint), SelfCheckReport{},
                                       *std::move(engine));
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_LOADED_FAKE_MODEL_H_

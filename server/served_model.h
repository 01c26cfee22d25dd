// A model ready to answer: backend, checkpoint, its self-check, engine.
#ifndef LSSAR_SERVER_SERVED_MODEL_H_
#define LSSAR_SERVER_SERVED_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "runtime/engine.h"
#include "server/options.h"

namespace lssar {

class ServedModel {
 public:
  // Makes the backend, loads the checkpoint, compares it with its golden rows and starts the
  // engine, in this order: what fails its self-check is never served. Errors  those of MakeBackend,
  // LoadCheckpoint, SelfCheck and Engine::Create, in the names of the flags where one is to blame
  static absl::StatusOr<std::unique_ptr<ServedModel>> Load(const ModelOptions& options);
  // The same on a backend that is there.
  static absl::StatusOr<std::unique_ptr<ServedModel>> LoadOn(std::unique_ptr<Backend> backend,
                                                             const ModelOptions& options);

  // Parts made elsewhere: `engine` runs on `checkpoint`, which runs on `backend` (null: on none).
  ServedModel(std::unique_ptr<Backend> backend, std::unique_ptr<Checkpoint> checkpoint,
              SelfCheckReport self_check, std::unique_ptr<Engine> engine);

  Engine& GetEngine() const { return *engine_; }
  const Checkpoint& GetCheckpoint() const { return *checkpoint_; }
  const SelfCheckReport& GetSelfCheck() const { return self_check_; }
  // Null: none was given.
  Backend* GetBackend() const { return backend_.get(); }
  int MaxModelLen() const { return engine_->Options().max_model_len; }

 private:
  // Destroyed from the last to the first: the engine's thread uses the other two.
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Checkpoint> checkpoint_;
  SelfCheckReport self_check_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SERVED_MODEL_H_

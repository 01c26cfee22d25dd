// The model that calls get and, after a reload, the one before it until its calls have ended.
#ifndef LSSAR_SERVER_SERVED_MODELS_H_
#define LSSAR_SERVER_SERVED_MODELS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/auth/admission_control.h"
#include "server/loaded_model.h"
#include "server/ops/log.h"
#include "server/ops/watchdog.h"

namespace lssar {

// RESOURCE_EXHAUSTED: what a thread that cannot begin means.
absl::Status NoThreadError(const std::system_error& error);
// RESOURCE_EXHAUSTED: what std::bad_alloc means.
absl::Status NoMemoryError();

// A reload loads the checkpoint's directory again beside the model that serves, with its
// self-check. Then new calls get the new model, and the old one is destroyed when its calls have
// ended: no call sees both. A checkpoint that cannot be loaded changes nothing. At most two models
// are in memory.
//
// Threads  any, except where stated
class ServedModels {
 public:
  using LoadModel = std::function<absl::StatusOr<std::unique_ptr<LoadedModel>>()>;
  struct Options {
    std::vector<std::string> directories;  // of the checkpoints: a change makes a reload load
    absl::Duration step_timeout;           // of Watchdog
    Watchdog::OnFailure on_failure;        // the same
    // New calls get this model from now on. Not called under a lock.
    std::function<void(const LoadedModel&)> on_serving;
    // A model's engine has ended after a reload.
    std::function<void()> on_retired;
  };

  // `log` and what Options' functions use must outlive this.
  ServedModels(Options options, const Log* log);
  // Requires  Stop has returned, and no permit is left
  ~ServedModels() = default;

  // Loads the first model and opens `admission`, which must outlive this, with it. Call once.
  // Errors  those of `load`
  absl::Status Load(LoadModel load, AdmissionControl* admission);

  // Asks for a reload, which a thread of its own does, and logs what came of it: `serving` of the
  // new model, or `model kept` with the reason. Nothing is loaded if no file of the directories has
  // changed. Before the first model is served it waits for that.
  void Reload();

  // Null before Load has returned.
  std::shared_ptr<LoadedModel> Current() const;
  // For how long the engine's current step has run, as Watchdog counts; zero: none is running.
  Clock::duration StepAge() const;
  // A reload is loading: Stop would wait for it.
  bool IsLoading() const { return is_loading_; }
  // The last reload has failed, and the directory has not been served since.
  bool HasFailedReload() const { return has_failed_reload_; }

  // Drains the engines; no model is changed any more. True if no request was aborted.
  bool Drain(absl::Duration limit);
  // Ends the reload's thread and the watch of the engines.
  void Stop();

 private:
  // A model and the watch of its engine.
  struct Served {
    std::shared_ptr<LoadedModel> model;
    std::unique_ptr<Watchdog> watchdog;
  };

  std::string Version() const;
  // False: the server stops.
  bool Serve(std::unique_ptr<LoadedModel> loaded);
  // Has a thread do what was asked for. The lock is held.
  void BeginReload();
  void RunReloads();
  void ReloadNow();
  // Errors  those of LoadAgain; RESOURCE_EXHAUSTED: no thread or no memory for the new model. Then
  //         nothing has changed.
  absl::Status ReplaceModel(const std::string& version);
  void KeepModel(const std::string& hash, const absl::Status& reason);
  absl::StatusOr<std::unique_ptr<LoadedModel>> LoadAgain(const std::string& version);
  void Retire();
  bool IsStopped() const;

  const Options options_;
  const Log& log_;
  LoadModel load_;
  AdmissionControl* admission_ = nullptr;
  std::string version_;  // of the files of current_; the loading thread only
  std::atomic<bool> is_loading_ = false, has_failed_reload_ = false;

  mutable std::mutex mutex_;  // guards the members below
  Served current_;            // without a model: none was loaded
  Served retiring_;           // without a model: none
  bool is_loaded_ = false;    // the first model
  bool is_asked_ = false;     // for a reload that has not begun
  bool is_running_ = false;   // thread_ will look at is_asked_ again
  bool is_stopped_ = false;
  std::thread thread_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SERVED_MODELS_H_

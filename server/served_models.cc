#include "server/served_models.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/config/file_version.h"

namespace lssar {
namespace {

// How often the wait for a model's calls looks whether the server stops.
constexpr absl::Duration kStopInterval = absl::Milliseconds(50);

}  // namespace

absl::Status NoThreadError(const std::system_error& error) {
  return absl::ResourceExhaustedError(
      StrCat("the system gives the server no more threads: ", error.what()));
}

absl::Status NoMemoryError() {
  return absl::ResourceExhaustedError("the system gives the server no more memory");
}

ServedModels::ServedModels(Options options, const Log* log)
    : options_(std::move(options)), log_(*log) {}

std::string ServedModels::Version() const {
  std::string version;
  for (const std::string& directory : options_.directories) version += DirectoryVersion(directory);
  return version;
}

absl::Status ServedModels::Load(LoadModel load, AdmissionControl* admission) {
  load_ = std::move(load);
  admission_ = admission;
  version_ = Version();
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> loaded, load_());
  if (Serve(std::move(loaded))) options_.on_serving(*Current());
  const std::lock_guard lock(mutex_);
  is_loaded_ = true;
  if (is_asked_ && !is_stopped_) BeginReload();
  return absl::OkStatus();
}

bool ServedModels::Serve(std::unique_ptr<LoadedModel> loaded) {
  const std::shared_ptr<LoadedModel> model = std::move(loaded);
  // First: it may find no thread or memory, and nothing has changed yet.
  auto watchdog = std::make_unique<Watchdog>(
      options_.step_timeout, [engine = &model->GetEngine()] { return engine->Stats(); },
      options_.on_failure);
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return false;
    retiring_ = std::move(current_);
    current_ = {.model = model, .watchdog = std::move(watchdog)};
    admission_->Open(model.get());
  }
  return true;
}

std::shared_ptr<LoadedModel> ServedModels::Current() const {
  const std::lock_guard lock(mutex_);
  return current_.model;
}

Clock::duration ServedModels::StepAge() const {
  const std::lock_guard lock(mutex_);
  return current_.watchdog == nullptr ? Clock::duration() : current_.watchdog->StepAge();
}

bool ServedModels::IsStopped() const {
  const std::lock_guard lock(mutex_);
  return is_stopped_;
}

void ServedModels::Reload() {
  const std::lock_guard lock(mutex_);
  if (is_stopped_) return;
  is_asked_ = true;
  if (is_loaded_) BeginReload();
}

void ServedModels::BeginReload() {
  if (std::exchange(is_running_, true)) return;
  if (thread_.joinable()) thread_.join();  // it has left the lock for the last time
  try {
    thread_ = std::thread([this] {
      NameThisThread("reload");
      RunReloads();
    });
  } catch (const std::system_error& error) {
    is_running_ = is_asked_ = false;
    KeepModel(current_.model->GetCheckpoint().hash, NoThreadError(error));
  }
}

void ServedModels::KeepModel(const std::string& hash, const absl::Status& reason) {
  has_failed_reload_ = true;
  log_.Error("model kept", {{"hash", hash}, {"reason", std::string(reason.message())}});
}

void ServedModels::RunReloads() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      is_running_ = !is_stopped_ && std::exchange(is_asked_, false);
      if (!is_running_) return;
    }
    ReloadNow();
  }
}

void ServedModels::ReloadNow() {
  const std::string hash = Current()->GetCheckpoint().hash;
  std::string version = Version();
  if (version == version_) {
    has_failed_reload_ = false;
    log_.Info("model kept", {{"hash", hash}, {"reason", "its files have not changed"}});
    return;
  }
  is_loading_ = true;
  const absl::Status status = ReplaceModel(version);
  is_loading_ = false;
  if (!status.ok()) return KeepModel(hash, status);
  has_failed_reload_ = false;
  version_ = std::move(version);
  Retire();
}

absl::Status ServedModels::ReplaceModel(const std::string& version) {
  bool is_serving = false;
  try {
    ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> loaded, LoadAgain(version));
    is_serving = Serve(std::move(loaded));
  } catch (const std::system_error& error) {
    return NoThreadError(error);
  } catch (const std::bad_alloc&) {
    return NoMemoryError();
  }
  if (is_serving) options_.on_serving(*Current());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LoadedModel>> ServedModels::LoadAgain(const std::string& version) {
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> loaded, load_());
  // Files of two checkpoints may pass as one: sizes and names agree, and a self-check is optional.
  if (Version() != version) {
    return absl::AbortedError("a file changed while the checkpoint was read; reload again");
  }
  return loaded;
}

void ServedModels::Retire() {
  LoadedModel* old = nullptr;
  {
    const std::lock_guard lock(mutex_);
    old = retiring_.model.get();
  }
  if (old == nullptr) return;  // the server stops
  while (!admission_->WaitUntilUnused(old, kStopInterval)) {
    if (IsStopped()) return;
  }
  Served ended;
  {
    const std::lock_guard lock(mutex_);
    ended = std::exchange(retiring_, Served());
  }
  const std::string hash = ended.model->GetCheckpoint().hash;
  ended.watchdog->ExpectShutdown();
  ended.watchdog = nullptr;
  // Its thread ends here, also where a reader of statistics still holds the model.
  ended.model->GetEngine().Drain(absl::ZeroDuration());
  ended.model = nullptr;
  options_.on_retired();
  log_.Info("model retired", {{"hash", hash}});
}

bool ServedModels::Drain(absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  std::vector<std::shared_ptr<LoadedModel>> models;
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
    for (const Served* served : {&current_, &retiring_}) {
      if (served->watchdog != nullptr) served->watchdog->ExpectShutdown();
      if (served->model != nullptr) models.push_back(served->model);
    }
  }
  bool is_clean = true;
  for (const auto& model : models) {
    const absl::Duration remaining = std::max(end - absl::Now(), absl::ZeroDuration());
    is_clean = model->GetEngine().Drain(remaining) && is_clean;
  }
  return is_clean;
}

void ServedModels::Stop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  // No thread starts any more.
  if (thread_.joinable()) thread_.join();
  // Outside the lock: a watchdog that reports a failure is waited for.
  std::vector<std::unique_ptr<Watchdog>> watchdogs;
  const std::lock_guard lock(mutex_);
  for (Served* served : {&current_, &retiring_}) watchdogs.push_back(std::move(served->watchdog));
}

}  // namespace lssar

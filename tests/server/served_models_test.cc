// A model that another one has replaced.
#include "server/served_models.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "tests/server/loaded_fake_model.h"
#include "tests/server/no_more_threads.h"
#include "tests/server/poll_until.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

// Serves fake models from a directory without a checkpoint; a file in it is a new version.
class ServedModelsTest : public testing::Test {
 protected:
  ~ServedModelsTest() override {
    models_.Drain(absl::ZeroDuration());
    models_.Stop();
  }
  void Load() {
    const auto load = [this]() -> absl::StatusOr<std::unique_ptr<LoadedModel>> {
      if (has_no_memory_) throw std::bad_alloc();
      return LoadFakeModel();
    };
    ASSERT_TRUE(models_.Load(load, &admission_).ok());
  }
  void ReloadAnother() {
    directory_.Write("config.json", "{}");
    models_.Reload();
  }
  void ExpectRetired() {
    EXPECT_TRUE(PollUntil([this] { return has_retired_.load(); }));
  }

  std::function<void()> on_serving_ = [] {};
  std::function<void()> on_retired_ = [] {};
  std::atomic<bool> has_no_memory_ = false;

 private:
  const Log log_{"off"};
  const ScratchDirectory directory_;
  const std::unique_ptr<AccessControl> access_ = AccessControl::Open("", &log_).value();
  AdmissionControl admission_{/*max_calls=*/1, access_.get()};
  std::atomic<bool> has_retired_ = false;

 protected:
  ServedModels models_{{.directories = {directory_.Path()},
                        .step_timeout = absl::ZeroDuration(),
                        .on_failure = [](const EngineFailure&) {},
                        .on_serving = [this](const LoadedModel&) { on_serving_(); },
                        .on_retired =
                            [this] {
                              on_retired_();
                              has_retired_ = true;
                            }},
                       &log_};
};

TEST_F(ServedModelsTest, TheEngineOfARetiredModelHasEndedEvenIfTheModelIsHeld) {
  Load();
  const std::shared_ptr<LoadedModel> held = models_.Current();
  std::atomic<bool> is_running = true;
  on_retired_ = [&] { is_running = held->GetEngine().CheckQueueCapacity().ok(); };
  ReloadAnother();
  ExpectRetired();
  EXPECT_FALSE(is_running);
  EXPECT_NE(models_.Current(), held);
}

TEST_F(ServedModelsTest, AReloadWithoutAThreadKeepsTheModel) {
  if (LSSAR_SANITIZED) return;
  Load();
  const std::shared_ptr<LoadedModel> first = models_.Current();
  {
    const NoMoreThreads none;
    models_.Reload();
  }
  EXPECT_TRUE(models_.HasFailedReload());
  EXPECT_EQ(models_.Current(), first);
  ReloadAnother();
  ExpectRetired();
  EXPECT_FALSE(models_.HasFailedReload());
}

TEST_F(ServedModelsTest, AReloadWithoutMemoryKeepsTheModel) {
  Load();
  const std::shared_ptr<LoadedModel> first = models_.Current();
  has_no_memory_ = true;
  ReloadAnother();
  EXPECT_TRUE(PollUntil([this] { return models_.HasFailedReload(); }));
  EXPECT_EQ(models_.Current(), first);
  has_no_memory_ = false;
  models_.Reload();
  ExpectRetired();
  EXPECT_FALSE(models_.HasFailedReload());
}

// A reader of the log who has seen that the server serves may send SIGHUP at once.
TEST_F(ServedModelsTest, AReloadIsNotLostWhileTheFirstModelBeginsToServe) {
  std::atomic<int> num_serving = 0;
  on_serving_ = [&] {
    if (++num_serving == 1) ReloadAnother();
  };
  Load();
  ExpectRetired();
  EXPECT_EQ(num_serving, 2);
}

}  // namespace
}  // namespace lssar

// A model that another one has replaced.
#include "server/served_models.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "tests/server/loaded_fake_model.h"
#include "tests/server/poll_until.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

TEST(ServedModelsTest, TheEngineOfARetiredModelHasEndedWhoeverHoldsTheModel) {
  const Log log("off");
  const ScratchDirectory directory;
  const auto access = AccessControl::Open("", &log);
  ASSERT_TRUE(access.ok());
  AdmissionControl admission(/*max_calls=*/1, access->get());
  std::shared_ptr<LoadedModel> held;
  std::atomic<bool> has_retired = false;
  std::atomic<int> num_running = 0;  // engines, of the model that has retired
  ServedModels models({.directories = {directory.Path()},
                       .step_timeout = absl::ZeroDuration(),
                       .on_failure = [](const EngineFailure&) {},
                       .on_serving = [](const LoadedModel&) {},
                       .on_retired =
                           [&] {
                             num_running = held->GetEngine().CheckQueueCapacity().ok() ? 1 : 0;
                             has_retired = true;
                           }},
                      &log);
  ASSERT_TRUE(models.Load(LoadFakeModel, &admission).ok());
  held = models.Current();
  directory.Write("config.json", "{}");
  models.Reload();
  EXPECT_TRUE(PollUntil([&] { return has_retired.load(); }));
  EXPECT_EQ(num_running, 0);
  EXPECT_NE(models.Current(), held);
  models.Drain(absl::ZeroDuration());
  models.Stop();
}

// A reader of the log who has seen that the server serves may send SIGHUP at once.
TEST(ServedModelsTest, AReloadIsNotLostWhileTheFirstModelBeginsToServe) {
  const Log log("off");
  const ScratchDirectory directory;
  const auto access = AccessControl::Open("", &log);
  ASSERT_TRUE(access.ok());
  AdmissionControl admission(/*max_calls=*/1, access->get());
  std::atomic<int> num_serving = 0;
  std::atomic<bool> has_retired = false;
  ServedModels* asked = nullptr;
  ServedModels models({.directories = {directory.Path()},
                       .step_timeout = absl::ZeroDuration(),
                       .on_failure = [](const EngineFailure&) {},
                       .on_serving =
                           [&](const LoadedModel&) {
                             if (++num_serving > 1) return;
                             directory.Write("config.json", "{}");
                             asked->Reload();
                           },
                       .on_retired = [&] { has_retired = true; }},
                      &log);
  asked = &models;
  ASSERT_TRUE(models.Load(LoadFakeModel, &admission).ok());
  EXPECT_TRUE(PollUntil([&] { return has_retired.load(); }));
  EXPECT_EQ(num_serving, 2);
  models.Drain(absl::ZeroDuration());
  models.Stop();
}

}  // namespace
}  // namespace lssar

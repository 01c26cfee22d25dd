// lssar-server with fault injection, for tests only. LSSAR_FAULT=hang:N: the Nth model step never
// ends. fail:N: the Nth step fails. fail-from:N: it and all later steps fail. lose:N: serves on the
// emulated GPU, which is lost in the Nth step: its driver returns an error for every call from then
// on. LSSAR_FAULT_NOT_BEFORE=FILE: the step with the fault first waits until the file is there.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/check.h"
#include "models/checkpoint.h"
#include "server/loaded_model.h"
#include "server/run_server.h"
#include "tests/kernels/cuda/faulty_driver.h"
#include "tests/support/forwarding_model.h"

namespace lssar {
namespace {

constexpr int kIllegalAddress = 700;  // cudaErrorIllegalAddress: every later call fails

struct Fault {
  bool hangs = false;
  bool loses_device = false;
  int first_step = 0, last_step = -1;  // counted from 1
  std::string not_before = {};         // a file
};

Fault ReadKind() {
  const char* variable = std::getenv("LSSAR_FAULT");
  const std::string_view text = variable == nullptr ? "" : variable;
  const size_t colon = text.find(':');
  int step = 0;
  LSSAR_CHECK(colon != text.npos && absl::SimpleAtoi(std::string(text.substr(colon + 1)), &step));
  const std::string_view kind = text.substr(0, colon);
  if (kind == "hang") return {.hangs = true, .first_step = step, .last_step = step};
  if (kind == "fail") return {.first_step = step, .last_step = step};
  if (kind == "lose") return {.loses_device = true, .first_step = step, .last_step = step};
  LSSAR_CHECK(kind == "fail-from");
  return {.first_step = step, .last_step = 1 << 30};
}

Fault ReadFault() {
  Fault fault = ReadKind();
  if (const char* path = std::getenv("LSSAR_FAULT_NOT_BEFORE")) fault.not_before = path;
  return fault;
}

class FaultyModel final : public ForwardingModel {
 public:
  FaultyModel(std::unique_ptr<LanguageModel> model, const Fault& fault,
              std::shared_ptr<DriverScript> driver)
      : ForwardingModel(std::move(model)), fault_(fault), driver_(std::move(driver)) {}

  absl::Status Forward(const ForwardBatch& batch, const KvView& kv,
                       AttentionStats* counters) override {
    ++step_;
    const bool is_faulty = step_ >= fault_.first_step && step_ <= fault_.last_step;
    while (is_faulty && !fault_.not_before.empty() && !std::filesystem::exists(fault_.not_before)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    while (is_faulty && fault_.hangs) std::this_thread::sleep_for(std::chrono::hours(1));
    if (is_faulty && fault_.loses_device) {
      driver_->is_sticky = true;
      driver_->Fail(DriverCall::kAny, kIllegalAddress);
    } else if (is_faulty) {
      return absl::InternalError("the device failed");
    }
    return ForwardingModel::Forward(batch, kv, counters);
  }

 private:
  const Fault fault_;
  const std::shared_ptr<DriverScript> driver_;
  int step_ = 0;
};

absl::StatusOr<std::unique_ptr<LoadedModel>> LoadFaulty(const ModelOptions& options) {
  const Fault fault = ReadFault();
  const auto driver = std::make_shared<DriverScript>();
  driver->free_bytes = size_t{256} << 20;
  auto backend = fault.loses_device ? MakeFaulty(driver) : MakeBackend(options.backend);
  if (!backend.ok()) return backend.status();
  auto loaded = LoadCheckpoint(
      options.directory, backend->get(),
      {.dtype = options.dtype, .max_num_batched_tokens = options.engine.max_num_batched_tokens});
  if (!loaded.ok()) return loaded.status();
  auto checkpoint = std::make_unique<Checkpoint>(*std::move(loaded));
  checkpoint->model = std::make_unique<FaultyModel>(std::move(checkpoint->model), fault, driver);
  auto engine = Engine::Create(checkpoint.get(), backend->get(), options.engine);
  if (!engine.ok()) return engine.status();
  return std::make_unique<LoadedModel>(*std::move(backend), std::move(checkpoint),
                                       SelfCheckReport{}, *std::move(engine));
}

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) { return lssar::RunServer(argc, argv, lssar::LoadFaulty); }

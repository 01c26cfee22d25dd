#include "server/server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "models/attention_override.h"
#include "server/api/call_context.h"
#include "server/api/worker_pool.h"
#include "server/auth/access_control.h"
#include "server/auth/admission_control.h"
#include "server/batch/batch_runner.h"
#include "server/batch/batch_store.h"
#include "server/config/limits.h"
#include "server/config/security_warnings.h"
#include "server/grpc/grpc_port.h"
#include "server/grpc/reply_writer.h"
#include "server/http/http_server.h"
#include "server/loaded_model.h"
#include "server/net/acceptor.h"
#include "server/net/grpc_connections.h"
#include "server/net/open_files.h"
#include "server/net/unix_socket.h"
#include "server/ops/health_probe.h"
#include "server/ops/log.h"
#include "server/ops/metrics.h"
#include "server/ops/otlp_exporter.h"
#include "server/ops/port_probe.h"
#include "server/ops/server_metrics.h"
#include "server/ops/serving_log.h"
#include "server/ops/watchdog.h"
#include "server/served_models.h"

namespace lssar {
namespace {

// With a step that has run for this part of --step-timeout the server is not ready.
constexpr int kStepTimeoutDivisor = 4;
// gRPC's shutdown ends arriving calls with CANCELLED, which clients and proxies do not repeat
// elsewhere. So the server first waits until no call has come and been refused for kQuietTime: a
// proxy has then seen that it drains. If calls still come after kMaxRejectTime, all connections are
// reset.
constexpr absl::Duration kQuietTime = absl::Milliseconds(200);
constexpr absl::Duration kMaxRejectTime = absl::Seconds(3);
// Time for gRPC to send the last bytes of ended calls; then it closes connections and health
// watches.
constexpr auto kFlushTime = std::chrono::milliseconds(200);
// Time to send the last spans at the end.
constexpr auto kSpanFlushTime = std::chrono::seconds(2);

// `listen` with the port that is actually open.
std::string AddressOf(const std::string& listen, int port) {
  if (IsUnixSocket(listen)) return listen;
  return StrCat(listen.substr(0, listen.rfind(':')), ":", port);
}

// What the engine's thread reports.
class EngineEvents final : public StepObserver {
 public:
  EngineEvents(Metrics* metrics, const std::unique_ptr<ReplyWriter>* replies)
      : metrics_(*metrics), replies_(*replies) {}
  void OnStep(int num_batched_tokens) override { metrics_.OnStep(num_batched_tokens); }
  void OnResults() override { replies_->Flush(); }

 private:
  Metrics& metrics_;
  const std::unique_ptr<ReplyWriter>& replies_;
};

}  // namespace

struct Server::State {
  State(ServerOptions server_options, OnEngineFailure on_engine_failure)
      : options(std::move(server_options)),
        on_failure(std::move(on_engine_failure)),
        log(options.log_level) {}

  ~State() {
    models.Stop();
    StopGrpc(std::chrono::system_clock::now());
  }

  // Ends gRPC's server; calls that run until `end` are cancelled.
  void StopGrpc(std::chrono::system_clock::time_point end) const {
    if (server == nullptr) return;
    server->Shutdown(end);
    server->Wait();
    replies->Stop();
  }
  // Errors  INVALID_ARGUMENT: --otlp-endpoint is no URL of a collector
  absl::Status OpenTraces();
  // Loads API keys and certificates and opens the gRPC port.
  // Errors  those of Open
  absl::Status OpenPort();
  // What /readyz says.
  absl::Status Readiness() const;
  void LogSecurityWarnings() const;

  // Sets the health of the server as a whole and of the Inference service.
  void SetServing(bool serving) const {
    auto* health = server->GetHealthCheckService();
    health->SetServingStatus("", serving);
    health->SetServingStatus(v1::Inference::service_full_name(), serving);
  }

  ServiceContext Parts() {
    return {.admission = admission.get(),
            .log = &log,
            .metrics = &metrics,
            .workers = &workers,
            .request_memory = &request_memory,
            .reply_memory = &reply_memory,
            .replies = replies.get(),
            .stream = options.stream,
            .trusted_proxies = &options.trusted_proxies,
            .share_prefix_cache_between_keys = options.share_prefix_cache_between_keys,
            .traces = traces.get(),
            .has_tls = options.tls.HasTls()};
  }
  // Adds the addresses of the open ports.
  void AddAddresses(LogFields* fields) const;
  ServerPhase Phase();
  ServerStatus Status();
  // Loads the model for the first time or again, by `load`.
  absl::StatusOr<std::unique_ptr<LoadedModel>> LoadBy(const LoadModel& load);
  ProbeEndpoints Pages();
  void Fail(const EngineFailure& failure);
  // Refuses calls until none has come for kQuietTime or no connection is open; `limit` and
  // kMaxRejectTime at most. False: kQuietTime has passed, and calls still come.
  bool WaitUntilQuiet(absl::Duration limit) const;
  // Opens the HTTP port, and goes on with the batches.
  absl::Status OpenHttp();

  const ServerOptions options;
  const OnEngineFailure on_failure;
  const Log log;
  Metrics metrics;
  std::unique_ptr<OtlpExporter> traces;  // null: none are sent
  MemoryBudget request_memory{"requests", limits::kMaxRequestBytes};
  MemoryBudget reply_memory{"replies", limits::kMaxReplyBytes};
  std::unique_ptr<AccessControl> access;
  std::unique_ptr<AdmissionControl> admission;
  std::unique_ptr<grpc::Service> service;
  std::unique_ptr<grpc::Service> reflection;
  std::unique_ptr<GrpcConnections> connections;  // null: no port
  bool was_served = false;
  ServedModels models{{.directories = {options.model.directory, options.model.draft_directory},
                       .step_timeout = options.step_timeout,
                       .on_failure = [this](const EngineFailure& failure) { Fail(failure); },
                       .on_serving =
                           [this](const LoadedModel& model) {
                             if (!std::exchange(was_served, true)) SetServing(true);
                             LogFields addresses = LogFields::object();
                             AddAddresses(&addresses);
                             LogServing(model, addresses, log);
                           },
                       .on_retired = [this] { replies->ForgetEngineThread(); }},
                      &log};
  std::unique_ptr<TlsCertificates> certificates;  // null: no TLS
  std::unique_ptr<BatchStore> batch_store;        // null: no batches
  // Destroyed after the ports, from which its jobs come, and before what the jobs use.
  WorkerPool workers{WorkerPool::OptionsFor(options.max_calls)};
  int port = 0;
  // Ends when gRPC's server has ended.
  std::unique_ptr<ReplyWriter> replies;
  EngineEvents engine_events{&metrics, &replies};
  std::mutex failure_mutex;
  absl::Status engine_failure;
  // Destroyed first, in reverse order: these use the members above.
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<PortProbe> port_probe;  // null: no port
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<BatchRunner> batches;  // null: none

  std::mutex shutdown_mutex;
  std::optional<bool> shutdown_result;
  std::atomic<bool> is_exporting = false;  // after shutdown: traces' thread has not ended
};

absl::Status Server::State::OpenTraces() {
  if (options.otlp_endpoint.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(OtlpEndpoint endpoint, ParseOtlpEndpoint(options.otlp_endpoint));
  traces = std::make_unique<OtlpExporter>(OtlpOptions{.endpoint = std::move(endpoint),
                                                      .sample_ratio = options.otlp_sample,
                                                      .log_level = options.log_level});
  return absl::OkStatus();
}

absl::Status Server::State::OpenPort() {
  ASSIGN_OR_RETURN(access, AccessControl::Open(options.api_keys, &log, options.client_limits));
  access->Watch();
  admission = std::make_unique<AdmissionControl>(options.max_calls, access.get());
  std::unique_ptr<Acceptor> acceptor;
  if (!options.listen.empty() && !IsUnixSocket(options.listen)) {
    const ConnectionOptions& connection = options.connection;
    ASSIGN_OR_RETURN(acceptor,
                     Acceptor::Listen({.flag = "--listen",
                                       .listen = options.listen,
                                       .name = "grpc",
                                       .limits = {.max_connections = connection.max_connections,
                                                  .max_connections_per_address =
                                                      connection.max_connections_per_address,
                                                  .metrics = &metrics.GrpcPort()},
                                       .log = &log}));
    port = acceptor->Port();
  }
  LogSecurityWarnings();
  if (options.tls.HasTls()) {
    ASSIGN_OR_RETURN(certificates, TlsCertificates::Open(options.tls, &log));
  }
  ASSIGN_OR_RETURN(GrpcPort started,
                   StartGrpcPort(options, std::move(acceptor), certificates.get(), Parts()));
  service = std::move(started.service);
  reflection = std::move(started.reflection);
  connections = std::move(started.connections);
  replies = std::move(started.replies);
  server = std::move(started.server);
  SetServing(false);
  if (options.listen.empty()) return absl::OkStatus();
  if (connections != nullptr) connections->Start();
  port_probe =
      std::make_unique<PortProbe>([address = AddressOf(options.listen, port), tls = options.tls] {
        return ProbeGrpcPort(address, tls);
      });
  return absl::OkStatus();
}

absl::Status Server::State::OpenHttp() {
  if (!options.batch_directory.empty()) {
    ASSIGN_OR_RETURN(batch_store, BatchStore::Open({.directory = options.batch_directory,
                                                    .max_bytes = options.batch_max_bytes,
                                                    .has_keys = access->HasKeys()}));
  }
  ASSIGN_OR_RETURN(
      http, HttpServer::Open(options, Pages(), Parts(), certificates.get(), batch_store.get()));
  if (batch_store == nullptr) return absl::OkStatus();
  const int max_rows = std::min(options.model.engine.max_num_seqs, options.max_calls) / 2;
  batches = std::make_unique<BatchRunner>(
      BatchRunner::Options{
          .max_rows = std::max(1, max_rows),
          .stream = options.stream,
          .readiness = [this] { return admission->Readiness(); },
          .find_caller = [this](const std::string& owner) { return access->Find(owner); },
          .num_other_calls = [this] { return admission->NumEngineCalls(); },
          .answer =
              [this](std::shared_ptr<HttpExchange> exchange) {
                http->Answer(std::move(exchange));
              }},
      batch_store.get(), &log);
  return absl::OkStatus();
}

absl::Status Server::State::Readiness() const {
  RETURN_IF_ERROR(admission->Readiness());
  const absl::Duration limit = options.step_timeout / kStepTimeoutDivisor;
  const absl::Duration age = absl::FromChrono(models.StepAge());
  if (limit > absl::ZeroDuration() && age > limit) {
    return absl::UnavailableError(
        StrCat("the engine's current step has run for ", absl::ToInt64Milliseconds(age), " ms"));
  }
  return port_probe == nullptr ? absl::OkStatus() : port_probe->Check();
}

void Server::State::LogSecurityWarnings() const {
  for (const std::string& warning : SecurityWarnings(options)) {
    log.Warning("security", {{"message", warning}});
  }
}

void Server::State::AddAddresses(LogFields* fields) const {
  if (!options.listen.empty()) (*fields)["address"] = AddressOf(options.listen, port);
  if (http != nullptr) (*fields)["http_address"] = AddressOf(options.http_listen, http->Port());
}

ServerPhase Server::State::Phase() {
  {
    const std::lock_guard lock(failure_mutex);
    if (!engine_failure.ok()) return ServerPhase::kFailed;
  }
  if (admission->Readiness().ok()) return ServerPhase::kServing;
  return models.Current() == nullptr ? ServerPhase::kLoading : ServerPhase::kDraining;
}

ServerStatus Server::State::Status() {
  ServerStatus status{.phase = Phase(),
                      .is_ready = Readiness().ok(),
                      .max_calls = options.max_calls,
                      .has_failed_reload = models.HasFailedReload(),
                      .traces = traces == nullptr ? OtlpCounts() : traces->Counts(),
                      .keys = access->Counts()};
  if (certificates != nullptr) status.certificate_end = certificates->End();
  if (batch_store != nullptr) status.batches = batch_store->Counts();
  const std::shared_ptr<const LoadedModel> served = models.Current();
  if (served == nullptr) return status;
  const Checkpoint& checkpoint = served->GetCheckpoint();
  const EngineOptions& engine = served->GetEngine().Options();
  status.model = ServerStatus::Model{
      .name = served->ServedNames().front(),
      .checkpoint_hash = checkpoint.hash,
      .attention = DescribeAttention(checkpoint.config.attention),
      .dtype = std::string(NameOf(checkpoint.dtype)),
      .kv_cache_dtype = std::string(NameOf(engine.kv_cache_dtype)),
      .device = std::string(served->GetBackend() == nullptr ? std::string_view()
                                                            : served->GetBackend()->Name()),
      .max_model_len = engine.max_model_len,
      .max_num_seqs = engine.max_num_seqs,
      .max_queued_requests = engine.max_queued_requests,
      .num_pages = served->GetEngine().Stats().num_pages,
      .page_size = engine.page_size};
  return status;
}

ProbeEndpoints Server::State::Pages() {
  return {.metrics =
              [this] {
                const std::string of_server = ServerMetricsText(Status()) + ProcessMetricsText();
                const std::shared_ptr<const LoadedModel> served = models.Current();
                if (served == nullptr) return metrics.Text(EngineStats()) + of_server;
                const Engine& engine = served->GetEngine();
                const std::string vllm_model =
                    options.vllm_metrics ? served->ServedNames().front() : std::string();
                return metrics.Text(engine.Stats(), vllm_model) + of_server +
                       AttentionMetricsText(engine.SampledAttention());
              },
          .check_admin =
              [this](const std::string& authorization) {
                return admission->Authenticate(authorization, KeyRole::kAdmin).status();
              },
          .health =
              [this] {
                const std::lock_guard lock(failure_mutex);
                return engine_failure;
              },
          .readiness = [this] { return Readiness(); }};
}

void Server::State::Fail(const EngineFailure& failure) {
  {
    const std::lock_guard lock(failure_mutex);
    engine_failure = failure.status;
  }
  admission->Close(failure.status);
  SetServing(false);
  if (failure.stuck_for) {
    const auto step_ms = std::chrono::duration_cast<std::chrono::milliseconds>(*failure.stuck_for);
    log.Error("engine stuck", {{"step_ms", step_ms.count()}});
  } else if (failure.is_device_lost) {
    log.Error("device lost", LogFields::object());
  } else {
    log.Error("engine failed", LogFields::object());
  }
  admission->AbortAll(failure.status);
  if (on_failure) on_failure(failure);
}

bool Server::State::WaitUntilQuiet(absl::Duration limit) const {
  // From now at least: clients whose calls have just ended call again.
  const Clock::time_point begin = Clock::now();
  const Clock::time_point latest =
      begin + absl::ToChronoMilliseconds(std::min(limit, kMaxRejectTime));
  while (metrics.NumConnections() > 0) {
    const Clock::time_point quiet =
        std::max(begin, admission->LastRefusal()) + absl::ToChronoMilliseconds(kQuietTime);
    const Clock::time_point now = Clock::now();
    if (now >= quiet) return true;
    // After less, what ended calls have to send may still be on its way.
    if (now >= latest) return limit < kQuietTime;
    std::this_thread::sleep_until(std::min(quiet, latest));
  }
  return true;
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options) {
  ASSIGN_OR_RETURN(auto server, Open(options));
  RETURN_IF_ERROR(server->Load());
  return server;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Open(const ServerOptions& options,
                                                     OnEngineFailure on_failure) {
  const int64_t open_file_limit = RaiseOpenFileLimit();
  ServerOptions fitted = options;
  fitted.connection.max_connections = FitConnections(
      options.connection.max_connections, !options.listen.empty(), !options.http_listen.empty(),
      !options.batch_directory.empty(), open_file_limit);
  auto state = std::make_unique<State>(fitted, std::move(on_failure));
  if (fitted.connection.max_connections < options.connection.max_connections) {
    state->log.Warning("connections limited",
                       {{"max_connections", fitted.connection.max_connections},
                        {"open_file_limit", open_file_limit},
                        {"message", StrCat("--max-connections ", options.connection.max_connections,
                                           " needs a higher limit of open files (ulimit -n)")}});
  }
  RETURN_IF_ERROR(state->OpenTraces());
  RETURN_IF_ERROR(state->OpenPort());
  if (!options.http_listen.empty()) {
    RETURN_IF_ERROR(state->OpenHttp());
  }
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

absl::Status Server::Load() { return Load(LoadedModel::Load); }

absl::StatusOr<std::unique_ptr<LoadedModel>> Server::State::LoadBy(const LoadModel& load) {
  ModelOptions model_options = options.model;
  model_options.engine.observer = &engine_events;
  LogFields loading = {{"model", model_options.directory}};
  AddAddresses(&loading);
  log.Info("loading", loading);
  model_options.on_self_check = LogSelfCheck(log);
  model_options.backend.log = [this](std::string_view line) {
    log.Info("gemm", {{"message", std::string(line)}});
  };
  for (const std::string& warning : BackendWarnings(model_options.backend)) {
    log.Warning("threads", {{"message", warning}});
  }
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedModel> loaded, load(model_options));
  if (http != nullptr) loaded->SetHttpAddress(AddressOf(options.http_listen, http->Port()));
  return loaded;
}

absl::Status Server::Load(const LoadModel& load) {
  State& state = *state_;
  return state.models.Load([&state, load] { return state.LoadBy(load); }, state.admission.get());
}

std::shared_ptr<grpc::Channel> Server::InProcessChannel() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  return state_->server->InProcessChannel(arguments);
}

int Server::Port() const { return state_->port; }

int Server::HttpPort() const { return state_->http == nullptr ? 0 : state_->http->Port(); }

void Server::Reload() {
  state_->access->Reload();
  if (state_->certificates != nullptr) state_->certificates->Reload();
  state_->models.Reload();
}

bool Server::IsReloading() const { return state_->models.IsLoading(); }

bool Server::IsExporting() const { return state_->is_exporting; }

bool Server::Shutdown(absl::Duration limit) {
  const std::lock_guard lock(state_->shutdown_mutex);
  if (state_->shutdown_result) return *state_->shutdown_result;
  const absl::Time end = absl::Now() + limit;
  // A row that takes longer runs again at the next start: it is no aborted call.
  if (state_->batches != nullptr) state_->batches->Stop(limit / 2);
  state_->admission->Close(
      absl::UnavailableError("the server is shutting down; retry on another server"));
  state_->SetServing(false);
  // Calls first, then the engine: a running Score call still submits items.
  bool is_clean = state_->admission->WaitUntilIdle(limit);
  is_clean = state_->models.Drain(std::max(end - absl::Now(), absl::ZeroDuration())) && is_clean;
  // Calls that are still being parsed: the engine does not know them.
  if (!is_clean) {
    state_->admission->AbortAll(
        absl::UnavailableError("the server is shutting down; retry on another server"));
  }
  if (state_->connections != nullptr) {
    const bool is_quiet = state_->WaitUntilQuiet(end - absl::Now());
    state_->connections->StopAccepting();
    if (!is_quiet) state_->connections->ResetAll();
  }
  state_->StopGrpc(std::chrono::system_clock::now() + kFlushTime);
  if (state_->traces != nullptr) state_->is_exporting = !state_->traces->Stop(kSpanFlushTime);
  state_->shutdown_result = is_clean;
  state_->log.Info("stopped", {{"aborted_calls", !is_clean}});
  return is_clean;
}

}  // namespace lssar

// Load generator: mixed requests from many connections, to find leaks and hangs in a server.
//
// Every connection is a thread with one call at a time: streams, scores, cancelled calls, calls
// that exceed their deadline, invalid calls. Each carries an id (x-request-id). The JSON on stdout
// gives the status of each call and samples of the server's memory.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/str_cat.h"
#include "clients/cli/rpc_calls.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "nlohmann/json.hpp"

namespace lssar {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kNumSharedPrefixes = 8;
constexpr int kSharedTokens = 96;
constexpr int kFirstId = 300;      // ordinary ids of the shipped vocabulary of 4096: from here ...
constexpr int kLastId = 4000;      // ... to here
constexpr int kLongOutput = 4000;  // tokens: longer than any cancelled call lives

enum class Kind { kStream, kScore, kCancel, kDeadline, kBadInput };
const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kStream: return "stream";
    case Kind::kScore: return "score";
    case Kind::kCancel: return "cancel";
    case Kind::kDeadline: return "deadline";
    case Kind::kBadInput: return "bad input";
  }
  return "";
}

grpc::StatusCode ExpectedCode(Kind kind) {
  switch (kind) {
    case Kind::kStream:
    case Kind::kScore: return grpc::StatusCode::OK;
    case Kind::kCancel: return grpc::StatusCode::CANCELLED;
    case Kind::kDeadline: return grpc::StatusCode::DEADLINE_EXCEEDED;
    case Kind::kBadInput: return grpc::StatusCode::INVALID_ARGUMENT;
  }
  return grpc::StatusCode::UNKNOWN;
}

struct Options {
  std::string server;
  int num_connections = 64;
  int num_requests = 30000;
  uint64_t seed = 1;
  int server_pid = 0;
};

struct Ended {
  std::string id;
  Kind kind;
  grpc::StatusCode code;
};

class Soak {
 public:
  explicit Soak(const Options& options) : options_(options) {}

  Json Run() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.num_connections; ++i) {
      threads.emplace_back([this] { RunConnection(); });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    return ToJson(elapsed.count());
  }

 private:
  using Random = std::mt19937_64;

  void RunConnection() {
    grpc::ChannelArguments arguments;
    // Otherwise gRPC shares one connection among channels with equal arguments.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel(options_.server, grpc::InsecureChannelCredentials(), arguments);
    // gRPC 1.51 reads connect()'s errno after other calls, so a first attempt may fail with any
    // other's error. The next one comes after a second, in which this connection would have failed
    // all requests. Without a server they fail after the wait, too.
    channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(1));
    const auto stub = v1::Inference::NewStub(channel);
    for (int idx = next_idx_++; idx < options_.num_requests; idx = next_idx_++) {
      Random random(options_.seed * 1000003 + static_cast<uint64_t>(idx));
      const Kind kind = DrawKind(&random);
      // A refused request is sent again under another id.
      for (int attempt = 0;; ++attempt) {
        const std::string id = StrCat("soak-", idx, "-", attempt);
        Random same_again = random;
        const grpc::Status status = Call(stub.get(), id, kind, &same_again);
        Note({.id = id, .kind = kind, .code = status.error_code()}, status.error_message());
        if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) break;
        std::this_thread::sleep_for(
            cli::RetryDelayOf(status).value_or(std::chrono::milliseconds(100)));
      }
    }
  }

  static Kind DrawKind(Random* random) {
    std::discrete_distribution<int> kinds({50, 15, 15, 10, 10});
    return static_cast<Kind>(kinds(*random));
  }

  static int Draw(int low, int high, Random* random) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  }

  static void AddIds(int count, Random* random, v1::TokenIds* tokens) {
    for (int i = 0; i < count; ++i) tokens->add_ids(Draw(kFirstId, kLastId, random));
  }

  // Half of the prompts share a prefix with others.
  static void FillPrompt(Random* random, v1::TokenIds* tokens) {
    if (Draw(0, 1, random) == 0) {
      Random shared(static_cast<uint64_t>(Draw(0, kNumSharedPrefixes - 1, random)));
      AddIds(kSharedTokens, &shared, tokens);
    }
    AddIds(Draw(1, 64, random), random, tokens);
  }

  static grpc::Status Call(v1::Inference::Stub* stub, const std::string& id, Kind kind,
                           Random* random) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", id);
    if (kind == Kind::kScore) return Score(stub, &context, random);
    v1::GenerateRequest request;
    FillPrompt(random, request.mutable_tokens());
    request.mutable_sampling()->set_seed(static_cast<uint64_t>(Draw(0, 1 << 30, random)));
    request.set_ignore_eos(true);
    request.set_max_tokens(kind == Kind::kStream ? Draw(1, 24, random) : kLongOutput);
    request.set_priority(Draw(-2, 2, random));
    if (kind == Kind::kStream && Draw(0, 9, random) == 0) request.set_n(2);
    if (kind == Kind::kStream && Draw(0, 9, random) == 0) request.set_logprobs(2);
    if (kind == Kind::kBadInput) Spoil(random, &request);
    if (kind == Kind::kDeadline) {
      context.set_deadline(std::chrono::system_clock::now() +
                           std::chrono::milliseconds(Draw(1, 60, random)));
    }
    const int num_messages_to_cancel = kind == Kind::kCancel ? Draw(0, 12, random) : -1;
    return Generate(stub, &context, request, num_messages_to_cancel);
  }

  static void Spoil(Random* random, v1::GenerateRequest* request) {
    switch (Draw(0, 5, random)) {
      case 0: request->mutable_sampling()->set_temperature(-1); break;
      case 1: request->set_max_tokens(0); break;
      case 2: request->mutable_tokens()->clear_ids(); break;
      case 3: request->mutable_tokens()->add_ids(-7); break;
      case 4: request->set_n(1000); break;
      default: request->set_max_tokens(1 << 28); break;
    }
  }

  // `num_messages_to_cancel`: cancels after that many messages; -1: never.
  static grpc::Status Generate(v1::Inference::Stub* stub, grpc::ClientContext* context,
                               const v1::GenerateRequest& request, int num_messages_to_cancel) {
    const auto reader = stub->Generate(context, request);
    if (num_messages_to_cancel == 0) context->TryCancel();
    v1::GenerateReply reply;
    int num_messages = 0;
    int num_tokens = 0;
    while (reader->Read(&reply)) {
      if (++num_messages == num_messages_to_cancel) context->TryCancel();
      num_tokens += reply.delta().tokens_size();
    }
    const grpc::Status status = reader->Finish();
    // A stream with status OK must be complete.
    if (status.ok() &&
        (!reply.has_finished() || num_tokens != request.max_tokens() * std::max(1, request.n()))) {
      return {grpc::StatusCode::INTERNAL, "an OK stream without its end or its tokens"};
    }
    return status;
  }

  static grpc::Status Score(v1::Inference::Stub* stub, grpc::ClientContext* context,
                            Random* random) {
    v1::ScoreRequest request;
    const int num_items = Draw(1, 3, random);
    for (int i = 0; i < num_items; ++i) {
      v1::ScoreItem* item = request.add_items();
      FillPrompt(random, item->mutable_context()->mutable_tokens());
      for (int j = 0; j < 2; ++j) {
        AddIds(Draw(1, 6, random), random, item->add_continuations()->mutable_tokens());
      }
    }
    const auto reader = stub->Score(context, request);
    v1::ScoreReply reply;
    int num_scores = 0;
    while (reader->Read(&reply)) num_scores += reply.has_score();
    const grpc::Status status = reader->Finish();
    if (status.ok() && (!reply.has_finished() || num_scores != 2 * num_items)) {
      return {grpc::StatusCode::INTERNAL, "an OK stream without its end or its scores"};
    }
    return status;
  }

  void Note(Ended ended, const std::string& message) {
    constexpr size_t kSampleEvery = 200;
    constexpr size_t kMostSentences = 10;
    const std::lock_guard lock(mutex_);
    const bool is_expected = ended.code == ExpectedCode(ended.kind) ||
                             ended.code == grpc::StatusCode::RESOURCE_EXHAUSTED;
    if (!is_expected && unexpected_.size() < kMostSentences) {
      unexpected_.push_back(StrCat(ended.id, " (", NameOf(ended.kind), "): ", message));
    }
    num_unexpected_ += !is_expected;
    ended_.push_back(std::move(ended));
    if (ended_.size() % kSampleEvery == 0) rss_kib_.emplace_back(ended_.size(), ServerRssKib());
  }

  // 0: not available.
  int64_t ServerRssKib() const {
    std::ifstream status(StrCat("/proc/", options_.server_pid, "/status"));
    std::string word;
    int64_t kib = 0;
    while (status >> word) {
      if (word == "VmRSS:") status >> kib;
    }
    return kib;
  }

  Json ToJson(double duration_s) const {
    std::map<std::string, std::map<std::string, int>> counts;
    Json calls = Json::object();
    for (const Ended& ended : ended_) {
      const std::string code = absl::StatusCodeToString(static_cast<absl::StatusCode>(ended.code));
      ++counts[NameOf(ended.kind)][code];
      calls[ended.id] = code;
    }
    return {{"duration_s", duration_s},  {"num_calls", ended_.size()},
            {"counts", counts},          {"num_unexpected", num_unexpected_},
            {"unexpected", unexpected_}, {"rss_kib", rss_kib_},
            {"calls", std::move(calls)}};
  }

  const Options options_;
  std::atomic<int> next_idx_ = 0;
  std::mutex mutex_;  // guards the members below
  std::vector<Ended> ended_;
  int num_unexpected_ = 0;
  std::vector<std::string> unexpected_;
  std::vector<std::pair<size_t, int64_t>> rss_kib_;  // (calls done, KiB)
};

}  // namespace
}  // namespace lssar

int main(int argc, char** argv) {
  lssar::Options options;
  CLI::App app("Mixed requests from many connections to an lssar-server.");
  app.add_option("--server", options.server, "host:port")->required();
  app.add_option("--server-pid", options.server_pid, "whose memory to watch");
  app.add_option("--connections", options.num_connections)->check(CLI::Range(1, 1024));
  app.add_option("--requests", options.num_requests)->check(CLI::Range(1, 10000000));
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  std::printf("%s\n", lssar::Soak(options).Run().dump().c_str());
  return 0;
}

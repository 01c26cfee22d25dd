// The HTTP port: pages that answer in every state, and the transport under an own handler.
#include "server/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "server/http/http_transport.h"
#include "server/http/json_text.h"
#include "tests/server/poll_until.h"
#include "tests/server/tcp_client.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t num_sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (num_sent <= 0) return false;
    bytes.remove_prefix(size_t(num_sent));
  }
  return true;
}

std::string ReadAll(int client) {
  std::string all;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(client, buffer, sizeof(buffer), 0)) > 0;) {
    all.append(buffer, size_t(n));
  }
  return all;
}

// In use by this process; 0 with a sanitizer's allocator.
size_t NumHeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    options_.http_listen = "127.0.0.1:0";
    options_.http_cors_origins = {"https://a.example"};
    auto opened = HttpServer::Open(options_,
                                   {.metrics = [] { return std::string("lssar_metric 1\n"); },
                                    .check_admin = [this](const std::string&) { return admin_; },
                                    .health = [] { return absl::OkStatus(); },
                                    .readiness = [this] { return readiness_; }},
                                   ServiceContext(), /*certificates=*/nullptr);
    LSSAR_CHECK(opened.ok());
    server_ = *std::move(opened);
  }

  HttpReply Ask(std::string_view method, std::string_view path, std::string_view body = {}) const {
    auto reply =
        SendRequest({.host = "127.0.0.1", .port = server_->Port()}, method, path, {}, body);
    LSSAR_CHECK(reply.ok());
    return *std::move(reply);
  }
  // A connection that has said nothing yet.
  int Connect() const { return ConnectTo(server_->Port()); }

  ServerOptions options_;
  absl::Status admin_;
  absl::Status readiness_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, ThePagesSayWhatTheyAreGiven) {
  const HttpReply metrics = Ask("GET", "/metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.body, "lssar_metric 1\n");
  EXPECT_EQ(metrics.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_EQ(Ask("GET", "/healthz").status, 200);
  EXPECT_EQ(Ask("GET", "/healthz").body, "ok\n");
  EXPECT_EQ(Ask("GET", "/readyz").status, 200);
  readiness_ = absl::UnavailableError("the server is draining");
  EXPECT_EQ(Ask("GET", "/readyz").status, 503);
  EXPECT_EQ(Ask("GET", "/readyz").body, "the server is draining\n");
  admin_ = absl::UnauthenticatedError("no key");
  EXPECT_EQ(Ask("GET", "/metrics").status, 401);
  admin_ = absl::PermissionDeniedError("not an admin");
  EXPECT_EQ(Ask("GET", "/metrics").status, 403);
}

TEST_F(HttpServerTest, OtherPathsAndMethodsAreRefusedInJson) {
  for (const char* path : {"//", "/metrics/", "/v1/nothing", "/%00", "/healthz/../metrics"}) {
    const HttpReply reply = Ask("GET", path);
    EXPECT_EQ(reply.status, 404) << path;
    const auto error = nlohmann::json::parse(reply.body).at("error");
    EXPECT_EQ(error.at("code"), "not_found");
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("there is no GET /"));
  }
  EXPECT_EQ(Ask("POST", "/metrics", "x").status, 405);
  EXPECT_EQ(Ask("HEAD", "/metrics").status, 200);
  EXPECT_EQ(Ask("HEAD", "/metrics").body, "");
}

TEST_F(HttpServerTest, ASlashBehindACallsPathIsRedirected) {
  const auto location = [this](std::string_view method, std::string_view target) {
    const int client = Connect();
    SendAll(client, StrCat(method, " ", target, " HTTP/1.1\r\nHost: localhost\r\n",
                           "Connection: close\r\nContent-Length: 0\r\n\r\n"));
    const std::string reply = ReadAll(client);
    close(client);
    EXPECT_THAT(reply, StartsWith("HTTP/1.1 307 Temporary Redirect\r\n")) << target;
    const size_t at = reply.find("Location: ");
    return at == reply.npos ? reply : reply.substr(at + 10, reply.find('\r', at) - at - 10);
  };
  EXPECT_EQ(location("GET", "/v1/models/"), "/v1/models");
  EXPECT_EQ(location("POST", "/v1/chat/completions/?a=/"), "/v1/chat/completions?a=/");
  EXPECT_EQ(location("POST", "/v1/embeddings//"), "/v1/embeddings");
  EXPECT_EQ(location("POST", "/v1/messages/"), "/v1/messages");
}

TEST_F(HttpServerTest, APathThatIsAlmostOneNamesIt) {
  const auto message = [this](std::string_view path) {
    const HttpReply reply = Ask("POST", path, "{}");
    EXPECT_EQ(reply.status, 404) << path;
    return nlohmann::json::parse(reply.body).at("error").at("message").get<std::string>();
  };
  // A base_url that ends in a slash, and one without /v1 or with two.
  for (const char* path : {"//v1/chat/completions", "/v1//chat/completions", "/chat/completions",
                           "/v1/v1/chat/completions", "/v1/chat/completion"}) {
    EXPECT_THAT(message(path), HasSubstr("; did you mean /v1/chat/completions?; there are "));
  }
  EXPECT_THAT(message("/something/else"), testing::Not(HasSubstr("did you mean")));
  EXPECT_THAT(message(std::string(5'000, '/')), testing::Not(HasSubstr("did you mean")));
}

TEST_F(HttpServerTest, AnErrorBeforeTheCallHasTheShapeAndTheCorsHeadersOfItsPath) {
  struct Case {
    std::string method, header;
    int status;
  };
  const std::vector<Case> cases = {
      {"POST", "Content-Length: 99999999", 413},
      {"POST", "Content-Encoding: gzip\r\nContent-Length: 2", 415},
      {"POST", "Content-Type: image/png\r\nContent-Length: 2", 415},
      {"POST", "Transfer-Encoding: gzip", 501},
      {"POST", "Expect: magic", 417},
      {"POST", "no colon", 400},
      {"POST", "Host: twice", 400},
      {"GET", "X: x", 405},
  };
  for (const std::string path : {"/v1/messages", "/v1/messages/count_tokens", "/v1/completions"}) {
    for (const Case& one : cases) {
      const int client = Connect();
      SendAll(client,
              StrCat(one.method, " ", path, " HTTP/1.1\r\nHost: localhost\r\n",
                     "Origin: https://a.example\r\nConnection: close\r\n", one.header, "\r\n\r\n"));
      const std::string reply = ReadAll(client);
      close(client);
      EXPECT_THAT(reply, StartsWith(StrCat("HTTP/1.1 ", one.status, " "))) << one.header;
      EXPECT_THAT(reply, HasSubstr("Access-Control-Allow-Origin: https://a.example\r\n"))
          << path << " " << one.header;
      const bool is_anthropic = reply.find(R"({"type":"error","error":{"type":)") != reply.npos;
      EXPECT_EQ(is_anthropic, path.starts_with("/v1/messages")) << one.header << reply;
      EXPECT_EQ(reply.find(R"("code":)") == reply.npos, is_anthropic) << one.header << reply;
    }
  }
}

TEST_F(HttpServerTest, ARequestWithoutAnEndIsCut) {
  const int client = Connect();
  SendAll(client, "GET /metrics HTTP/1.1\r\n");
  const std::string line = "X-More: " + std::string(1000, 'x') + "\r\n";
  int num_lines = 0;
  while (num_lines < 1'000'000 && SendAll(client, line)) ++num_lines;
  close(client);
  EXPECT_LT(num_lines, 1'000'000);
  EXPECT_EQ(Ask("GET", "/healthz").status, 200);
}

TEST_F(HttpServerTest, RequestsThatWaitForAnAnswerAreNotReadIntoMemory) {
  std::string requests;
  while (requests.size() < 64 << 10) requests += "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
  const int client = Connect();
  const size_t before = NumHeapBytes();
  size_t num_of_part = 0;
  std::string answers;
  // As many requests as the connection takes, more than are answered.
  for (int num_answers = 0; num_answers < 5000;) {
    const ssize_t num_sent = send(client, requests.data() + num_of_part,
                                  requests.size() - num_of_part, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (num_sent > 0) num_of_part = (num_of_part + size_t(num_sent)) % requests.size();
    char buffer[4096];
    const ssize_t num_read = recv(client, buffer, sizeof(buffer), num_sent > 0 ? MSG_DONTWAIT : 0);
    ASSERT_NE(num_read, 0);
    if (num_read > 0) answers.append(buffer, size_t(num_read));
    for (size_t end = 0; (end = answers.find("ok\n")) != std::string::npos; ++num_answers) {
      answers.erase(0, end + 3);
    }
  }
  EXPECT_LT(NumHeapBytes(), before + (4 << 20));
  close(client);
}

TEST_F(HttpServerTest, StopsWhileClientsSayNothing) {
  std::vector<int> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  EXPECT_EQ(Ask("GET", "/healthz").status, 200);  // the others have been accepted
  server_.reset();
  for (const int client : clients) {
    char byte = 0;
    EXPECT_LE(recv(client, &byte, 1, 0), 0);
    close(client);
  }
}

TEST_F(HttpServerTest, APortInUseIsNamed) {
  options_.http_listen = "127.0.0.1:" + std::to_string(server_->Port());
  const auto second = HttpServer::Open(options_, {}, ServiceContext(), /*certificates=*/nullptr);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http-listen"));
}

// Records what an exchange reports.
class RecordingCall final : public ExchangeListener {
 public:
  void OnSpace() override { ++num_spaces; }
  void OnClientGone(const absl::Status& reason) override {
    const std::lock_guard lock(mutex);
    gone = reason;
  }
  void OnFinished(const absl::Status& status) override {
    const std::lock_guard lock(mutex);
    finished = status;
    is_finished = true;
  }
  std::atomic<int> num_spaces = 0;
  std::atomic<bool> is_finished = false;
  std::mutex mutex;
  absl::Status gone, finished;
};

constexpr char kGet[] = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

class HttpTransportTest : public testing::Test, public HttpHandler {
 protected:
  std::optional<HttpReply> CheckHead(HttpRequest*) override { return std::nullopt; }
  void OnRequest(std::shared_ptr<HttpExchange> exchange) override {
    const std::lock_guard lock(mutex_);
    exchanges_.push_back(std::move(exchange));
  }
  HttpReply ErrorReply(const HttpRequest& /*head*/, int status, std::string message) override {
    return {.status = status, .body = std::move(message)};
  }

  void Open(TransportOptions options = {}) {
    options.listen = "127.0.0.1:0";
    auto opened = HttpTransport::Open(options, nullptr, this);
    LSSAR_CHECK(opened.ok());
    transport_ = *std::move(opened);
  }
  // The next request's exchange.
  std::shared_ptr<HttpExchange> Next() {
    LSSAR_CHECK(PollUntil([this] {
      const std::lock_guard lock(mutex_);
      return !exchanges_.empty();
    }));
    const std::lock_guard lock(mutex_);
    auto exchange = std::move(exchanges_.front());
    exchanges_.erase(exchanges_.begin());
    return exchange;
  }
  struct Connected {
    int client;
    std::shared_ptr<HttpExchange> exchange;
    std::shared_ptr<RecordingCall> call;
  };
  // A client that has sent a request, and whose kernel takes little of the reply ahead of it.
  Connected ConnectWithASmallWindow() {
    const int client = ConnectTo(transport_->Port());
    const int window = 64 << 10;
    EXPECT_EQ(setsockopt(client, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)), 0);
    SendAll(client, kGet);
    Connected connected{client, Next(), std::make_shared<RecordingCall>()};
    EXPECT_TRUE(connected.exchange->Attach(connected.call));
    return connected;
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<HttpExchange>> exchanges_;
  std::unique_ptr<HttpTransport> transport_;
};

TEST_F(HttpTransportTest, AProducerHearsWhenTheClientIsBehindAndWhenItHasCaughtUp) {
  Open({.stream = {.buffer_bytes = 64 << 10}});
  const auto [client, exchange, call] = ConnectWithASmallWindow();
  exchange->BeginStream();
  // Far more than the kernel's buffers take. One event: of several, the first may be written, and
  // that reported, at any time.
  exchange->Send(std::string(size_t{64} << 20, 'x'));
  EXPECT_FALSE(exchange->HasSpace());
  std::thread reader([&] { EXPECT_THAT(ReadAll(client), HasSubstr("\r\n0\r\n\r\n")); });
  EXPECT_TRUE(PollUntil([&] { return call->num_spaces == 1; }));
  EXPECT_TRUE(exchange->HasSpace());
  exchange->EndStream();
  reader.join();
  EXPECT_TRUE(PollUntil([&] { return call->is_finished.load(); }));
  EXPECT_TRUE(call->finished.ok());
  close(client);
}

TEST(HttpExchangeTest, EachAnswerTellsItsStatus) {
  const auto status_of = [](const auto& answer) {
    HttpRequest request;
    request.method = "GET";
    HttpExchange exchange(std::move(request), {}, {.wake = [] {}, .run_later = {}});
    EXPECT_EQ(exchange.SentStatus(), 0);
    answer(exchange);
    return exchange.SentStatus();
  };
  EXPECT_EQ(status_of([](HttpExchange& exchange) { exchange.Reply({.status = 404, .body = ""}); }),
            404);
  EXPECT_EQ(status_of([](HttpExchange& exchange) { exchange.BeginStream(); }), 200);
  EXPECT_EQ(status_of([](HttpExchange& exchange) { exchange.BeginBody("text/plain", 1); }), 200);
}

// Asked twice, "is there more?" and "has it ended?", an answer that ends in between loses its end.
TEST(HttpExchangeTest, AnAnswerEndsWhereNothingIsLeft) {
  using Output = HttpExchange::Output;
  HttpRequest request;
  request.method = "GET";
  HttpExchange exchange(std::move(request), {}, {.wake = [] {}, .run_later = {}});
  std::string block;
  EXPECT_EQ(exchange.TakeOutput(&block), Output::kNone);
  exchange.BeginStream();
  EXPECT_EQ(exchange.TakeOutput(&block), Output::kTaken);
  EXPECT_EQ(exchange.TakeOutput(&block), Output::kNone);
  exchange.Send("data: 1\n\n");
  exchange.EndStream();
  EXPECT_TRUE(exchange.HasEnded());
  std::string rest;
  for (block.clear(); exchange.TakeOutput(&block) == Output::kTaken; block.clear()) rest += block;
  EXPECT_THAT(rest, testing::EndsWith("data: 1\n\n\r\n0\r\n\r\n"));
  EXPECT_EQ(exchange.TakeOutput(&block), Output::kEnd);
}

TEST(HttpExchangeTest, AStreamWithNothingToSendGetsComments) {
  HttpRequest request;
  request.method = "GET";
  HttpExchange exchange(std::move(request), {},
                        {.wake = [] {}, .run_later = [](milliseconds, std::function<void()>) {}});
  const auto take = [&exchange] {
    std::string all;
    for (std::string block; exchange.TakeOutput(&block) == HttpExchange::Output::kTaken;
         all += block) {
      exchange.Written(block.size());
    }
    return all;
  };
  const milliseconds interval(10'000);
  const Clock::time_point later = Clock::now() + 1000 * interval;
  EXPECT_EQ(exchange.SendComment(interval, later), std::nullopt) << "not begun";
  exchange.BeginStream();
  EXPECT_EQ(exchange.SendComment(interval, later), interval) << "the head waits";
  EXPECT_THAT(take(), testing::EndsWith("\r\n\r\n"));
  exchange.Send("data: 1\n\n");
  EXPECT_EQ(exchange.SendComment(interval, later), interval) << "an event waits";
  EXPECT_EQ(take(), "9\r\ndata: 1\n\n\r\n");
  EXPECT_EQ(exchange.SendComment(interval, later), interval);
  EXPECT_EQ(take(), "f\r\n: nothing yet\n\n\r\n");
  EXPECT_EQ(exchange.SendComment(interval, later + interval / 4), interval * 3 / 4) << "too early";
  EXPECT_EQ(take(), "");
  exchange.EndStream();
  EXPECT_EQ(exchange.SendComment(interval, later + interval), std::nullopt);
  EXPECT_EQ(take(), "0\r\n\r\n");
}

TEST_F(HttpTransportTest, AClientThatReadsNothingLosesItsConnection) {
  Open({.stream = {.buffer_bytes = 64 << 10, .client_timeout = absl::Milliseconds(200)}});
  const int client = ConnectTo(transport_->Port());
  SendAll(client, kGet);
  const auto exchange = Next();
  const auto call = std::make_shared<RecordingCall>();
  ASSERT_TRUE(exchange->Attach(call));
  exchange->BeginStream();
  const std::string event(64 << 10, 'x');
  ASSERT_TRUE(PollUntil([&] {
    if (exchange->HasSpace()) exchange->Send(event);
    return call->is_finished.load();
  }));
  EXPECT_EQ(call->gone.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(call->gone.message()), HasSubstr("--slow-client-timeout"));
  exchange->Send(event);  // to nobody
  exchange->EndStream();
  close(client);
}

TEST_F(HttpTransportTest, AClientThatTricklesALargeReplyLosesItsConnection) {
  std::string message;
  // To the server a machine that stalls is a client that has stopped: then with more time.
  for (const milliseconds timeout : {milliseconds(500), milliseconds(2000), milliseconds(8000)}) {
    // 32 MiB have 3 timeouts. The client reads something in each, but takes more than 10 for all.
    Open({.stream = {.buffer_bytes = 16 << 20, .client_timeout = absl::FromChrono(timeout)}});
    const auto [client, exchange, call] = ConnectWithASmallWindow();
    const size_t num_bytes = size_t{32} << 20;
    exchange->Reply({.status = 200, .body = std::string(num_bytes, 'x')});
    std::string buffer(64 << 10, '\0');
    size_t num_read = 0;
    for (ssize_t n = 0; (n = recv(client, buffer.data(), buffer.size(), 0)) > 0;) {
      num_read += size_t(n);
      if (!call->is_finished) std::this_thread::sleep_for(timeout / 50);
    }
    EXPECT_LT(num_read, num_bytes);
    close(client);
    ASSERT_TRUE(PollUntil([&] { return call->is_finished.load(); }));
    EXPECT_EQ(call->finished.code(), absl::StatusCode::kAborted);
    message = std::string(call->finished.message());
    if (message.find("read nothing") == message.npos) break;
  }
  EXPECT_THAT(message, HasSubstr("too slowly"));
}

TEST_F(HttpTransportTest, AClientThatClosesIsNoticedWhileItsRequestIsWorkedOn) {
  Open();
  const int client = ConnectTo(transport_->Port());
  SendAll(client, kGet);
  const auto exchange = Next();
  const auto call = std::make_shared<RecordingCall>();
  ASSERT_TRUE(exchange->Attach(call));
  close(client);
  EXPECT_TRUE(PollUntil([&] { return call->is_finished.load(); }));
  EXPECT_EQ(call->gone.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(exchange->Attach(call));
  exchange->Reply({.status = 200, .body = "late"});
}

TEST_F(HttpTransportTest, TheServersEndIsReportedToCallsInProgress) {
  Open();
  const int client = ConnectTo(transport_->Port());
  SendAll(client, kGet);
  const auto exchange = Next();
  const auto call = std::make_shared<RecordingCall>();
  ASSERT_TRUE(exchange->Attach(call));
  transport_.reset();
  EXPECT_TRUE(call->is_finished);
  EXPECT_EQ(call->gone.code(), absl::StatusCode::kUnavailable);
  exchange->Reply({.status = 200, .body = "late"});
  EXPECT_EQ(ReadAll(client), "");
  close(client);
}

TEST_F(HttpTransportTest, ALargeReplyFollowsItsHeadAndTheNextReplyFollowsIt) {
  Open();
  const int client = ConnectTo(transport_->Port());
  SendAll(client, std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n") + kGet);
  const std::string body(1 << 20, 'x');
  Next()->Reply({.status = 200, .body = body});
  std::string received;
  std::thread reader([&] { received = ReadAll(client); });
  Next()->Reply({.status = 200, .body = "next"});
  reader.join();
  EXPECT_THAT(received, HasSubstr(StrCat("Content-Length: 1048576\r\n\r\n", body, "HTTP/1.1 200")));
  EXPECT_THAT(received, EndsWith("\r\n\r\nnext"));
  close(client);
}

TEST_F(HttpTransportTest, OneConnectionTooManyIsAnsweredWith503) {
  Open({.limits = {.max_connections = 1}});
  const int first = ConnectTo(transport_->Port());
  SendAll(first, kGet);
  const auto exchange = Next();
  const int second = ConnectTo(transport_->Port());
  EXPECT_THAT(ReadAll(second), HasSubstr("--max-connections"));
  exchange->Reply({.status = 200, .body = "still here"});
  EXPECT_THAT(ReadAll(first), HasSubstr("still here"));
  close(first);
  close(second);
}

TEST_F(HttpTransportTest, BodiesThatAreTooMuchTogetherAreRefused) {
  Open({.max_total_body_bytes = 100'000});
  const int client = ConnectTo(transport_->Port());
  SendAll(client, "POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + std::string(200'000, 'x'));
  EXPECT_THAT(ReadAll(client), HasSubstr("503 Service Unavailable"));
  close(client);
}

TEST_F(HttpTransportTest, BodiesOfOneAddressLeaveHalfToTheOthers) {
  Open({.limits = {.max_connections = 8, .max_connections_per_address = 4},
        .max_total_body_bytes = 100'000});
  const int client = ConnectTo(transport_->Port());
  SendAll(client, "POST / HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + std::string(90'000, 'x'));
  EXPECT_THAT(ReadAll(client), HasSubstr("429 Too Many Requests"));
  close(client);
}

TEST_F(HttpTransportTest, BodiesThatDoNotComeAreAnsweredWith408) {
  Open({.body_timeout = milliseconds(100)});
  const int client = ConnectTo(transport_->Port());
  SendAll(client, "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nx");
  EXPECT_THAT(ReadAll(client), HasSubstr("408 Request Timeout"));
  close(client);
  // Not above: a client that stalls before its first byte is idle, too.
  Open({.idle_timeout = milliseconds(100)});
  const int idle = ConnectTo(transport_->Port());
  EXPECT_EQ(ReadAll(idle), "");
  close(idle);
}

TEST(JsonTextTest, ReadsStrictly) {
  EXPECT_TRUE(ParseJson(R"({"a": [1, -2.5, "\u00e9\ud83d\ude42", null, true]})").ok());
  EXPECT_EQ(ParseJson(std::string_view("{}\0{", 4)).status().message(),
            "the body is not JSON at byte 3: it is a NUL");
  for (const char* text : {"", "{", "[1,]", "NaN", "[Infinity]", "1e999", "\"\\ud800\"", "\"\xff\"",
                           R"({"a":1,"a":2})", "01", "'a'", "{} {}", "// note\n{}"}) {
    const auto parsed = ParseJson(text);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("the body ")) << text;
  }
  const std::string deep(size_t{kMaxJsonDepth}, '['), shallow_end(size_t{kMaxJsonDepth}, ']');
  EXPECT_TRUE(ParseJson(deep + shallow_end).ok());
  EXPECT_THAT(std::string(ParseJson("[" + deep).status().message()), HasSubstr("nests deeper"));
}

TEST(JsonTextTest, AValueKeepsTheOrderOfItsKeys) {
  const std::string text = R"({"b":[{"s":{"no":1}}],"x":{"y":{},"s":{"z":1.5,"a":[],"m":[1,-2,)"
                           R"({"k":null}],"\u00e9":"q\"\n","t":true,"e":{}},"after":{"s":1}}})";
  ASSERT_TRUE(ParseJson(text).ok());
  const std::vector<std::string> path = {"x", "s"};
  EXPECT_EQ(JsonAt(text, path),
            "{\"z\":1.5,\"a\":[],\"m\":[1,-2,{\"k\":null}],\"\u00e9\":\"q\\\"\\n\",\"t\":true,"
            "\"e\":{}}");
}

TEST(JsonTextTest, AValueIsFoundInLists) {
  const std::string text = R"({"no":[[7]],"t":["s",{"b":[0]},[1,[2],{"z":3,"a":[4]},"x"],5]})";
  const auto at = [&text](const std::vector<std::string>& path) { return JsonAt(text, path); };
  EXPECT_EQ(at({"t", "0"}), R"("s")");
  EXPECT_EQ(at({"t", "1"}), R"({"b":[0]})");
  EXPECT_EQ(at({"t", "1", "b", "0"}), "0");
  EXPECT_EQ(at({"t", "2", "2"}), R"({"z":3,"a":[4]})");
  EXPECT_EQ(at({"t", "2", "2", "a", "0"}), "4");
  EXPECT_EQ(at({"t", "2", "1"}), "[2]");
  EXPECT_EQ(at({"t", "3"}), "5");
  EXPECT_EQ(JsonAt(R"([{"a":1},{"a":2}])", std::vector<std::string>{"1", "a"}), "2");
}

// An ordered tree of this body is built in a time that grows with the square of its keys.
TEST(JsonTextTest, AValueIsFoundBesideManyKeys) {
  std::string text = "{\"metadata\":{";
  for (int i = 0; i < 200'000; ++i) text += StrCat("\"", i, "\":0,");
  text += R"("x":0},"guided_json":{"b":1,"a":2}})";
  const std::vector<std::string> path = {"guided_json"};
  EXPECT_EQ(JsonAt(text, path), R"({"b":1,"a":2})");
}

TEST(JsonTextTest, WritesWhatReadsBack) {
  for (const std::string text : {"", "plain", "a\"b\\c\n\r\t\x01\x1f", "\u00e9\U0001F642"}) {
    EXPECT_EQ(ParseJson(JsonString(text)).value(), text);
  }
  EXPECT_EQ(ParseJson(JsonString("a\xffz")).value(), "a\uFFFDz");
  std::string numbers;
  AppendJsonNumber(-0.1f, &numbers);
  numbers += ' ';
  AppendJsonNumber(1.0 / 0.0, &numbers);
  EXPECT_EQ(numbers, "-0.1 null");
}

}  // namespace
}  // namespace lssar

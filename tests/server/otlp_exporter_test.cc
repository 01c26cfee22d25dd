#include "server/ops/otlp_exporter.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "server/net/file_descriptor.h"
#include "tests/server/poll_until.h"
#include "tests/server/tcp_client.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr auto kLong = std::chrono::hours(1);

std::string Answer(std::string_view status, std::string_view body = "{}",
                   std::string_view headers = "") {
  return StrCat("HTTP/1.1 ", status, "\r\n", headers, "Content-Length: ", body.size(), "\r\n\r\n",
                body);
}

// Takes requests on a port of its own, one after another.
class Collector {
 public:
  // `answers`: in order, the last one again and again. Empty: it says nothing and keeps the
  // connection.
  explicit Collector(std::vector<std::string> answers) : answers_(std::move(answers)) {
    EXPECT_EQ(listen(listener_, 8), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Collector() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (const int silent : silent_) close(silent);
    close(listener_);
  }

  int Port() const { return port_; }
  std::vector<std::string> Requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  json Body(size_t request) {
    const std::string text = Requests().at(request);
    return json::parse(text.substr(text.find("\r\n\r\n") + 4));
  }

 private:
  void Run() {
    for (int client = -1; (client = accept(listener_, nullptr, nullptr)) >= 0;) {
      std::string request;
      size_t end = request.npos;
      while ((end = request.find("\r\n\r\n")) == request.npos && Read(client, &request)) {
      }
      const size_t length = request.find("Content-Length: ");
      const size_t num_bytes = length == request.npos ? 0 : std::stoul(request.substr(length + 16));
      while (request.size() < end + 4 + num_bytes && Read(client, &request)) {
      }
      std::string answer;
      {
        const std::lock_guard lock(mutex_);
        answer = answers_.at(std::min(requests_.size(), answers_.size() - 1));
        requests_.push_back(std::move(request));
      }
      if (answer.empty()) {
        silent_.push_back(client);
        continue;
      }
      send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
      close(client);
    }
  }
  static bool Read(int client, std::string* into) {
    char buffer[4096];
    const ssize_t num_read = recv(client, buffer, sizeof(buffer), 0);
    if (num_read > 0) into->append(buffer, size_t(num_read));
    return num_read > 0;
  }

  const std::vector<std::string> answers_;
  const int listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int port_ = BindToAFreePort(listener_);
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::vector<int> silent_;  // the thread's own
  std::thread thread_;
};

OtlpOptions OptionsFor(int port) {
  return {.endpoint = {.host = "127.0.0.1", .port = port, .path = "/v1/traces"},
          .log_level = "off",
          .interval = std::chrono::milliseconds(1),
          .timeout = std::chrono::minutes(1),
          .first_retry = std::chrono::milliseconds(1),
          .longest_retry = std::chrono::milliseconds(1)};
}

std::vector<Span> Spans(int count) {
  std::vector<Span> spans;
  for (int i = 0; i < count; ++i) {
    spans.push_back({.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
                     .span_id = StrCat("00f067aa0ba902b", i),
                     .parent_id = {},
                     .name = StrCat("span ", i),
                     .start = Span::Time(std::chrono::seconds(1'700'000'000)),
                     .end = Span::Time(std::chrono::seconds(1'700'000'001))});
  }
  return spans;
}

const json& SpansOf(const json& request) {
  return request.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans");
}

TEST(OtlpJsonTest, IsOtlpsOwnForm) {
  const Span span = {.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736",
                     .span_id = "00f067aa0ba902b7",
                     .parent_id = "b7ad6b7169203331",
                     .name = "decode",
                     .kind = Span::Kind::kServer,
                     .has_remote_parent = true,
                     .start = Span::Time(std::chrono::nanoseconds(1'700'000'000'123'456'789)),
                     .end = Span::Time(std::chrono::nanoseconds(1'700'000'001'000'000'000)),
                     .attributes = {{"number", int64_t{1} << 53},
                                    {"text", "a\xff"},
                                    {"list", std::vector<std::string>{"x"}}},
                     .is_error = true,
                     .error = "why"};
  const json request = json::parse(OtlpJson({&span, 1}));
  EXPECT_EQ(SpansOf(request).at(0), json::parse(R"({
      "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7",
      "parentSpanId": "b7ad6b7169203331", "flags": 769, "name": "decode", "kind": 2,
      "startTimeUnixNano": "1700000000123456789", "endTimeUnixNano": "1700000001000000000",
      "attributes": [{"key": "number", "value": {"intValue": "9007199254740992"}},
                     {"key": "text", "value": {"stringValue": "a\ufffd"}},
                     {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "x"}]}}}],
      "status": {"code": 2, "message": "why"}})"));
  const json& resource = request.at("resourceSpans").at(0);
  EXPECT_EQ(resource.at("resource").at("attributes").at(0),
            json::parse(R"({"key": "service.name", "value": {"stringValue": "lssar"}})"));
  EXPECT_EQ(resource.at("schemaUrl"), kOtlpSchemaUrl);
}

TEST(OtlpEndpointTest, UrlsOfCollectors) {
  struct Case {
    const char* url;
    bool has_tls;
    const char* host;
    int port;
    const char* path;
  };
  for (const Case& c : {Case{"http://127.0.0.1:4318", false, "127.0.0.1", 4318, "/v1/traces"},
                        Case{"http://collector:80/", false, "collector", 80, "/v1/traces"},
                        Case{"https://a.b:443/otlp/v1/traces", true, "a.b", 443, "/otlp/v1/traces"},
                        Case{"http://[::1]:65535/x", false, "::1", 65535, "/x"}}) {
    const auto endpoint = ParseOtlpEndpoint(c.url);
    ASSERT_TRUE(endpoint.ok()) << c.url;
    EXPECT_EQ(endpoint->has_tls, c.has_tls) << c.url;
    EXPECT_EQ(endpoint->host, c.host) << c.url;
    EXPECT_EQ(endpoint->port, c.port) << c.url;
    EXPECT_EQ(endpoint->path, c.path) << c.url;
  }
  for (const char* url :
       {"", "127.0.0.1:4318", "grpc://a:4317", "http://a", "http://:4318", "http://a:0",
        "http://a:65536", "http://a:x", "http://user@a:4318", "http://a:4318/?x", "http://a:4318#x",
        "http://::1:4318", "http://[a]:4318", "http://[::1:4318", "http://a b:4318",
        "http://a:4318/\r\nHost: b", "http://a:4318/\xc3\xa4"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseOtlpEndpoint(url).status())) << url;
  }
}

TEST(OtlpExporterTest, TheCollectorGetsTheSpans) {
  Collector collector({Answer("200 OK")});
  OtlpExporter exporter(OptionsFor(collector.Port()));
  exporter.Export(Spans(2));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 2);
  EXPECT_EQ(exporter.Counts().num_dropped, 0);
  ASSERT_THAT(collector.Requests(), SizeIs(1));
  EXPECT_THAT(collector.Requests()[0], StartsWith("POST /v1/traces HTTP/1.1\r\n"));
  EXPECT_THAT(collector.Requests()[0], HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_EQ(SpansOf(collector.Body(0)).at(1).at("name"), "span 1");
}

TEST(OtlpExporterTest, ABatchWaitsForACollectorThatIsBusy) {
  Collector collector({Answer("503 Service Unavailable"), Answer("502 Bad Gateway"),
                       Answer("429 Too Many Requests", "{}", "Retry-After: 0\r\n"),
                       Answer("504 Gateway Timeout"), Answer("200 OK")});
  OtlpExporter exporter(OptionsFor(collector.Port()));
  exporter.Export(Spans(3));
  EXPECT_TRUE(PollUntil([&] { return exporter.Counts().num_exported == 3; }));
  EXPECT_EQ(exporter.Counts().num_dropped, 0);
  ASSERT_THAT(collector.Requests(), SizeIs(5));
  EXPECT_EQ(collector.Body(0), collector.Body(4));
}

TEST(OtlpExporterTest, ABatchThatIsRefusedIsDroppedAndTheNextOneIsNot) {
  Collector collector(
      {Answer("400 Bad Request"), Answer("500 Internal Server Error"), Answer("200 OK")});
  OtlpExporter exporter(OptionsFor(collector.Port()));
  for (int64_t num_dropped : {2, 4}) {
    exporter.Export(Spans(2));
    EXPECT_TRUE(PollUntil([&] { return exporter.Counts().num_dropped == num_dropped; }));
  }
  exporter.Export(Spans(1));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 1);
  EXPECT_EQ(exporter.Counts().num_dropped, 4);
}

TEST(OtlpExporterTest, APartOfABatchMayBeRejected) {
  // More than it was sent is no count.
  Collector collector({Answer("200 OK", R"({"partialSuccess":{"rejectedSpans":"2"}})"),
                       Answer("200 OK", R"({"partialSuccess":{"rejectedSpans":99}})"),
                       Answer("200 OK", "not JSON")});
  OtlpExporter exporter(OptionsFor(collector.Port()));
  exporter.Export(Spans(3));
  EXPECT_TRUE(PollUntil([&] { return exporter.Counts().num_exported == 1; }));
  EXPECT_EQ(exporter.Counts().num_dropped, 2);
  exporter.Export(Spans(3));
  EXPECT_TRUE(PollUntil([&] { return exporter.Counts().num_dropped == 5; }));
  exporter.Export(Spans(3));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 4);
  EXPECT_EQ(exporter.Counts().num_dropped, 5);
}

TEST(OtlpExporterTest, AFullQueueDropsWholeCalls) {
  Collector collector({Answer("200 OK")});
  OtlpOptions options = OptionsFor(collector.Port());
  options.max_queued_spans = 5;
  options.interval = kLong;  // nothing is sent before Stop
  OtlpExporter exporter(options);
  for (int i = 0; i < 4; ++i) exporter.Export(Spans(2));
  EXPECT_EQ(exporter.Counts().num_dropped, 4);
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 4);
  EXPECT_EQ(exporter.Counts().num_dropped, 4);
}

TEST(OtlpExporterTest, AFullBatchDoesNotWait) {
  Collector collector({Answer("200 OK")});
  OtlpOptions options = OptionsFor(collector.Port());
  options.max_batch_spans = 4;
  options.interval = kLong;
  OtlpExporter exporter(options);
  exporter.Export(Spans(3));
  exporter.Export(Spans(2));
  EXPECT_TRUE(PollUntil([&] { return exporter.Counts().num_exported == 4; }));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 5);
}

TEST(OtlpExporterTest, ACollectorThatSaysNothingDelaysNobody) {
  std::optional<Collector> collector(std::vector<std::string>{""});
  OtlpOptions options = OptionsFor(collector->Port());
  options.max_queued_spans = 10;
  OtlpExporter exporter(options);
  exporter.Export(Spans(1));
  ASSERT_TRUE(PollUntil([&] { return collector->Requests().size() == 1; }));
  for (int i = 0; i < 1000; ++i) exporter.Export(Spans(1));
  EXPECT_EQ(exporter.Counts().num_dropped, 990);
  EXPECT_FALSE(exporter.Stop(std::chrono::milliseconds(10)));
  EXPECT_EQ(exporter.Counts().num_dropped, 1001);
  exporter.Export(Spans(1));
  EXPECT_EQ(exporter.Counts().num_dropped, 1002);
  EXPECT_EQ(exporter.Counts().num_exported, 0);
  collector.reset();
  EXPECT_TRUE(exporter.Stop(kLong)) << "no thread is left";
  EXPECT_EQ(exporter.Counts().num_dropped, 1002);
}

TEST(OtlpExporterTest, ABatchThatWaitsIsSentAgainAtTheEnd) {
  Collector collector({Answer("503 Service Unavailable"), Answer("200 OK")});
  OtlpOptions options = OptionsFor(collector.Port());
  options.first_retry = options.longest_retry = kLong;
  OtlpExporter exporter(options);
  exporter.Export(Spans(2));
  ASSERT_TRUE(PollUntil([&] { return collector.Requests().size() == 1; }));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_exported, 2);
}

TEST(OtlpExporterTest, ADeadCollectorDoesNotDelayTheEnd) {
  const int bound = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);  // and does not listen
  OtlpOptions options = OptionsFor(BindToAFreePort(bound));
  options.first_retry = options.longest_retry = kLong;
  OtlpExporter exporter(options);
  exporter.Export(Spans(2));
  exporter.Stop(kLong);
  EXPECT_EQ(exporter.Counts().num_dropped, 2);
  close(bound);
}

// Answers that must neither hang the client nor fill the memory.
TEST(BlockingClientTest, AnswersThatAreTooLongOrBroken) {
  const std::string chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string long_body(5000, 'x');
  for (const std::string& answer :
       {Answer("200 OK", long_body), "HTTP/1.1 200 OK\r\n\r\n" + long_body,
        "HTTP/1.1 200 OK\r\nX: " + long_body, StrCat(chunked, "fff\r\n", long_body),
        // The sizes overflow when two bytes are added.
        StrCat(chunked, "ffffffffffffffff\r\nabc"), StrCat(chunked, "ffffffffffffffea\r\nabc"),
        StrCat(chunked, "5\r\nabcde\r\n")}) {
    Collector collector({answer});
    const auto reply =
        SendRequest({.host = "127.0.0.1", .port = collector.Port(), .max_reply_bytes = 4096},
                    "POST", "/", {}, "x");
    EXPECT_TRUE(absl::IsUnavailable(reply.status())) << answer.substr(0, 100);
  }
  Collector collector({StrCat(chunked, "5\r\nabcde\r\n0\r\n\r\n")});
  const auto reply = SendRequest({.host = "127.0.0.1", .port = collector.Port()}, "GET", "/");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->body, "abcde");
}

TEST(BlockingClient, AnAddressThatDoesNotAnswerHasItsShareOfTheTime) {
  // A listener that accepts nobody: beyond its backlog the system answers no more.
  const FileDescriptor silent(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int silent_port = BindToAFreePort(silent.Get());
  ASSERT_EQ(listen(silent.Get(), 0), 0);
  const FileDescriptor waiting(ConnectTo(silent_port));
  const FileDescriptor open(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int open_port = BindToAFreePort(open.Get());
  ASSERT_EQ(listen(open.Get(), 8), 0);
  std::vector<sockaddr_in> ports(3);
  std::vector<addrinfo> addresses(3);
  for (size_t i = 0; i < ports.size(); ++i) {
    ports[i].sin_family = AF_INET;
    ports[i].sin_port = htons(uint16_t(i < 2 ? silent_port : open_port));
    ports[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addresses[i].ai_family = AF_INET;
    addresses[i].ai_addr = reinterpret_cast<sockaddr*>(&ports[i]);
    addresses[i].ai_addrlen = sizeof(ports[i]);
    if (i > 0) addresses[i - 1].ai_next = &addresses[i];
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto connected = ConnectToAny(addresses.data(), begin + std::chrono::seconds(3));
  EXPECT_TRUE(connected.ok()) << connected.status();
  // Two addresses had a third of the time each.
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1900));
  addresses[1].ai_next = nullptr;
  const auto none = ConnectToAny(addresses.data(),
                                 std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("timed out"));
}

}  // namespace
}  // namespace lssar

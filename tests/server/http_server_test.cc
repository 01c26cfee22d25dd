#include "server/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/check.h"
#include "tests/server/tcp_client.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class HttpServerTest : public testing::Test {
 protected:
  HttpServerTest() {
    auto opened = HttpServer::Open("127.0.0.1:0",
                                   {.metrics = [] { return std::string("lssar_metric 1\n"); },
                                    .check_admin = [this](const std::string&) { return admin_; },
                                    .health = [] { return absl::OkStatus(); },
                                    .readiness = [this] { return readiness_; }});
    LSSAR_CHECK(opened.ok());
    server_ = *std::move(opened);
  }

  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", server_->Port());
    client.set_read_timeout(std::chrono::minutes(1));
    return client;
  }

  // A connection that has said nothing yet.
  int Connect() const { return ConnectTo(server_->Port()); }

  absl::Status admin_;
  absl::Status readiness_;
  std::unique_ptr<HttpServer> server_;
};

bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t num_sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (num_sent <= 0) return false;
    bytes.remove_prefix(size_t(num_sent));
  }
  return true;
}

TEST_F(HttpServerTest, ThePagesSayWhatTheyAreGiven) {
  const auto metrics = Client().Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_EQ(metrics->body, "lssar_metric 1\n");
  EXPECT_EQ(metrics->get_header_value("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  const auto health = Client().Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  EXPECT_EQ(health->body, "ok\n");
  EXPECT_EQ(Client().Get("/readyz")->status, 200);
  readiness_ = absl::UnavailableError("the server is draining");
  const auto readiness = Client().Get("/readyz");
  ASSERT_TRUE(readiness);
  EXPECT_EQ(readiness->status, 503);
  EXPECT_EQ(readiness->body, "the server is draining\n");
}

TEST_F(HttpServerTest, AnythingElseIs404InJson) {
  for (const char* path : {"/", "/metrics/", "/v1/models", "/%00", "/healthz/../metrics"}) {
    const auto reply = Client().Get(path);
    ASSERT_TRUE(reply) << path;
    EXPECT_EQ(reply->status, 404) << path;
    const auto error = nlohmann::json::parse(reply->body).at("error");
    EXPECT_EQ(error.at("code"), 404);
    EXPECT_THAT(error.at("message").get<std::string>(), HasSubstr("there is no GET /"));
  }
  EXPECT_EQ(Client().Post("/metrics", "x", "text/plain")->status, 404);
  EXPECT_EQ(Client().Head("/metrics")->status, 200);
}

TEST_F(HttpServerTest, ARequestWithoutAnEndIsCut) {
  const int client = Connect();
  SendAll(client, "GET /metrics HTTP/1.1\r\n");
  const std::string line = "X-More: " + std::string(1000, 'x') + "\r\n";
  int num_lines = 0;
  while (num_lines < 1'000'000 && SendAll(client, line)) ++num_lines;
  close(client);
  EXPECT_LT(num_lines, 1'000'000);
  EXPECT_EQ(Client().Get("/healthz")->status, 200);
}

TEST_F(HttpServerTest, SlowClientsAreCutAndTheOthersAnswered) {
  std::atomic<int> num_cut = 0;
  std::vector<std::thread> slow;
  for (int i = 0; i < 20; ++i) {  // more than there are threads
    slow.emplace_back([&] {
      const int client = Connect();
      SendAll(client, "GET /metrics HTTP/1.1\r\nX-Slow: ");
      char byte = 0;
      // Never as long without a byte as to be taken for dead.
      while (SendAll(client, "x") && recv(client, &byte, 1, MSG_DONTWAIT) < 0 &&
             (errno == EAGAIN || errno == EWOULDBLOCK)) {
        std::this_thread::sleep_for(milliseconds(50));
      }
      ++num_cut;
      close(client);
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  const auto reply = Client().Get("/healthz");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200);
  for (std::thread& client : slow) client.join();
  EXPECT_EQ(num_cut, 20);
}

TEST_F(HttpServerTest, StopsWhileClientsSayNothing) {
  std::vector<int> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(Connect());
  server_.reset();
  for (const int client : clients) {
    char byte = 0;
    EXPECT_LE(recv(client, &byte, 1, 0), 0);
    close(client);
  }
}

TEST_F(HttpServerTest, APortInUseIsSaidSo) {
  const auto second = HttpServer::Open("127.0.0.1:" + std::to_string(server_->Port()), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("--http-listen"));
}

}  // namespace
}  // namespace lssar

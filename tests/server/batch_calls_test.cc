// Rows of batches beside other calls of the engine.
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "tests/server/poll_until.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using Json = nlohmann::json;

class BatchCallsTest : public testing::Test {
 protected:
  // Starts a batch of /v1/completions. Returns its id.
  std::string Begin(const std::vector<Json>& bodies) {
    std::string form =
        "--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
        "--x\r\nContent-Disposition: form-data; name=file; filename=in\r\n\r\n";
    for (size_t i = 0; i < bodies.size(); ++i) {
      const Json line = {{"custom_id", StrCat(i)},
                         {"method", "POST"},
                         {"url", "/v1/completions"},
                         {"body", bodies[i]}};
      form += line.dump() + "\n";
    }
    const Json file =
        Ask("POST", "/v1/files", form + "\r\n--x--\r\n", "multipart/form-data; boundary=x");
    const Json batch = {{"input_file_id", file["id"]},
                        {"endpoint", "/v1/completions"},
                        {"completion_window", "1h"}};
    return Ask("POST", "/v1/batches", batch.dump())["id"];
  }
  // Waits for the batch's end.
  Json CountsOf(const std::string& id) {
    Json batch;
    EXPECT_TRUE(PollUntil([&] {
      batch = Ask("GET", "/v1/batches/" + id);
      return batch["status"] == "completed";
    })) << batch;
    return batch["request_counts"];
  }
  Json Ask(const std::string& method, const std::string& path, const std::string& body = "",
           const std::string& type = "application/json") {
    const auto reply = SendRequest({.host = "127.0.0.1", .port = server_.GetServer().HttpPort()},
                                   method, path, {{"Content-Type", type}}, body);
    EXPECT_TRUE(reply.ok() && reply->status == 200) << (reply.ok() ? reply->body : "");
    return reply.ok() ? Json::parse(reply->body) : Json();
  }
  int NumRequests() {
    const v1::GetInfoReply info = server_.Describe();
    return int(info.num_running() + info.num_waiting());
  }

  ScratchDirectory directory_;
  TestServer server_{{.max_model_len = 256}, [this](ServerOptions& options) {
                       options.batch_directory = directory_.Path();
                       options.batch_max_bytes = 1 << 20;
                       options.client_limits.max_priority = -1;
                     }};
};

TEST_F(BatchCallsTest, ARowRunsAtTheLowestPriorityWhateverItsBodyAsksFor) {
  const std::string id = Begin({{{"prompt", "a"}, {"max_tokens", 2}},
                                {{"prompt", "b"}, {"max_tokens", 2}, {"priority", 5}}});
  EXPECT_EQ(CountsOf(id), Json({{"total", 2}, {"completed", 2}, {"failed", 0}}));
}

TEST_F(BatchCallsTest, TheRequestsOfARowDoNotHoldUpOtherRows) {
  server_.Hold();
  const std::string id = Begin({{{"prompt", {"a", "b", "c"}}, {"max_tokens", 2}},
                                {{"prompt", {"d", "e"}}, {"max_tokens", 2}}});
  EXPECT_TRUE(PollUntil([this] { return NumRequests() == 5; })) << NumRequests();
  server_.Release();
  EXPECT_EQ(CountsOf(id)["completed"], 2);
}

TEST_F(BatchCallsTest, OneRowGoesOnBesideAnotherCall) {
  server_.Hold();
  grpc::ClientContext context;
  v1::GenerateRequest request = HelloRequest(200);
  request.set_priority(-1);
  const auto running = server_.Stub().Generate(&context, request);
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  const Json row = {{"prompt", "a"}, {"max_tokens", 2}};
  const std::string id = Begin({row, row, row});
  EXPECT_TRUE(PollUntil([this] { return NumRequests() == 2; })) << NumRequests();
  // Time for a second row to begin, if it may. A slow machine can only miss that it did.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(NumRequests(), 2);
  server_.Release();
  while (running->Read(&reply)) {
  }
  EXPECT_TRUE(running->Finish().ok());
  EXPECT_EQ(CountsOf(id)["completed"], 3);
}

}  // namespace
}  // namespace lssar

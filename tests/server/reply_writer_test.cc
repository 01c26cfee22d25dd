#include "server/grpc/reply_writer.h"

#include <arpa/inet.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/net/socket_cork.h"
#include "tests/server/poll_until.h"

namespace lssar {
namespace {

constexpr int kShortMs = 50;  // less than the 200 ms after which the kernel sends by itself

// A TCP connection within this process.
struct Connection {
  Connection() {
    const FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener.Get(), generic, size), 0);
    EXPECT_EQ(listen(listener.Get(), 1), 0);
    EXPECT_EQ(getsockname(listener.Get(), generic, &size), 0);
    client.Reset(socket(AF_INET, SOCK_STREAM, 0));
    EXPECT_EQ(connect(client.Get(), generic, size), 0);
    server = std::make_unique<SocketCork>(FileDescriptor(accept(listener.Get(), nullptr, nullptr)));
  }

  void Write() const { EXPECT_EQ(send(server->Get(), "x", 1, MSG_NOSIGNAL), 1); }
  // Bytes that have arrived within `limit_ms`.
  ssize_t Read(int limit_ms) const {
    pollfd readable = {.fd = client.Get(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, limit_ms) <= 0) return 0;
    char bytes[16];
    return recv(client.Get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  }

  FileDescriptor client;
  std::unique_ptr<SocketCork> server;
};

TEST(SocketCorkTest, HoldsTheWritesOfSeveralCallsBack) {
  const Connection connection;
  connection.server->BeginWrite();
  connection.server->BeginWrite();
  connection.Write();
  connection.Write();
  EXPECT_EQ(connection.Read(kShortMs), 0);
  connection.server->EndWrites();
  EXPECT_EQ(connection.Read(5000), 2) << "both in one packet";
  connection.server->EndWrites();  // of the second call: nothing to do

  connection.server->BeginWrite();  // a single call is not held back
  connection.Write();
  EXPECT_EQ(connection.Read(5000), 1);
  connection.server->EndWrites();
}

// Writes one byte to its connection.
class OneWrite final : public ReplyWriter::Stream {
 public:
  explicit OneWrite(const Connection* connection) : connection_(connection) {}
  void WriteReplies() override {
    if (connection_ != nullptr) connection_->Write();
    ++num_writes;
  }
  SocketCork* Socket() const override {
    return connection_ == nullptr ? nullptr : connection_->server.get();
  }

  std::atomic<int> num_writes = 0;

 private:
  const Connection* const connection_;
};

class ReplyWriterTest : public testing::Test {
 protected:
  ReplyWriterTest() { writer_.Start(); }

  static bool WaitForWrites(const OneWrite& stream, int count) {
    return PollUntil([&] { return stream.num_writes >= count; }) && stream.num_writes == count;
  }

  grpc::ServerBuilder builder_;
  ReplyWriter writer_{builder_.AddCompletionQueue()};
};

TEST_F(ReplyWriterTest, WritesSoonForOtherThreads) {
  const auto stream = std::make_shared<OneWrite>(nullptr);
  for (int count = 1; count <= 100; ++count) {
    writer_.Schedule(stream);
    ASSERT_TRUE(WaitForWrites(*stream, count));
  }
}

TEST_F(ReplyWriterTest, WritesTheRepliesOfAStepTogether) {
  const Connection connection;
  std::vector<std::shared_ptr<OneWrite>> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(std::make_shared<OneWrite>(&connection));
  std::thread engine([&] {
    writer_.Flush();  // from now on this is the engine's thread
    for (const auto& stream : streams) writer_.Schedule(stream);
    EXPECT_EQ(connection.Read(kShortMs), 0) << "the step has not ended";
    writer_.Flush();
  });
  engine.join();
  for (const auto& stream : streams) EXPECT_TRUE(WaitForWrites(*stream, 1));
  EXPECT_EQ(connection.Read(5000), 5) << "in one packet";
}

TEST_F(ReplyWriterTest, EveryStreamIsWrittenFromManyThreads) {
  constexpr int kThreads = 4, kWrites = 2000;
  const auto stream = std::make_shared<OneWrite>(nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, is_engine = i == 0] {
      for (int k = 0; k < kWrites; ++k) {
        writer_.Schedule(stream);
        if (is_engine && k % 16 == 0) writer_.Flush();
      }
      if (is_engine) writer_.Flush();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(WaitForWrites(*stream, kThreads * kWrites));
}

}  // namespace
}  // namespace lssar

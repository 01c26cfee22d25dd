#include "server/grpc/reply_writer.h"

#include <arpa/inet.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/net/socket_cork.h"
#include "tests/server/poll_until.h"

namespace lssar {
namespace {

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
  // Whether the kernel holds back what is written. After 200 ms it sends by itself, so a test
  // cannot tell by what has arrived.
  bool IsCorked() const {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(server->Get(), IPPROTO_TCP, TCP_CORK, &value, &size), 0);
    return value != 0;
  }
  bool HasArrived() const {
    char byte = 0;
    return recv(client.Get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) > 0;
  }
  // Waits for this many bytes.
  void Read(size_t count) const {
    std::string bytes(count, '\0');
    EXPECT_EQ(recv(client.Get(), bytes.data(), count, MSG_WAITALL), ssize_t(count));
  }

  FileDescriptor client;
  std::unique_ptr<SocketCork> server;
};

TEST(SocketCorkTest, HoldsTheWritesOfSeveralCallsBack) {
  const Connection connection;
  connection.server->BeginWrite();
  connection.server->BeginWrite();
  EXPECT_TRUE(connection.IsCorked());
  connection.Write();
  connection.Write();
  connection.server->EndWrites();
  EXPECT_FALSE(connection.IsCorked());
  connection.Read(2);
  connection.server->EndWrites();  // of the second call: nothing to do

  connection.server->BeginWrite();  // a single call is not held back
  EXPECT_FALSE(connection.IsCorked());
  connection.Write();
  connection.Read(1);
  connection.server->EndWrites();
}

// Writes one byte to its connection.
class OneWrite final : public ReplyWriter::Stream {
 public:
  explicit OneWrite(const Connection* connection) : connection_(connection) {}
  void WriteReplies() override {
    if (connection_ != nullptr) {
      is_corked = connection_->IsCorked();
      connection_->Write();
    }
    ++num_writes;
  }
  SocketCork* Socket() const override {
    return connection_ == nullptr ? nullptr : connection_->server.get();
  }

  std::atomic<int> num_writes = 0;
  std::atomic<bool> is_corked = false;  // in the last write

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
    // Time for a write, if there is one. A slow machine can only miss that there is.
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(connection.HasArrived()) << "the step has not ended";
    writer_.Flush();
  });
  engine.join();
  for (const auto& stream : streams) {
    EXPECT_TRUE(WaitForWrites(*stream, 1));
    EXPECT_TRUE(stream->is_corked);
  }
  connection.Read(5);
  EXPECT_TRUE(PollUntil([&] { return !connection.IsCorked(); }));
  writer_.Stop();  // the first of five streams ends the cork: the others still use the connection
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

#include "server/api/reply_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace lssar {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Queue = ReplyQueue<std::string>;

Clock::time_point now;

class ReplyQueueTest : public testing::Test {
 protected:
  ReplyQueueTest() { now = Clock::time_point(seconds(1000)); }

  void Push(const std::string& text) {
    queue_.Push(text, std::ssize(text), [](auto&, auto&) { return nullptr; });
  }
  // True if HasSpace has become true.
  bool WriteNext() {
    const auto entry = queue_.Take();
    return entry && queue_.Written(entry->num_bytes);
  }
  void ExpectDeadlineIn(seconds time) { EXPECT_EQ(queue_.Deadline(), now + time); }

  // 10 bytes, and 60 seconds in which a client must read something.
  Queue queue_{{.buffer_bytes = 10, .client_timeout = absl::Seconds(60)}, [] { return now; }};
};

TEST_F(ReplyQueueTest, KeepsTheOrder) {
  Push("a");
  Push("b");
  EXPECT_EQ(queue_.Take()->reply, "a");
  EXPECT_EQ(queue_.Take()->reply, "b");
  EXPECT_FALSE(queue_.Take());
}

TEST_F(ReplyQueueTest, HasSpaceAgainWhenHalfIsWritten) {
  Push("0123456789");
  EXPECT_TRUE(queue_.HasSpace()) << "the bound itself";
  Push("x");
  EXPECT_FALSE(queue_.HasSpace());
  Push("last of the step");  // a producer that is told so adds no more
  const int64_t num_bytes = queue_.NumBytes();
  queue_.Take();
  EXPECT_FALSE(queue_.Written(num_bytes - 6));
  EXPECT_TRUE(queue_.Written(1)) << "reported once";
  EXPECT_TRUE(queue_.HasSpace());
  EXPECT_FALSE(queue_.Written(1));
}

TEST_F(ReplyQueueTest, MergesIntoTheReplyThatTheMergerNames) {
  Push("a");
  queue_.Push("b", 1, [](auto& entries, std::string& reply) {
    entries.back().reply += reply;
    return &entries.back();
  });
  const auto entry = queue_.Take();
  EXPECT_EQ(entry->reply, "ab");
  EXPECT_EQ(entry->num_bytes, 2);
}

TEST_F(ReplyQueueTest, TheFirstEndCountsAndNothingFollows) {
  EXPECT_TRUE(queue_.End(absl::OkStatus()));
  EXPECT_FALSE(queue_.End(absl::InternalError("late")));
  EXPECT_TRUE(queue_.Ended()->ok());
  Push("late");
  EXPECT_FALSE(queue_.Take());
}

TEST_F(ReplyQueueTest, AClientIsWaitedForOnlyWhileTheBufferIsFull) {
  Push("0123456789");
  EXPECT_FALSE(queue_.Deadline()) << "the producer does not wait";
  Push("x");
  ExpectDeadlineIn(seconds(60));
  now += seconds(59);
  EXPECT_TRUE(queue_.CheckClient().ok());
  queue_.Take();
  queue_.Written(1);  // it reads, so it has another minute
  ExpectDeadlineIn(seconds(60));
  now += seconds(60);
  const absl::Status status = queue_.CheckClient();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("the client has read nothing for 1m (--slow-client-timeout) while 10 bytes"));
  queue_.Written(9);
  EXPECT_TRUE(queue_.HasSpace());
  EXPECT_FALSE(queue_.Deadline());
  EXPECT_TRUE(queue_.CheckClient().ok());
}

TEST_F(ReplyQueueTest, AClientIsWaitedForFromTheEndOn) {
  Push("abc");
  now += seconds(500);
  queue_.End(absl::OkStatus());
  ExpectDeadlineIn(seconds(60));
  WriteNext();
  EXPECT_FALSE(queue_.Deadline()) << "all is written";
}

TEST_F(ReplyQueueTest, AClientThatTricklesALargeRestIsTooSlow) {
  Push(std::string(25, 'x'));
  queue_.End(absl::OkStatus());
  queue_.Take();
  for (int i = 0; i < 5; ++i) {  // 25 bytes have three minutes
    now += seconds(35);
    EXPECT_TRUE(queue_.CheckClient().ok());
    queue_.Written(1);
  }
  now += seconds(5);
  EXPECT_THAT(std::string(queue_.CheckClient().message()), HasSubstr("too slowly"));
}

// A stream that is read at a byte a minute would keep its place in the engine for hours.
TEST_F(ReplyQueueTest, AClientThatTricklesAStreamIsTooSlow) {
  Push(std::string(15, 'x'));  // two minutes for half of the buffer to be free
  queue_.Take();
  now += seconds(59);
  queue_.Written(1);
  now += seconds(59);
  EXPECT_TRUE(queue_.CheckClient().ok());
  queue_.Written(1);
  ExpectDeadlineIn(seconds(2));
  now += seconds(2);
  EXPECT_THAT(std::string(queue_.CheckClient().message()), HasSubstr("too slowly"));
}

TEST_F(ReplyQueueTest, AClientThatReadsABufferInTimeMayReadForEver) {
  for (int i = 0; i < 100; ++i) {
    Push(std::string(12, 'x'));
    now += seconds(59);
    EXPECT_TRUE(queue_.CheckClient().ok());
    EXPECT_TRUE(WriteNext());
    EXPECT_FALSE(queue_.Deadline());
  }
  Push(std::string(12, 'x'));
  queue_.End(absl::OkStatus());
  now += seconds(59);
  queue_.Take();
  queue_.Written(11);
  now += seconds(59);
  EXPECT_TRUE(queue_.CheckClient().ok());
  now += seconds(2);
  EXPECT_FALSE(queue_.CheckClient().ok()) << "the rest has two minutes from its end on";
}

TEST_F(ReplyQueueTest, WithoutATimeoutNoClientIsTooSlow) {
  Queue queue({.buffer_bytes = 1, .client_timeout = absl::ZeroDuration()}, [] { return now; });
  queue.Push("abc", 3, [](auto&, auto&) { return nullptr; });
  queue.End(absl::OkStatus());
  EXPECT_FALSE(queue.Deadline());
  now += std::chrono::hours(24);
  EXPECT_TRUE(queue.CheckClient().ok());
}

TEST_F(ReplyQueueTest, AnAbortDropsWhatWaitsAndIsTheEnd) {
  Push("0123456789");
  Push("abc");
  const auto writing = queue_.Take();
  queue_.Abort(absl::AbortedError("slow"), seconds(5));
  EXPECT_FALSE(queue_.Take());
  EXPECT_EQ(queue_.NumBytes(), writing->num_bytes);
  ExpectDeadlineIn(seconds(5));
  Push("late");
  EXPECT_FALSE(queue_.Take());
  queue_.End(absl::OkStatus());
  EXPECT_EQ(queue_.Ended()->message(), "slow");
}

TEST_F(ReplyQueueTest, CloseDropsWhatWaits) {
  Push("abc");
  queue_.Close();
  Push("late");
  EXPECT_FALSE(queue_.Take());
  EXPECT_EQ(queue_.NumBytes(), 0);
}

}  // namespace
}  // namespace lssar

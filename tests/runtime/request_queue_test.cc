#include "runtime/request_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace lssar {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr Clock::time_point kStart{seconds(1000)};

std::unique_ptr<SequenceGroup> Make(const std::string& id, Clock::time_point at, int priority = 0,
                                    int num_tokens = 1) {
  auto group = std::make_unique<SequenceGroup>();
  group->request = {.id = id,
                    .prompt = std::vector<int32_t>(size_t(num_tokens), 5),
                    .params = GenerateParams{.max_tokens = 1},
                    .priority = priority};
  group->cancelled = std::make_shared<std::atomic<bool>>(false);
  group->arrival_time = at;
  return group;
}

std::vector<std::string> PopAll(RequestQueue* queue) {
  std::vector<std::string> ids;
  while (const SequenceGroup* const first = queue->GetFirst("")) {
    ids.push_back(queue->Pop(*first)->request.id);
  }
  return ids;
}

TEST(RequestQueue, EqualPrioritiesRunInOrderOfArrival) {
  RequestQueue queue(10, 100);
  for (const char* id : {"a", "b", "c"}) ASSERT_EQ(queue.Push(Make(id, kStart)), absl::OkStatus());
  EXPECT_THAT(PopAll(&queue), ElementsAre("a", "b", "c"));
}

TEST(RequestQueue, HigherPriorityRunsFirstUntilWaitingOutweighsIt) {
  RequestQueue queue(10, 100);
  ASSERT_EQ(queue.Push(Make("waits", kStart)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("low", kStart, -10)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("passes", kStart + seconds(4), 1)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("arrives too late", kStart + seconds(6), 1)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("high", kStart + seconds(99), 10)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("even the highest", kStart + seconds(101), 10)), absl::OkStatus());
  EXPECT_THAT(PopAll(&queue),
              ElementsAre("passes", "waits", "arrives too late", "high", "low", "even the highest"))
      << "one level of priority is worth 5 s of waiting, all levels 100 s";
}

TEST(RequestQueue, IsBoundedByRequests) {
  RequestQueue queue(2, 100);
  ASSERT_EQ(queue.Push(Make("a", kStart)), absl::OkStatus());
  ASSERT_EQ(queue.Push(Make("b", kStart)), absl::OkStatus());
  const absl::Status full = queue.Push(Make("c", kStart, 10));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("2 requests wait (max_queued_requests = 2)"));
}

TEST(RequestQueue, IsBoundedByPromptTokens) {
  RequestQueue queue(10, 100);
  ASSERT_EQ(queue.Push(Make("larger than all", kStart, 0, 500)), absl::OkStatus())
      << "an empty queue takes any request";
  EXPECT_EQ(queue.CurrentLoad().num_tokens, 500);
  EXPECT_EQ(queue.Push(Make("b", kStart)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(PopAll(&queue), ElementsAre("larger than all"));
  EXPECT_EQ(queue.CurrentLoad().num_tokens, 0);

  ASSERT_EQ(queue.Push(Make("c", kStart, 0, 60)), absl::OkStatus());
  const absl::Status full = queue.Push(Make("d", kStart, 0, 41));
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("60 queued prompt tokens + 41 of this request = 101 (max_queued_tokens = "
                        "100)"));
  EXPECT_EQ(queue.Push(Make("e", kStart, 0, 40)), absl::OkStatus());
}

TEST(RequestQueue, AScoreCountsWithItsLongestContinuation) {
  RequestQueue queue(10, 1000);
  auto score = Make("a", kStart, 0, 10);
  score->request.params = ScoreParams{.continuations = {{1, 2, 3}, {4}}};
  ASSERT_EQ(queue.Push(std::move(score)), absl::OkStatus());
  EXPECT_EQ(queue.CurrentLoad().num_tokens, 13);
  EXPECT_THAT(PopAll(&queue), ElementsAre("a"));
  EXPECT_EQ(queue.CurrentLoad().num_tokens, 0);
}

TEST(RequestQueue, AbortedRequestsAreRemovedWithTheirTokens) {
  RequestQueue queue(10, 100);
  auto late = Make("late", kStart, 0, 7);
  late->request.deadline = kStart + seconds(3);
  ASSERT_EQ(queue.Push(Make("stays", kStart, 0, 5)), absl::OkStatus());
  ASSERT_EQ(queue.Push(std::move(late)), absl::OkStatus());
  EXPECT_EQ(queue.NextDeadline(), kStart + seconds(3));
  std::vector<std::unique_ptr<SequenceGroup>> aborted;
  queue.TakeAborted(kStart + seconds(3), &aborted);
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_EQ(aborted[0]->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(queue.CurrentLoad().num_tokens, 5);
  EXPECT_EQ(queue.NextDeadline(), Clock::time_point::max());
}

TEST(RequestQueue, WatchesForRequestsOfOtherTenants) {
  RequestQueue queue(10, 100);
  const auto push = [&](const std::string& tenant) {
    auto group = Make(tenant, kStart);
    group->tenant = tenant;
    ASSERT_EQ(queue.Push(std::move(group)), absl::OkStatus());
  };
  const std::atomic<bool>* const others_came = queue.WatchForOthers("a");
  EXPECT_FALSE(*others_came);
  push("a");
  EXPECT_FALSE(*others_came);
  push("b");
  EXPECT_TRUE(*others_came);
  EXPECT_TRUE(*queue.WatchForOthers("a")) << "one waits already";
  queue.Pop(*queue.GetFirst("b"));
  EXPECT_FALSE(*queue.WatchForOthers("a"));
  EXPECT_TRUE(*queue.WatchForOthers("b"));
}

TEST(RequestQueue, AWakeBeforeTheSleepIsNotLost) {
  RequestQueue queue(10, 100);
  queue.Wake();
  EXPECT_TRUE(queue.WaitForWork(Clock::time_point::max()));
  std::thread waker([&] { queue.Wake(); });
  EXPECT_TRUE(queue.WaitForWork(Clock::time_point::max()));
  waker.join();
  EXPECT_TRUE(queue.WaitForWork(Clock::now() + std::chrono::milliseconds(1))) << "a deadline";
  queue.Stop();
  EXPECT_FALSE(queue.WaitForWork(Clock::time_point::max()));
}

}  // namespace
}  // namespace lssar

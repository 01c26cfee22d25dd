#include "server/api/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/quote.h"
#include "base/utf8.h"
#include "tests/server/no_more_threads.h"
#include "tests/server/poll_until.h"
#include "tests/server/resident_memory.h"

namespace lssar {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kLarge = int64_t{1} << 20;

TEST(WorkerPoolTest, LargeJobsLeaveAThreadToSmallOnes) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_large = 0;
  WorkerPool pool({.num_threads = 3});
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(pool.Submit("a", kLarge,
                            [&, released] {
                              ++num_large;
                              released.wait();
                            })
                    .ok());
  }
  // All of these run while two large jobs hold their threads and six wait.
  std::atomic<int> num_small = 0;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.Submit("a", 10, [&] { ++num_small; }).ok());
  while (num_small < 100) std::this_thread::yield();
  EXPECT_LE(num_large, 2);
  release.set_value();
  while (num_large < 8) std::this_thread::yield();
}

// On a machine of many cores the memory of parsing does not grow with them.
TEST(WorkerPoolTest, LargeJobsThatRunTogetherHaveABoundOfBytes) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_large = 0, num_small = 0;
  WorkerPool pool({.num_threads = 8, .max_running_bytes = 3 * kLarge});
  const auto block = [&, released] {
    ++num_large;
    released.wait();
  };
  // The first is larger than the bound, and runs alone. The third waits for the second, although
  // threads are free.
  ASSERT_TRUE(pool.Submit("a", 4 * kLarge, [&] { ++num_large; }).ok());
  ASSERT_TRUE(pool.Submit("a", 2 * kLarge, block).ok());
  ASSERT_TRUE(pool.Submit("a", 2 * kLarge, block).ok());
  while (num_large < 2) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.Submit("a", 10, [&] { ++num_small; }).ok());
  while (num_small < 100) std::this_thread::yield();
  EXPECT_EQ(num_large, 2);
  release.set_value();
  while (num_large < 3) std::this_thread::yield();
}

TEST(WorkerPoolTest, WhatLargeJobsHaveFreedGoesBackToTheSystem) {
  // As a parsed request has many small objects; those that stay keep glibc from returning the rest.
  struct Block {
    std::vector<char> freed = std::vector<char>(60'000, 'x');
    std::unique_ptr<int> kept = std::make_unique<int>(1);
  };
  std::vector<std::unique_ptr<int>> kept;
  kept.reserve(4000);
  const int64_t before = ResidentMib();
  int64_t during = 0;
  {
    WorkerPool pool({.num_threads = 2});
    const auto run = [&] {
      std::vector<Block> blocks(2000);
      for (Block& block : blocks) kept.push_back(std::move(block.kept));
      during = ResidentMib();
    };
    ASSERT_TRUE(pool.Submit("a", int64_t{16} << 20, run).ok());
  }
  EXPECT_GT(during, before + 100);
  if (!LSSAR_SANITIZED) {
    EXPECT_LT(ResidentMib(), before + 50);
  }
}

TEST(WorkerPoolTest, AFullQueueRefusesAndRecovers) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_running = 0, num_done = 0;
  WorkerPool pool({.num_threads = 2, .max_jobs = 4, .max_bytes = 1000});
  const auto block = [&, released] {
    ++num_running;
    released.wait();
    ++num_done;
  };
  ASSERT_TRUE(pool.Submit("a", 100, block).ok());
  ASSERT_TRUE(pool.Submit("a", 100, block).ok());
  while (num_running < 2) std::this_thread::yield();
  const absl::Status too_large = pool.Submit("a", 801, block);
  EXPECT_TRUE(absl::IsResourceExhausted(too_large));
  EXPECT_THAT(std::string(too_large.message()), HasSubstr("limit of 1000"));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pool.Submit("a", 0, block).ok());
  const absl::Status too_many = pool.Submit("a", 0, block);
  EXPECT_TRUE(absl::IsResourceExhausted(too_many));
  EXPECT_THAT(std::string(too_many.message()),
              HasSubstr("4 requests to parse, 4 of this client; the limit is 4"));
  release.set_value();
  while (num_done < 6) std::this_thread::yield();
  EXPECT_TRUE(pool.Submit("a", 0, block).ok());
}

// The order in which one thread runs jobs. A letter is a job's tenant, a capital of a large job.
std::string OrderOf(const std::string& jobs) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_blocked = 0;
  std::mutex mutex;
  std::string order;
  std::promise<void> end;
  const std::shared_future<void> ended = end.get_future().share();
  {
    WorkerPool pool({.num_threads = 2});
    // One thread stays busy, so that the other runs all that follows in order.
    const auto block = [&](std::shared_future<void> until) {
      return [&num_blocked, until] {
        ++num_blocked;
        until.wait();
      };
    };
    EXPECT_TRUE(pool.Submit("a", 1, block(ended)).ok());
    EXPECT_TRUE(pool.Submit("a", 1, block(released)).ok());
    while (num_blocked < 2) std::this_thread::yield();
    for (const char job : jobs) {
      const auto run = [&, job] {
        const std::lock_guard lock(mutex);
        order += job;
        if (order.size() == jobs.size()) end.set_value();
      };
      EXPECT_TRUE(pool.Submit(std::string(1, job), job < 'a' ? kLarge : 1, run).ok());
    }
    release.set_value();
  }
  return order;
}

// A client with thousands of calls makes the others wait for one job of its own at a time.
TEST(WorkerPoolTest, TenantsTakeTurns) { EXPECT_EQ(OrderOf("aaaaabbbc"), "abcababaa"); }

// However many small jobs there are, a large one waits for one of them.
TEST(WorkerPoolTest, LargeAndSmallJobsTakeTurns) { EXPECT_EQ(OrderOf("aaaaaLL"), "LaLaaaa"); }

TEST(WorkerPoolTest, AFullQueueTakesTheShareOfOthers) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_running = 0;
  WorkerPool pool({.num_threads = 2, .max_jobs = 4, .max_bytes = 1000});
  const auto block = [&, released] {
    ++num_running;
    released.wait();
  };
  ASSERT_TRUE(pool.Submit("a", 0, block).ok());
  ASSERT_TRUE(pool.Submit("a", 0, block).ok());
  while (num_running < 2) std::this_thread::yield();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(pool.Submit("a", 250, block).ok());
  const absl::Status too_many = pool.Submit("a", 0, block);
  EXPECT_TRUE(absl::IsResourceExhausted(too_many));
  EXPECT_THAT(std::string(too_many.message()),
              HasSubstr("4 requests to parse, 4 of this client; the limit is 4"));
  EXPECT_TRUE(pool.Submit("b", 250, block).ok());
  EXPECT_TRUE(pool.Submit("b", 250, block).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Submit("b", 0, block))) << "half of the jobs";
  EXPECT_TRUE(pool.Submit("c", 333, block).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(pool.Submit("c", 1, block))) << "a third of the bytes";
  release.set_value();
}

TEST(WorkerPoolTest, EveryCallThatIsLetInMayWait) {
  EXPECT_EQ(WorkerPool::OptionsFor(1).max_jobs, 1024);
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  WorkerPool pool(WorkerPool::OptionsFor(3000));
  for (int i = 0; i < 3000; ++i) {
    ASSERT_TRUE(pool.Submit("a", 10, [released] { released.wait(); }).ok());
  }
  release.set_value();
}

TEST(WorkerPoolTest, AJobThatWaitsEndsAtItsTimeAndMakesRoom) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_running = 0;
  std::string late, ran;
  {
    WorkerPool pool({.num_threads = 2, .max_jobs = 4, .max_running_bytes = kLarge});
    const auto block = [&, released] {
      ++num_running;
      released.wait();
    };
    ASSERT_TRUE(pool.Submit("a", 1, block).ok());
    ASSERT_TRUE(pool.Submit("a", 1, block).ok());
    while (num_running < 2) std::this_thread::yield();
    // So late that the pool's own clock does not get there.
    const Clock::time_point start = Clock::now() + std::chrono::hours(10);
    std::mutex mutex;
    const auto submit = [&](char name, int64_t num_bytes, std::optional<int> seconds) {
      std::optional<WorkerPool::TimeLimit> limit;
      if (seconds) {
        limit = {.at = start + std::chrono::seconds(*seconds),
                 .on_late = [&late, name] { late += name; }};
      }
      return pool.Submit(
          std::string(1, name), num_bytes,
          [&, name] {
            const std::lock_guard lock(mutex);
            ran += name;
          },
          std::move(limit));
    };
    ASSERT_TRUE(submit('a', 1, 2).ok());
    ASSERT_TRUE(submit('b', 1, 1).ok());
    ASSERT_TRUE(submit('c', 2 * kLarge, 2).ok());
    ASSERT_TRUE(submit('d', 1, std::nullopt).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(submit('d', 1, std::nullopt)));
    pool.EndLateJobs(start);
    EXPECT_EQ(late, "");
    pool.EndLateJobs(start + std::chrono::seconds(1));
    EXPECT_EQ(late, "b");
    pool.EndLateJobs(start + std::chrono::seconds(2));
    EXPECT_THAT(late, AnyOf("bac", "bca"));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(submit('d', 1, 3).ok()) << i;
    release.set_value();
  }
  EXPECT_THAT(late, AnyOf("bac", "bca"));
  EXPECT_EQ(ran, "dddd");
}

TEST(WorkerPoolTest, ThePoolsClockEndsAJobWhileEveryThreadIsBusy) {
  std::promise<void> release, late;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> num_running = 0;
  WorkerPool pool({.num_threads = 2});
  const auto block = [&, released] {
    ++num_running;
    released.wait();
  };
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(pool.Submit("a", 1, block).ok());
  while (num_running < 2) std::this_thread::yield();
  const WorkerPool::TimeLimit limit = {.at = Clock::now(), .on_late = [&] { late.set_value(); }};
  ASSERT_TRUE(pool.Submit(
                      "a", 1, [] { ADD_FAILURE() << "it runs"; }, limit)
                  .ok());
  late.get_future().wait();
  release.set_value();
}

TEST(WorkerPoolTest, TheEndRunsEveryJob) {
  std::atomic<int> num_done = 0;
  {
    WorkerPool pool({.num_threads = 2});
    for (int i = 0; i < 500; ++i) {
      ASSERT_TRUE(pool.Submit("a", i % 3 == 0 ? kLarge : 1, [&] { ++num_done; }).ok());
    }
  }
  EXPECT_EQ(num_done, 500);
}

// While it waits for another client's constraint, say, which may take a minute.
TEST(WorkerPoolTest, ALargeJobThatWaitsHoldsUpNoOther) {
  std::promise<void> end_wait, release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> is_waiting = false, is_over = false;
  std::atomic<int> num_large = 0, num_small = 0;
  WorkerPool pool({.num_threads = 2, .max_running_bytes = kLarge});
  ASSERT_TRUE(pool.Submit("a", 2 * kLarge,
                          [&, released] {
                            {
                              const WorkerPool::Wait wait(&pool);
                              is_waiting = true;
                              end_wait.get_future().wait();
                            }
                            is_over = true;
                            released.wait();
                          })
                  .ok());
  while (!is_waiting) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pool.Submit("b", kLarge, [&] { ++num_large; }).ok());
  EXPECT_TRUE(PollUntil([&] { return num_large == 3; }));
  // Then it is the large one that runs: the next one waits.
  end_wait.set_value();
  while (!is_over) std::this_thread::yield();
  ASSERT_TRUE(pool.Submit("b", kLarge, [&] { ++num_large; }).ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(pool.Submit("b", 10, [&] { ++num_small; }).ok());
  while (num_small < 100) std::this_thread::yield();
  EXPECT_EQ(num_large, 3);
  release.set_value();
  while (num_large < 4) std::this_thread::yield();
}

// A client's request makes a job wait.
TEST(WorkerPoolTest, AJobWaitsWhereTheSystemGivesNoThread) {
  if (LSSAR_SANITIZED) return;
  std::atomic<int> num_done = 0;
  {
    WorkerPool pool({.num_threads = 2});
    {
      const NoMoreThreads none;
      const WorkerPool::Wait wait(&pool);
    }
    ASSERT_TRUE(pool.Submit("a", 1, [&] { ++num_done; }).ok());
  }
  EXPECT_EQ(num_done, 1);
}

TEST(QuoteTest, CutsLongValuesAtCharactersAndShowsNoControlCharacter) {
  EXPECT_EQ(Quote("user"), "\"user\"");
  EXPECT_EQ(Quote("a\xff\n\x1b[31m"), "\"a\uFFFD  [31m\"");
  EXPECT_EQ(Quote(std::string(31 << 20, 'a')),
            "\"" + std::string(64, 'a') + "...\" (32505856 bytes)");
  std::string wide = "a";
  for (int i = 0; i < 1000; ++i) wide += "\u65e5";
  const std::string quoted = Quote(wide);
  EXPECT_FALSE(FindInvalidUtf8(quoted));
  EXPECT_LT(quoted.size(), 100u);
  EXPECT_EQ(Shorten("short", 10), "short");
  EXPECT_EQ(Shorten("a\u00e9\u00e9", 4), "a\u00e9...");
}

}  // namespace
}  // namespace lssar

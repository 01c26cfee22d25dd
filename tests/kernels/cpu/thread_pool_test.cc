#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "kernels/cpu/scratch.h"

namespace lssar {
namespace {

TEST(ThreadPoolTest, RunsEachTaskOnce) {
  for (int num_threads : {1, 2, 3, 8}) {
    ThreadPool pool(num_threads);
    EXPECT_EQ(pool.NumThreads(), num_threads);
    for (int num_tasks : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(static_cast<size_t>(num_tasks));
      pool.ParallelFor(num_tasks, [&](int64_t task, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, num_threads);
        ++runs[static_cast<size_t>(task)];
      });
      EXPECT_EQ(runs, std::vector<int>(static_cast<size_t>(num_tasks), 1));
    }
  }
}

// The caller sees what tasks wrote, and the tasks of the next loop see what the caller wrote. The
// loops start while workers spin, fall asleep and sleep.
TEST(ThreadPoolTest, LoopsAreOrdered) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);
  int64_t expected = 0;
  for (int loop = 0; loop < 3000; ++loop) {
    pool.ParallelFor(64, [&](int64_t task, int) { values[static_cast<size_t>(task)] += loop; });
    expected += loop;
    for (int64_t& value : values) ASSERT_EQ(value, expected);
    if (loop % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ThreadPoolTest, ThreadsShareTheWork) {
  ThreadPool pool(2);
  std::atomic<int> num_inside{0};
  std::set<int> threads;
  std::mutex mutex;
  // Two tasks that wait for each other end only if two threads run them.
  pool.ParallelFor(2, [&](int64_t, int thread) {
    ++num_inside;
    while (num_inside.load() < 2) std::this_thread::yield();
    const std::lock_guard<std::mutex> lock(mutex);
    threads.insert(thread);
  });
  EXPECT_EQ(threads, (std::set<int>{0, 1}));
}

// Every thread starts its own range before any thread is done and steals tasks.
TEST(ThreadPoolTest, EachThreadHasARangeOfAdjacentTasks) {
  ThreadPool pool(4);
  std::atomic<int> num_inside{0};
  std::vector<std::vector<int64_t>> tasks(4);
  pool.ParallelFor(12, [&](int64_t task, int thread) {
    tasks[static_cast<size_t>(thread)].push_back(task);
    ++num_inside;
    while (num_inside.load() < 4) std::this_thread::yield();
  });
  for (size_t thread = 0; thread < 4; ++thread) {
    ASSERT_FALSE(tasks[thread].empty());
    EXPECT_EQ(tasks[thread][0], static_cast<int64_t>(3 * thread));
  }
}

TEST(ThreadPoolTest, UsableCores) {
  EXPECT_GE(ThreadPool::NumUsableCores(), 1);
  EXPECT_LE(ThreadPool::NumUsableCores(), 4096);
}

TEST(ScratchTest, GrowsAndNeverShrinks) {
  Scratch scratch(2);
  float* small = scratch.OfThread<float>(0, 10);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(small) % 64, 0u);
  small[9] = 3;
  EXPECT_EQ(scratch.OfThread<float>(0, 5), small);
  EXPECT_EQ(small[9], 3);
  EXPECT_NE(scratch.OfThread<float>(1, 10), small);
  double* large = scratch.Shared<double>(100000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  large[99999] = 1;
  EXPECT_EQ(scratch.Shared<double>(100000), large);
}

}  // namespace
}  // namespace lssar

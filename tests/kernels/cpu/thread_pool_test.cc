#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/usable_cpus.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

TEST(ThreadPoolTest, RunsEachTaskOnce) {
  for (int num_threads : {1, 2, 3, 8, 16, 33}) {
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

// How often each task ran, and on which thread.
struct Runs {
  explicit Runs(size_t num_tasks) : counts(num_tasks), threads(num_tasks) {}
  void Add(int64_t task, int thread) {
    ++counts[size_t(task)];
    threads[size_t(task)] = thread;
  }
  std::vector<int> counts, threads;
};

// No task is lost or run twice when threads take each other's tasks, far more threads than cores.
TEST(ThreadPoolTest, UnevenTasksAreStolen) {
  for (const int num_threads : {2, 5, 16, 17, 40}) {
    ThreadPool pool(num_threads);
    for (int loop = 0; loop < 20; ++loop) {
      const int64_t num_tasks = 3 * num_threads + loop;
      Runs runs{size_t(num_tasks)};
      pool.ParallelFor(num_tasks, [&](int64_t task, int thread) {
        runs.Add(task, thread);
        // The first thread's tasks take long.
        if (task < 3 && loop % 10 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      });
      ASSERT_EQ(runs.counts, std::vector<int>(size_t(num_tasks), 1)) << num_threads;
    }
  }
}

TEST(ThreadPoolTest, ALongTaskDoesNotKeepTheRestOfItsRange) {
  ThreadPool pool(2);
  Runs runs(64);
  std::atomic<int> num_done{0};
  pool.ParallelFor(64, [&](int64_t task, int thread) {
    runs.Add(task, thread);
    // Task 0 ends when every other task is done: its thread runs none of them.
    if (task == 0) {
      while (num_done.load() < 63) std::this_thread::yield();
    }
    ++num_done;
  });
  EXPECT_EQ(runs.counts, std::vector<int>(64, 1));
}

// More tasks than a share can count: adjacent ones are grouped.
TEST(ThreadPoolTest, ManyTasks) {
  for (const int64_t num_tasks : {65534, 65535, 65536, 200001}) {
    ThreadPool pool(3);
    Runs runs{size_t(num_tasks)};
    pool.ParallelFor(num_tasks, [&](int64_t task, int thread) { runs.Add(task, thread); });
    EXPECT_EQ(runs.counts, std::vector<int>(size_t(num_tasks), 1));
  }
}

TEST(ThreadPoolTest, OwnRangesAreNotStolen) {
  ThreadPool pool(3);
  Runs runs(10);
  pool.ParallelForOwn(10, [&](int64_t task, int thread) {
    runs.Add(task, thread);
    if (task == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  EXPECT_EQ(runs.counts, std::vector<int>(10, 1));
  EXPECT_EQ(runs.threads, (std::vector<int>{0, 0, 0, 1, 1, 1, 2, 2, 2, 2}));
}

// The CPUs of the calling thread.
std::vector<int> CpusInside(ThreadPool& pool) {
  std::vector<int> cpus(size_t(pool.NumThreads()));
  pool.ParallelForOwn(pool.NumThreads(), [&](int64_t, int thread) {
    const std::vector<int> own = UsableCpus();
    cpus[size_t(thread)] = own.size() == 1 ? own[0] : -1;
  });
  return cpus;
}

TEST(ThreadPoolTest, ThreadsStayOnTheirCpus) {
  const std::vector<int> before = UsableCpus();
  ASSERT_FALSE(before.empty());
  const std::vector<int> cpus = {before.back(), before.front()};
  {
    ThreadPool pool(2, cpus);
    EXPECT_EQ(UsableCpus(), before);
    EXPECT_EQ(CpusInside(pool), cpus);
    EXPECT_EQ(UsableCpus(), std::vector<int>{cpus[0]});
    // Another caller: this thread gets its CPUs back.
    std::thread([&] { EXPECT_EQ(CpusInside(pool), cpus); }).join();
    EXPECT_EQ(UsableCpus(), before);
    EXPECT_EQ(CpusInside(pool), cpus);
  }
  EXPECT_EQ(UsableCpus(), before);
}

TEST(UsableCpusTest, Count) {
  EXPECT_GE(NumUsableCpus(), 1);
  EXPECT_LE(NumUsableCpus(), 4096);
}

TEST(UsableCpusTest, Lists) {
  EXPECT_EQ(*ParseCpuList("3"), std::vector<int>{3});
  EXPECT_EQ(*ParseCpuList("4-6,0,9-9"), (std::vector<int>{4, 5, 6, 0, 9}));
  EXPECT_EQ(ParseCpuList("0-1023")->size(), 1024u);
  for (const char* bad :
       {"", ",", "1,", "-1", "1-", "3-1", "1,1", "0-3,2", "1024", "a", "1 ", "0x1", "1-2-3"}) {
    EXPECT_EQ(ParseCpuList(bad).status().message(),
              "it must be a list of CPU numbers and ranges, [0, 1023], each CPU once, such as "
              "0-7,16-23")
        << bad;
  }
  EXPECT_EQ(FormatCpuList({4, 5, 6, 0, 9}), "4-6,0,9");
  EXPECT_EQ(FormatCpuList({}), "");
}

// A file system of our own with the files of cgroups.
class CgroupTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const { root_.Write(path, text); }

  const ScratchDirectory root_;
};

TEST_F(CgroupTest, NoLimit) {
  EXPECT_EQ(CpuQuota(root_.Path()), std::nullopt);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_.Path()), std::nullopt);
}

TEST_F(CgroupTest, TheLeastOfAllLevels) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(CpuQuota(root_.Path()), 4);
  Write("/sys/fs/cgroup/a/cpu.max", "75000 50000\n");
  EXPECT_EQ(CpuQuota(root_.Path()), 1.5);
}

TEST_F(CgroupTest, VersionOne) {
  Write("/proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/a\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_.Path()), std::nullopt);
  Write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(CpuQuota(root_.Path()), 2.5);
}

TEST(UsableCpusTest, Warnings) {
  EXPECT_TRUE(DescribeTooManyThreads(4, 4, std::nullopt).empty());
  EXPECT_TRUE(DescribeTooManyThreads(4, 0, 4.0).empty());
  EXPECT_EQ(DescribeTooManyThreads(5, 4, 4.5),
            (std::vector<std::string>{
                "--threads 5: this process may use 4 CPUs (its affinity mask), so the threads wait "
                "for each other",
                "--threads 5: the cgroup's quota is 4.5 CPUs, so the kernel stops all threads for "
                "a part of each period"}));
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

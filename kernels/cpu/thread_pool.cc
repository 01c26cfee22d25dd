#include "kernels/cpu/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/thread_name.h"
#include "kernels/cpu/usable_cpus.h"

namespace lssar {
namespace {

using std::chrono::microseconds;

// A wake-up takes longer than this, and most gaps between the ops of a step are shorter.
constexpr microseconds kWorkerSpin{40};
// The caller has nothing else to do until the last task is done.
constexpr microseconds kCallerSpin{200};
// More threads than CPUs: the thread that is waited for may need this CPU.
constexpr microseconds kOversubscribedSpin{2};

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while *word is 1. May return early.
void FutexWait(std::atomic<uint32_t>* word) {
  static_assert(sizeof(*word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, 1, nullptr, nullptr, 0);
}

// Wakes the thread that sleeps on the word, if one does.
void FutexWake(std::atomic<uint32_t>* word) {
  if (word->load(std::memory_order_seq_cst) == 0) return;
  if (word->exchange(0, std::memory_order_seq_cst) == 0) return;  // another thread wakes it
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

cpu_set_t OnlyCpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(size_t(cpu), &set);
  return set;
}

uint32_t NumberOf(uint64_t word) { return uint32_t(word >> 32); }
uint32_t FirstOf(uint64_t share) { return uint32_t(share >> 16) & 0xFFFF; }
uint32_t EndOf(uint64_t share) { return uint32_t(share) & 0xFFFF; }

uint64_t PackShare(uint32_t number, uint32_t first, uint32_t end) {
  return uint64_t{number} << 32 | uint64_t{first} << 16 | end;
}

}  // namespace

uint64_t ThreadPool::Pack(const Job& job) {
  static_assert(kMaxThreads < 1 << 15);
  return uint64_t{job.number} << 32 | uint64_t{job.num_units} << 16 | uint64_t{job.steals} << 15 |
         uint64_t(job.num_threads);
}

ThreadPool::Job ThreadPool::Unpack(uint64_t word) {
  return {.number = uint32_t(word >> 32),
          .num_units = uint32_t(word >> 16) & kMaxUnits,
          .num_threads = int(word & 0x7FFF),
          .steals = (word >> 15 & 1) != 0,
          .word = word};
}

// Spins until `ready()` or for `limit`. Returns ready().
template <typename Ready>
bool ThreadPool::SpinUntil(std::chrono::nanoseconds limit, const Ready& ready) const {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

ThreadPool::ThreadPool(int num_threads, std::vector<int> cpus)
    : cpus_(std::move(cpus)),
      is_oversubscribed_(num_threads > NumUsableCpus()),
      shares_(std::make_unique<Share[]>(size_t(num_threads))),
      sleepers_(std::make_unique<Sleeper[]>(size_t(num_threads))),
      groups_(std::make_unique<Group[]>(size_t((num_threads + kGroupThreads - 1) / kGroupThreads))),
      num_groups_((num_threads + kGroupThreads - 1) / kGroupThreads) {
  LSSAR_CHECK(num_threads >= 1 && num_threads <= kMaxThreads);
  LSSAR_CHECK(cpus_.empty() || std::ssize(cpus_) == num_threads);
  workers_.reserve(size_t(num_threads - 1));
  for (int i = 1; i < num_threads; ++i) {
    try {
      workers_.emplace_back([this, i] { WorkerLoop(i); });
    } catch (const std::system_error&) {
      Stop();
      throw;
    }
    if (cpus_.empty()) continue;
    const cpu_set_t cpu = OnlyCpu(cpus_[size_t(i)]);
    pthread_setaffinity_np(workers_.back().native_handle(), sizeof(cpu), &cpu);
  }
}

ThreadPool::~ThreadPool() {
  Stop();
  UnpinCaller();
}

void ThreadPool::Stop() {
  is_stopping_.store(true, std::memory_order_seq_cst);
  for (int i = 1; i < NumThreads(); ++i) FutexWake(&sleepers_[size_t(i)].is_asleep);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t num_tasks, Task task) { Run(num_tasks, task, true); }

void ThreadPool::ParallelForOwn(int64_t num_tasks, Task task) { Run(num_tasks, task, false); }

void ThreadPool::Run(int64_t num_tasks, Task task, bool steals) {
  if (num_tasks <= 0) return;
  if (!cpus_.empty()) PinCaller();
  if (num_tasks == 1 || workers_.empty()) {
    for (int64_t i = 0; i < num_tasks; ++i) task(i, 0);
    return;
  }
  const Job job = Unpack(Pack({.number = ++job_number_,
                               .num_units = uint32_t(std::min<int64_t>(num_tasks, kMaxUnits)),
                               .num_threads = int(std::min<int64_t>(num_tasks, NumThreads())),
                               .steals = steals}));
  task_.store(&task, std::memory_order_relaxed);
  num_tasks_.store(num_tasks, std::memory_order_relaxed);
  num_issued_ += job.num_units;
  // Sequentially consistent with is_asleep: either a worker that is about to sleep sees the job, or
  // the thread that wakes it sees that it sleeps.
  job_.store(job.word, std::memory_order_seq_cst);
  WakeChildren(0, job.num_threads);
  RunUnits(job, 0);
  WaitUntilFinished();
}

void ThreadPool::WaitUntilFinished() {
  const auto finished = [&] {
    uint64_t sum = 0;
    for (int i = 0; i < num_groups_; ++i) {
      sum += groups_[size_t(i)].num_finished.load(std::memory_order_seq_cst);
    }
    return sum == num_issued_;
  };
  while (!SpinUntil(is_oversubscribed_ ? kOversubscribedSpin : kCallerSpin, finished)) {
    is_caller_asleep_.store(1, std::memory_order_seq_cst);
    if (!finished()) FutexWait(&is_caller_asleep_);
    is_caller_asleep_.store(0, std::memory_order_relaxed);
  }
}

void ThreadPool::StartShare(const Job& job, int thread_idx) {
  std::atomic<uint64_t>& share = shares_[size_t(thread_idx)].unclaimed;
  uint64_t word = share.load(std::memory_order_acquire);
  const auto bound = [&](int thread) {
    return uint32_t(uint64_t(thread) * job.num_units / uint64_t(job.num_threads));
  };
  const uint64_t range = PackShare(job.number, bound(thread_idx), bound(thread_idx + 1));
  // If the loop is current after `word` was read, `word` is of an older loop. Once this loop has
  // ended the exchange fails: a loop cannot end before all its shares were started.
  while (NumberOf(word) != job.number && IsCurrent(job) &&
         !share.compare_exchange_weak(word, range, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
  }
}

// A loop cannot end while one of its units is claimed and not yet counted as finished. So a thread
// with a claimed unit reads task_ and num_tasks_ of the loop that the unit belongs to, even if it
// started late.
void ThreadPool::RunUnit(const Job& job, uint32_t unit, int thread_idx) {
  const int64_t num_tasks = num_tasks_.load(std::memory_order_relaxed);
  const Task& task = *task_.load(std::memory_order_relaxed);
  const auto first = [&](uint32_t i) { return int64_t(i) * num_tasks / int64_t(job.num_units); };
  for (int64_t i = first(unit); i < first(unit + 1); ++i) task(i, thread_idx);
}

void ThreadPool::RunUnits(const Job& job, int thread_idx) {
  std::atomic<uint64_t>& own = shares_[size_t(thread_idx)].unclaimed;
  uint64_t num_done = 0;
  StartShare(job, thread_idx);
  do {
    uint64_t word = own.load(std::memory_order_acquire);
    while (NumberOf(word) == job.number && FirstOf(word) < EndOf(word)) {
      const uint64_t rest = word + (uint64_t{1} << 16);
      if (!own.compare_exchange_weak(word, rest, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
        continue;
      }
      RunUnit(job, FirstOf(word), thread_idx);
      ++num_done;
      word = own.load(std::memory_order_acquire);
    }
    if (job.steals) SetEmpty(job, thread_idx, true);
  } while (job.steals && Steal(job, thread_idx));
  if (num_done == 0) return;
  Group& group = groups_[size_t(thread_idx / kGroupThreads)];
  group.num_finished.fetch_add(num_done, std::memory_order_seq_cst);
  FutexWake(&is_caller_asleep_);
}

void ThreadPool::SetEmpty(const Job& job, int thread_idx, bool is_empty) {
  std::atomic<uint64_t>& shares = groups_[size_t(thread_idx / kGroupThreads)].empty_shares;
  const uint64_t bit = uint64_t{1} << (thread_idx % kGroupThreads);
  uint64_t word = shares.load(std::memory_order_relaxed);
  while (NumberOf(word) == job.number || IsCurrent(job)) {
    const uint64_t bits = NumberOf(word) == job.number ? word & 0xFFFFFFFF : 0;
    const uint64_t next = uint64_t{job.number} << 32 | (is_empty ? bits | bit : bits & ~bit);
    if (word == next || shares.compare_exchange_weak(word, next, std::memory_order_relaxed)) return;
  }
}

bool ThreadPool::Steal(const Job& job, int thread_idx) {
  if (!IsCurrent(job)) return false;
  const int num_groups = (job.num_threads + kGroupThreads - 1) / kGroupThreads;
  for (int i = 0; i < num_groups; ++i) {
    const int group = (thread_idx / kGroupThreads + i) % num_groups;
    const int first = group * kGroupThreads;
    const int count = std::min(kGroupThreads, job.num_threads - first);
    const uint64_t word = groups_[size_t(group)].empty_shares.load(std::memory_order_relaxed);
    const uint64_t empty = NumberOf(word) == job.number ? word & 0xFFFFFFFF : 0;
    // Each thread begins at another victim.
    for (int k = 1; k <= count; ++k) {
      const int victim = first + (thread_idx + k) % count;
      if (victim == thread_idx || (empty >> (victim - first) & 1) != 0) continue;
      if (TakeHalf(job, victim, thread_idx)) return true;
      SetEmpty(job, victim, true);
    }
  }
  return false;
}

bool ThreadPool::TakeHalf(const Job& job, int victim, int thread_idx) {
  StartShare(job, victim);
  std::atomic<uint64_t>& share = shares_[size_t(victim)].unclaimed;
  uint64_t word = share.load(std::memory_order_acquire);
  while (NumberOf(word) == job.number && FirstOf(word) < EndOf(word)) {
    const uint32_t end = EndOf(word);
    const uint32_t count = (end - FirstOf(word) + 1) / 2;
    if (!share.compare_exchange_weak(word, word - count, std::memory_order_acq_rel,
                                     std::memory_order_acquire)) {
      continue;
    }
    shares_[size_t(thread_idx)].unclaimed.store(PackShare(job.number, end - count, end),
                                                std::memory_order_release);
    SetEmpty(job, thread_idx, false);
    return true;
  }
  return false;
}

void ThreadPool::WakeChildren(int thread_idx, int num_threads) {
  const int first = thread_idx * kWakeFanOut + 1;
  for (int i = first; i < std::min(first + kWakeFanOut, num_threads); ++i) {
    FutexWake(&sleepers_[size_t(i)].is_asleep);
  }
}

void ThreadPool::WorkerLoop(int thread_idx) {
  NameThisThread("compute");
  uint64_t seen = 0;
  while (const std::optional<uint64_t> word = WaitForJob(thread_idx, seen)) {
    seen = *word;
    const Job job = Unpack(seen);
    if (thread_idx >= job.num_threads) continue;
    WakeChildren(thread_idx, job.num_threads);
    RunUnits(job, thread_idx);
  }
}

std::optional<uint64_t> ThreadPool::WaitForJob(int thread_idx, uint64_t seen) {
  uint64_t word = seen;
  const auto ready = [&] {
    word = job_.load(std::memory_order_seq_cst);
    return word != seen || is_stopping_.load(std::memory_order_seq_cst);
  };
  while (!SpinUntil(is_oversubscribed_ ? kOversubscribedSpin : kWorkerSpin, ready)) {
    std::atomic<uint32_t>& is_asleep = sleepers_[size_t(thread_idx)].is_asleep;
    is_asleep.store(1, std::memory_order_seq_cst);
    if (!ready()) FutexWait(&is_asleep);
    is_asleep.store(0, std::memory_order_relaxed);
  }
  if (is_stopping_.load(std::memory_order_relaxed)) return std::nullopt;
  return word;
}

void ThreadPool::PinCaller() {
  thread_local const pid_t self = pid_t(syscall(SYS_gettid));
  if (pinned_caller_ == self) return;
  UnpinCaller();
  if (sched_getaffinity(0, sizeof(caller_cpus_), &caller_cpus_) != 0) return;
  const cpu_set_t cpu = OnlyCpu(cpus_[0]);
  if (sched_setaffinity(0, sizeof(cpu), &cpu) == 0) pinned_caller_ = self;
}

void ThreadPool::UnpinCaller() {
  const pid_t caller = std::exchange(pinned_caller_, 0);
  if (caller == 0) return;
  // A thread that has ended must not be mistaken for one of another process with its number.
  const std::string folder = "/proc/self/task/" + std::to_string(caller);
  if (access(folder.c_str(), F_OK) == 0) {
    sched_setaffinity(caller, sizeof(caller_cpus_), &caller_cpus_);
  }
}

}  // namespace lssar

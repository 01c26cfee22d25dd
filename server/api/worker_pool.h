// Threads that parse and tokenize the requests of both ports, so that the ports' own threads and
// the engine's never do.
#ifndef LSSAR_SERVER_API_WORKER_POOL_H_
#define LSSAR_SERVER_API_WORKER_POOL_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"

namespace lssar {

// Tenants take turns, each with its jobs in the order of their submission: who sends thousands of
// requests waits for them alone. Large jobs leave at least one thread to the small ones: a prompt
// of a few words never waits for megabytes of text.
//
// Threads  any
class WorkerPool {
  struct Job;

 public:
  struct Options {
    int num_threads = 2;                      // >= 2
    int max_jobs = 1024;                      // that wait
    int64_t max_bytes = int64_t{256} << 20;   // of all queued and running jobs
    int64_t large_bytes = int64_t{64} << 10;  // a job of more bytes is large
    // The next large job begins beside others up to so many bytes of all running ones: while token
    // ids are parsed they take nine times the memory of their message.
    int64_t max_running_bytes = int64_t{32} << 20;
  };
  // Half of the machine's cores, 2 to 8: tokenization must not starve the engine. Every call of
  // --max-calls may wait: a burst that the operator allows is not refused because the threads are
  // late.
  static Options OptionsFor(int max_calls);

  explicit WorkerPool(const Options& options);
  // Runs every queued job, then ends. Jobs of calls that were stopped return at once.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // How long a job may wait for a thread.
  struct TimeLimit {
    Clock::time_point at;
    std::function<void()> on_late;  // runs instead of the job, on no thread that runs jobs
  };

  // `num_bytes`: the size of the request that the job works on. `limit`: nullopt: none
  // Errors  RESOURCE_EXHAUSTED: too many jobs or bytes are queued, and the tenant has its share of
  //         them, the bound divided by the number of tenants that have any; names the limit
  absl::Status Submit(const std::string& tenant, int64_t num_bytes, std::function<void()> run,
                      std::optional<TimeLimit> limit = {});

  // Ends the jobs that wait and whose time has passed. A thread of the pool's own calls it at their
  // times, up to kLateInterval later.
  void EndLateJobs(Clock::time_point now);

  // While it lives, the job that has made it waits for another one and counts as none that runs: a
  // thread more runs jobs, if the system gives one, and a large job lets another one begin.
  class Wait {
   public:
    // `pool`: null: of no pool.
    explicit Wait(WorkerPool* pool);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    WorkerPool* const pool_;
    const Job* const job_;  // null: the thread runs no job
  };

 private:
  struct Job {
    std::string tenant;
    int64_t num_bytes = 0;
    std::function<void()> run;
    std::optional<TimeLimit> limit;
  };

  // A scan of all jobs that wait is at most so often.
  static constexpr std::chrono::milliseconds kLateInterval{10};

  // Jobs that wait.
  class Turns {
   public:
    bool IsEmpty() const { return turns_.empty(); }
    int NumJobs() const { return num_jobs_; }
    int64_t NumJobsOf(const std::string& tenant) const;
    // The next one. Requires  it is not empty
    const Job& First() const { return jobs_.at(turns_.front()).front(); }
    Job Pop();
    void Push(Job job);
    // Moves those whose time has passed to `late`. Returns the earliest time of the others.
    Clock::time_point TakeLate(Clock::time_point now, std::vector<Job>* late);

   private:
    std::map<std::string, std::deque<Job>> jobs_;  // by tenant; none without jobs
    std::deque<std::string> turns_;                // each of these tenants once
    int num_jobs_ = 0;
  };

  // What a tenant has in the pool.
  struct Share {
    int num_open = 0;       // jobs that wait or run
    int64_t num_bytes = 0;  // of these
  };

  void Run();
  void RunClock();
  bool IsLarge(const Job& job) const { return job.num_bytes > options_.large_bytes; }
  // Requires  mutex_
  // Errors  std::system_error: the system gives the process no more threads
  void AddThread() {
    threads_.emplace_back([this] { Run(); });
  }
  // Requires  mutex_. The queue whose first job may run now; null: none.
  Turns* NextQueue();
  // Requires  mutex_. `change`: 1: `job` runs, -1: no longer.
  void CountRunning(const Job* job, int change);
  // Requires  mutex_. The job no longer counts against its tenant's share.
  void Forget(const Job& job);
  // Requires  mutex_. Errors  those of Submit
  absl::Status CheckCapacity(const std::string& tenant, int64_t num_bytes) const;

  static thread_local const Job* job_of_thread;  // that the thread runs; null: none
  const Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable clock_changed_;  // next_late_ is earlier, or the pool stops
  Turns small_, large_;
  std::map<std::string, Share> shares_;  // by tenant; none without jobs
  int num_running_ = 0;                  // jobs, without those that wait
  int num_waiting_ = 0;                  // Wait
  int num_large_running_ = 0;            // of these
  int64_t num_bytes_running_ = 0;        // of these
  int64_t num_bytes_ = 0;                // of queued, running and waiting jobs
  int64_t bytes_since_trim_ = 0;
  bool is_stopping_ = false;
  Clock::time_point next_late_ = Clock::time_point::max();  // no job that waits ends earlier
  bool is_large_next_ = false;                              // both kinds wait: they take turns
  std::vector<std::thread> threads_;  // as many as jobs have run and waited at the same time
  std::thread clock_;                 // EndLateJobs
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_WORKER_POOL_H_

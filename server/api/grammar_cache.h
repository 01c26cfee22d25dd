// The compiled constraints of requests: each is compiled once, on a worker.
#ifndef LSSAR_SERVER_API_GRAMMAR_CACHE_H_
#define LSSAR_SERVER_API_GRAMMAR_CACHE_H_

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "models/checkpoint.h"
#include "models/text/grammar.h"
#include "server/api/worker_pool.h"

namespace lssar {

// All compiled grammars, those that requests use included, about.
inline constexpr int64_t kMaxGrammarCacheBytes = int64_t{128} << 20;
// How long a request waits while as many others are compiled as may be: behind another of its
// tenant, and as the tenant's first, whose turn comes after the other tenants'.
inline constexpr std::chrono::seconds kMaxGrammarWait{2};
inline constexpr std::chrono::seconds kMaxGrammarTurn{60};
// Requests that wait, for that or for the same constraint: at most, and where the tenant has none.
inline constexpr int kMaxGrammarWaits = 64;
inline constexpr int kMaxFirstGrammarWaits = 256;

// Threads  any
class GrammarCache {
 public:
  // `checkpoint` outlives this. `max_compiling`: at a time, >= 1: the other workers stay free.
  // `max_bytes`: of the kept grammars, and one more for each that is compiled.
  GrammarCache(const Checkpoint* checkpoint, int max_compiling,
               int64_t max_bytes = kMaxGrammarCacheBytes)
      : checkpoint_(*checkpoint), max_compiling_(max_compiling), max_bytes_(max_bytes) {}
  GrammarCache(const GrammarCache&) = delete;
  GrammarCache& operator=(const GrammarCache&) = delete;

  // Bytes of the kept results.
  int64_t NumBytes() {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }

  // Blocks while the grammar is compiled, by this call or by another. A call that has ended goes on
  // with it for others that wait. Tenants that wait take turns: the one whose last turn is longest
  // ago is the next. `workers`: of which this is a job; null: of none.
  // Requires  the checkpoint has a tokenizer
  // Errors    those of GrammarCompiler::Compile; INVALID_ARGUMENT is kept like a result
  //           RESOURCE_EXHAUSTED: others were compiled for too long, or too many wait (the limits
  //           above), or those of running requests take max_bytes
  //           CANCELLED: should_stop, which any thread asks, returned true
  absl::StatusOr<std::shared_ptr<const Grammar>> Get(const GrammarSource& source,
                                                     const std::function<bool()>& should_stop,
                                                     const std::string& tenant = {},
                                                     WorkerPool* workers = nullptr);

 private:
  using Key = std::pair<GrammarSource::Kind, std::string>;
  using Result = absl::StatusOr<std::shared_ptr<const Grammar>>;
  struct Entry {
    Key key;
    Result result;
    int64_t num_bytes = 0;
  };

  struct Compilation {
    std::optional<Result> result;  // for those that wait; none: not yet, or it was stopped
    int num_waiting = 0;
  };
  using Awaited = std::shared_ptr<Compilation>;

  struct Waiter {
    const Key& key;
    const std::string& tenant;
  };

  // Waits until the waiter's key is kept, or has been compiled, or may be compiled: nullopt.
  // Requires  mutex_; `self` is in waiters_
  std::optional<Result> WaitFor(const Waiter& self, const std::function<bool()>& should_stop,
                                std::unique_lock<std::mutex>& lock);
  // Requires  mutex_
  bool IsFull() const { return std::ssize(compiling_) >= max_compiling_; }
  // Whether `self` is the first of its tenant that waits for a turn, and of all tenants.
  // Requires  mutex_
  bool IsFirstOfTenant(const Waiter& self) const;
  bool IsNext(const Waiter& self) const;
  // Requires  mutex_. Null: it is not there.
  const Result* Find(const Key& key);
  void Insert(Key key, const Result& result);
  // Forgets results up to max_bytes_, the oldest first, without those that requests use: these
  // would take as much memory.
  void Evict();

  const Checkpoint& checkpoint_;
  const int max_compiling_;
  const int64_t max_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<const GrammarCompiler> compiler_;  // null: nothing was compiled yet
  std::list<Entry> entries_;                         // the latest use first
  std::map<Key, std::list<Entry>::iterator> by_key_;
  std::map<Key, Awaited> compiling_;
  std::list<Waiter> waiters_;  // in order of arrival
  std::map<std::string, int64_t>
      last_turns_;  // by tenant; forgotten when nobody waits, or of too many
  int64_t num_turns_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_GRAMMAR_CACHE_H_

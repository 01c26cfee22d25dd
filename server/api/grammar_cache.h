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
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "models/checkpoint.h"
#include "models/text/grammar.h"

namespace lssar {

// All compiled grammars that no request uses, about.
inline constexpr int64_t kMaxGrammarCacheBytes = int64_t{128} << 20;
// How long a request waits while as many others are compiled as may be.
inline constexpr std::chrono::seconds kMaxGrammarWait{2};

// Threads  any
class GrammarCache {
 public:
  // `checkpoint` outlives this. `max_compiling`: at a time, >= 1: the other workers stay free.
  GrammarCache(const Checkpoint* checkpoint, int max_compiling)
      : checkpoint_(*checkpoint), max_compiling_(max_compiling) {}
  GrammarCache(const GrammarCache&) = delete;
  GrammarCache& operator=(const GrammarCache&) = delete;

  // Bytes of the kept results.
  int64_t NumBytes() {
    const std::lock_guard lock(mutex_);
    return num_bytes_;
  }

  // Blocks while the grammar is compiled, by this call or by another.
  // Requires  the checkpoint has a tokenizer
  // Errors    those of GrammarCompiler::Compile; INVALID_ARGUMENT is kept like a result
  //           RESOURCE_EXHAUSTED: others were compiled for kMaxGrammarWait
  //           CANCELLED: should_stop returned true
  absl::StatusOr<std::shared_ptr<const Grammar>> Get(const GrammarSource& source,
                                                     const std::function<bool()>& should_stop);

 private:
  using Key = std::pair<GrammarSource::Kind, std::string>;
  using Result = absl::StatusOr<std::shared_ptr<const Grammar>>;
  struct Entry {
    Key key;
    Result result;
    int64_t num_bytes = 0;
  };

  // Requires  mutex_. Null: it is not there.
  const Result* Find(const Key& key);
  void Insert(Key key, const Result& result);

  const Checkpoint& checkpoint_;
  const int max_compiling_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unique_ptr<const GrammarCompiler> compiler_;  // null: nothing was compiled yet
  std::list<Entry> entries_;                         // the latest use first
  std::map<Key, std::list<Entry>::iterator> by_key_;
  std::set<Key> compiling_;
  int num_compiling_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_GRAMMAR_CACHE_H_

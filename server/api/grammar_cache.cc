#include "server/api/grammar_cache.h"

#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

// A call that waits asks so often whether it is still wanted.
constexpr std::chrono::milliseconds kPollInterval{20};
// Memory of an entry besides its text, twice, and its grammar.
constexpr int64_t kEntryBytes = 512;

std::vector<int32_t> EosIds(const ModelConfig& config) {
  std::vector<int32_t> ids = config.other_eos_ids;
  if (config.eos_id) ids.push_back(*config.eos_id);
  return ids;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCache::Get(
    const GrammarSource& source, const std::function<bool()>& should_stop) {
  Key key(source.kind, source.text);
  const Clock::time_point latest = Clock::now() + kMaxGrammarWait;
  std::unique_lock lock(mutex_);
  for (;;) {
    if (const Result* result = Find(key)) return *result;
    const bool is_compiled_by_other = compiling_.contains(key);
    if (!is_compiled_by_other && num_compiling_ < max_compiling_) break;
    if (should_stop()) return absl::CancelledError("the call has ended");
    if (!is_compiled_by_other && Clock::now() >= latest) {
      return absl::ResourceExhaustedError(
          StrCat(num_compiling_, " other constraints are being compiled; try again"));
    }
    changed_.wait_for(lock, kPollInterval);
  }
  compiling_.insert(key);
  ++num_compiling_;
  if (compiler_ == nullptr) {
    compiler_ = std::make_unique<GrammarCompiler>(
        *checkpoint_.tokenizer, checkpoint_.config.NumTokenIds(), EosIds(checkpoint_.config));
  }
  lock.unlock();
  const Result result = compiler_->Compile(source);
  lock.lock();
  --num_compiling_;
  compiling_.erase(key);
  // Another time the machine may be less busy.
  if (!absl::IsDeadlineExceeded(result.status())) Insert(std::move(key), result);
  changed_.notify_all();
  return result;
}

const GrammarCache::Result* GrammarCache::Find(const Key& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return &found->second->result;
}

void GrammarCache::Insert(Key key, const Result& result) {
  const int64_t num_bytes =
      kEntryBytes + 2 * std::ssize(key.second) + (result.ok() ? (*result)->NumBytes() : int64_t{0});
  entries_.push_front({.key = key, .result = result, .num_bytes = num_bytes});
  by_key_.emplace(std::move(key), entries_.begin());
  num_bytes_ += num_bytes;
  while (num_bytes_ > kMaxGrammarCacheBytes && entries_.size() > 1) {
    num_bytes_ -= entries_.back().num_bytes;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace lssar

// PrefixCache as a state machine: sequences insert their pages, match prefixes and end, as
// BlockManager does. A match is compared after each operation with the texts of the pages.
// Input   operations, two bytes each: what, and for which sequence or text
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/page_allocator.h"
#include "runtime/prefix_cache.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

constexpr int kNumPages = 24;
constexpr int kPageSize = 2;
constexpr size_t kNumSequences = 6;

struct CachedSequence {
  std::vector<int32_t> pages;
  std::vector<int32_t> ids;
  std::string salt;
};

// A hash with many collisions: a match has to compare ids.
uint64_t WeakHash(uint64_t seed, std::span<const int32_t> ids) {
  return (seed + uint64_t(ids[0])) & 3;
}

class Machine {
 public:
  Machine() : pages_(kNumPages), cache_(&pages_, kPageSize, WeakHash), sequences_(kNumSequences) {}

  void Run(uint8_t what, uint8_t which) {
    CachedSequence& sequence = sequences_[which % kNumSequences];
    const int32_t token = which / kNumSequences % 4;
    switch (what % 4) {
      case 0: return Extend(&sequence, token);
      case 1: return Restart(&sequence, token);
      case 2: return Match(&sequence, which);
      default:
        if (pages_.NumEvictable() > 0) EvictOldest();
    }
  }

  void CheckInvariants() const {
    std::vector<int> ref_counts(kNumPages);
    for (const CachedSequence& sequence : sequences_) {
      for (const int32_t page : sequence.pages) ++ref_counts[size_t(page)];
    }
    int num_used = 0;
    for (int32_t page = 0; page < kNumPages; ++page) {
      LSSAR_CHECK(pages_.RefCount(page) == ref_counts[size_t(page)]);
      LSSAR_CHECK(pages_.IsCached(page) == texts_.contains(page));
      num_used += int(ref_counts[size_t(page)] > 0);
    }
    LSSAR_CHECK(pages_.NumFree() + pages_.NumEvictable() + num_used == kNumPages);
  }

 private:
  // What a cached page stands for: the salt and all ids up to its end.
  struct Text {
    std::string salt;
    std::vector<int32_t> ids;
  };

  // A page more, computed and inserted.
  void Extend(CachedSequence* sequence, int32_t token) {
    while (pages_.NumFree() == 0 && pages_.NumEvictable() > 0) EvictOldest();
    const int32_t parent = sequence->pages.empty() ? PrefixCache::kNone : sequence->pages.back();
    if (!pages_.Allocate(1, &sequence->pages)) return;
    const int32_t page = sequence->pages.back();
    sequence->ids.insert(sequence->ids.end(), {token, token + 4});
    const std::span<const int32_t> ids = std::span(sequence->ids).last(kPageSize);
    const int32_t cached = cache_.Insert(
        {.root = {.rope_base = 1e4, .salt = sequence->salt}, .parent = parent, .ids = ids}, page);
    if (cached != page) {
      LSSAR_CHECK(texts_.at(cached).ids == sequence->ids);
      LSSAR_CHECK(texts_.at(cached).salt == sequence->salt);
      pages_.AddRef(cached);
      pages_.Free(page);
      sequence->pages.back() = cached;
    }
    texts_[sequence->pages.back()] = {sequence->salt, sequence->ids};
  }

  void Restart(CachedSequence* sequence, int32_t salt) {
    pages_.Free(&sequence->pages);
    sequence->ids.clear();
    sequence->salt = std::string(size_t(salt), 's');
  }

  // The sequence restarts with the longest cached prefix of another one's text.
  void Match(CachedSequence* sequence, uint8_t which) {
    const CachedSequence& other = sequences_[which / kNumSequences % kNumSequences];
    if (&other == sequence) return;
    Restart(sequence, 0);
    sequence->salt = other.salt;
    int32_t parent = PrefixCache::kNone;
    for (size_t first = 0; first < other.ids.size(); first += kPageSize) {
      const auto ids = std::span(other.ids).subspan(first, kPageSize);
      int32_t page = cache_.Match({.rope_base = 1e4, .salt = other.salt}, parent, ids);
      if (FaultIsPlanted() && first == 3 * kPageSize) page = parent;
      // All pages of a running sequence are cached, so the whole text matches.
      LSSAR_CHECK(page != PrefixCache::kNone);
      LSSAR_CHECK(texts_.at(page).salt == other.salt);
      LSSAR_CHECK(
          std::ranges::equal(texts_.at(page).ids, std::span(other.ids).first(first + kPageSize)));
      pages_.AddRef(page);
      sequence->pages.push_back(page);
      sequence->ids.insert(sequence->ids.end(), ids.begin(), ids.end());
      parent = page;
    }
  }

  void EvictOldest() {
    texts_.erase(pages_.OldestEvictable());
    cache_.EvictOldest();
  }

  PageAllocator pages_;
  PrefixCache cache_;
  std::vector<CachedSequence> sequences_;
  std::map<int32_t, Text> texts_;  // of the cached pages
};

}  // namespace

LSSAR_FUZZ_TARGET(prefix_cache) {
  Machine machine;
  for (size_t at = 0; at + 1 < bytes.size() && at < 2000; at += 2) {
    machine.Run(bytes[at], bytes[at + 1]);
    machine.CheckInvariants();
  }
}

}  // namespace lssar

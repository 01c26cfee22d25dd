// Finds pages by the tokens that they hold, so that a text that begins like an earlier one need not
// be computed again.
#ifndef LSSAR_RUNTIME_PREFIX_CACHE_H_
#define LSSAR_RUNTIME_PREFIX_CACHE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/page_allocator.h"

namespace lssar {

// What is known of a token after those before it, from a row that was scored.
struct TokenScore {
  float logprob = 0;
  bool is_known = false;
  bool is_greedy = false;  // it is the row's best
};

// What the first page of a text depends on beside its tokens; every later one depends on the page
// before it. The K/V format needs no place here: a pool has one.
struct PrefixRoot {
  double rope_base = 0;
  std::string_view salt = {};
};

// A tree of full pages: a page's key is (its parent, its token ids), and (root, ids) for a first
// page. A parent is named by its page id, which stays its own as long as it has a child here:
//   - who holds a page holds its parents too (Insert sees to it, when a text was computed twice);
//   - pages become idle with the children before their parents, and the oldest idle one goes first.
// Ids are compared on every hit, so a collision of hashes costs time and nothing else.
// Cost      takes its memory once: page_size * 12 bytes a page
// Threads   one: the engine's
class PrefixCache {
 public:
  using Hash = std::function<uint64_t(uint64_t seed, std::span<const int32_t> ids)>;
  static uint64_t HashIds(uint64_t seed, std::span<const int32_t> ids);

  static constexpr int32_t kNone = -1;

  // `pages` must outlive the cache. `hash`: another one for tests.
  PrefixCache(PageAllocator* pages, int page_size, Hash hash = HashIds);

  // The page that follows `parent` (kNone: the text begins with it, under `root`) with `ids`;
  // kNone: it is not here. It is not held by that.
  // Requires  `parent` is in the cache; ids.size() == page_size
  int32_t Find(const PrefixRoot& root, int32_t parent, std::span<const int32_t> ids) const;

  // Puts a held page here; it is never written again. What `scores` knows is kept, and added to
  // what the cache knew of the same tokens. Returns the page that is here in the end: another than
  // `page_id` when the text was computed twice, and the caller must take that one instead.
  // Requires  as Find; scores.size() is 0 or page_size
  struct Entry {
    PrefixRoot root;
    int32_t parent = kNone;
    std::span<const int32_t> ids;
    std::span<const TokenScore> scores;  // element i of ids[i], after all tokens before it
  };
  int32_t Insert(const Entry& entry, int32_t page_id);

  std::span<const TokenScore> Scores(int32_t page_id) const;

  // Makes the oldest idle page free. Requires  one is idle
  void EvictOldest();

 private:
  struct Node {
    uint64_t hash = 0;
    int32_t parent = kNone;
    int32_t next = kNone;   // in the bucket
    int num_children = 0;   // to see the rules above kept
    double rope_base = 0;   // of a first page
    std::string salt = {};  // of a first page
  };
  uint64_t HashOf(const PrefixRoot& root, int32_t parent, std::span<const int32_t> ids) const;
  int32_t* Bucket(uint64_t hash) { return &buckets_[hash & (buckets_.size() - 1)]; }
  std::span<int32_t> Ids(int32_t page_id);

  PageAllocator* const pages_;
  const int page_size_;
  const Hash hash_;
  std::vector<Node> nodes_;         // by page id
  std::vector<int32_t> ids_;        // [page][token]
  std::vector<TokenScore> scores_;  // [page][token]
  std::vector<int32_t> buckets_;    // a power of two; the first page of each
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PREFIX_CACHE_H_

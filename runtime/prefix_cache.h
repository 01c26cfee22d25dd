// Finds pages by the tokens that they hold, so that a prefix that was computed before is not
// computed again.
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

// The log-probability of a token given all tokens before it, where it is known.
struct TokenScore {
  float logprob = 0;
  bool is_known = false;
  bool is_greedy = false;  // the token is the model's best
};

// What the first page of a text depends on besides its tokens; every later page depends on its
// parent. The K/V format is not part of it: a pool has one format.
struct PrefixRoot {
  double rope_base = 0;
  std::string_view salt = {};
  std::string_view attention = {};  // AttentionOverride::name
};

// A tree of full pages: a page's key is (parent page, token ids), and (root, token ids) for a first
// page. A parent is identified by its page id, which stays valid while it has a child here:
//   - a sequence that uses a page also uses its parents (Insert ensures it when two sequences
//     computed the same text);
//   - pages become evictable children first, and the oldest evictable page is evicted first.
// Token ids are compared on every match, so a hash collision costs time and nothing else.
// Cost      memory is allocated once: page_size * 12 bytes a page
// Threads   the engine's thread only
class PrefixCache {
 public:
  using Hash = std::function<uint64_t(uint64_t seed, std::span<const int32_t> ids)>;
  static uint64_t HashIds(uint64_t seed, std::span<const int32_t> ids);

  static constexpr int32_t kNone = -1;

  // `pages` must outlive the cache. Tests pass another `hash`.
  PrefixCache(PageAllocator* pages, int page_size, Hash hash = HashIds);

  // The page that holds `ids` after `parent` (kNone: as the first page under `root`); kNone: it is
  // not cached. Adds no reference.
  // Requires  `parent` is cached; ids.size() == page_size
  int32_t Match(const PrefixRoot& root, int32_t parent, std::span<const int32_t> ids) const;

  // Inserts a page that is in use; it is read-only from now on. Known `scores` are stored, or added
  // to those that the cache already has for the same tokens. Returns the cached page. It differs
  // from `page_id` when another sequence computed the same text before; the caller must use it in
  // place of `page_id`.
  // Requires  as Match; scores.size() is 0 or page_size
  struct Entry {
    PrefixRoot root;
    int32_t parent = kNone;
    std::span<const int32_t> ids;
    std::span<const TokenScore> scores;  // element i belongs to ids[i]
  };
  int32_t Insert(const Entry& entry, int32_t page_id);

  std::span<const TokenScore> Scores(int32_t page_id) const;

  // The oldest evictable page leaves the cache and becomes free.
  // Requires  a page is evictable
  void EvictOldest();

 private:
  struct Node {
    uint64_t hash = 0;
    int32_t parent = kNone;
    int32_t next = kNone;  // in the bucket
    int num_children = 0;  // checks the rules above
    double rope_base = 0;  // first pages only
    // First pages only.
    std::string salt = {};
    std::string attention = {};
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
  std::vector<int32_t> buckets_;    // the first page of each; the size is a power of two
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PREFIX_CACHE_H_

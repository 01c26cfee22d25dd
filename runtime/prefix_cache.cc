#include "runtime/prefix_cache.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/check.h"

namespace lssar {

// Multiply and rotate, as in FxHash, with a final mix into the low bits. Hashing 64 ids takes about
// as long as reading them.
uint64_t PrefixCache::HashIds(uint64_t seed, std::span<const int32_t> ids) {
  uint64_t hash = seed;
  for (const int32_t id : ids) {
    hash = (std::rotl(hash, 5) ^ uint64_t(uint32_t(id))) * 0x9E3779B97F4A7C15u;
  }
  hash ^= hash >> 32;
  hash *= 0xD6E8FEB86659FD93u;
  return hash ^ (hash >> 32);
}

PrefixCache::PrefixCache(PageAllocator* pages, int page_size, Hash hash)
    : pages_(pages),
      page_size_(page_size),
      hash_(std::move(hash)),
      nodes_(size_t(pages->NumPages())),
      ids_(size_t(pages->NumPages()) * size_t(page_size)),
      scores_(ids_.size()),
      buckets_(std::bit_ceil(size_t(pages->NumPages())), kNone) {}

std::span<int32_t> PrefixCache::Ids(int32_t page_id) {
  return std::span(ids_).subspan(size_t(page_id) * size_t(page_size_), size_t(page_size_));
}

std::span<const TokenScore> PrefixCache::Scores(int32_t page_id) const {
  return std::span(scores_).subspan(size_t(page_id) * size_t(page_size_), size_t(page_size_));
}

uint64_t PrefixCache::HashOf(const PrefixRoot& root, int32_t parent,
                             std::span<const int32_t> ids) const {
  if (parent != kNone) return hash_(nodes_[size_t(parent)].hash, ids);
  const uint64_t seed = std::bit_cast<uint64_t>(root.rope_base) ^
                        std::hash<std::string_view>()(root.salt) ^
                        std::rotl(uint64_t{std::hash<std::string_view>()(root.attention)}, 1);
  return hash_(seed, ids);
}

int32_t PrefixCache::Match(const PrefixRoot& root, int32_t parent,
                           std::span<const int32_t> ids) const {
  LSSAR_CHECK(int(ids.size()) == page_size_);
  LSSAR_CHECK(parent == kNone || pages_->IsCached(parent));
  const uint64_t hash = HashOf(root, parent, ids);
  for (int32_t page_id = buckets_[hash & (buckets_.size() - 1)]; page_id != kNone;
       page_id = nodes_[size_t(page_id)].next) {
    const Node& node = nodes_[size_t(page_id)];
    if (node.hash != hash || node.parent != parent) continue;
    const bool is_other_root = node.rope_base != root.rope_base || node.salt != root.salt ||
                               node.attention != root.attention;
    if (parent == kNone && is_other_root) continue;
    const auto first = ids_.begin() + std::ptrdiff_t(page_id) * page_size_;
    if (std::equal(ids.begin(), ids.end(), first)) return page_id;
  }
  return kNone;
}

int32_t PrefixCache::Insert(const Entry& entry, int32_t page_id) {
  LSSAR_CHECK(entry.scores.empty() || int(entry.scores.size()) == page_size_);
  int32_t cached = Match(entry.root, entry.parent, entry.ids);
  const auto scores_of = [this](int32_t page) {
    return std::span(scores_).subspan(size_t(page) * size_t(page_size_), size_t(page_size_));
  };
  if (cached == kNone) {
    cached = page_id;
    pages_->MarkCached(page_id);
    const uint64_t hash = HashOf(entry.root, entry.parent, entry.ids);
    nodes_[size_t(page_id)] = {
        .hash = hash, .parent = entry.parent, .next = std::exchange(*Bucket(hash), page_id)};
    if (entry.parent == kNone) {
      nodes_[size_t(page_id)].rope_base = entry.root.rope_base;
      nodes_[size_t(page_id)].salt = entry.root.salt;
      nodes_[size_t(page_id)].attention = entry.root.attention;
    } else {
      ++nodes_[size_t(entry.parent)].num_children;
    }
    std::ranges::copy(entry.ids, Ids(page_id).begin());
    std::ranges::fill(scores_of(page_id), TokenScore{});
  }
  for (size_t i = 0; i < entry.scores.size(); ++i) {
    if (entry.scores[i].is_known) scores_of(cached)[i] = entry.scores[i];
  }
  return cached;
}

void PrefixCache::EvictOldest() {
  const int32_t page_id = pages_->OldestEvictable();
  LSSAR_CHECK(page_id >= 0);
  const Node& node = nodes_[size_t(page_id)];
  LSSAR_CHECK(node.num_children == 0);
  int32_t* link = Bucket(node.hash);
  while (*link != page_id) link = &nodes_[size_t(*link)].next;
  *link = node.next;
  if (node.parent != kNone) --nodes_[size_t(node.parent)].num_children;
  pages_->Evict(page_id);
}

}  // namespace lssar

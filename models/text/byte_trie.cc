#include "models/text/byte_trie.h"

#include "base/check.h"

namespace lssar {

ByteTrie::ByteTrie(std::vector<std::pair<std::string, int32_t>> keys) {
  roots_.fill(kNone);
  std::ranges::stable_sort(keys, {}, &std::pair<std::string, int32_t>::first);
  // Nodes are made level by level, so that the children of one are adjacent. `node` is the parent
  // of the nodes of keys [begin, end), which agree in their first `depth` bytes.
  struct Range {
    uint32_t node;
    size_t begin, end, depth;
  };
  std::vector<Range> ranges{{kNone, 0, keys.size(), 0}};
  for (size_t next = 0; next < ranges.size(); ++next) {
    const Range range = ranges[next];
    const auto first_child = uint32_t(nodes_.size());
    size_t at = range.begin;
    while (at < range.end && keys[at].first.size() == range.depth) {
      LSSAR_CHECK(range.depth > 0 && keys[at].second >= 0);
      if (nodes_[range.node].value < 0) nodes_[range.node].value = keys[at].second;
      ++at;
    }
    while (at < range.end) {
      const auto byte = uint8_t(keys[at].first[range.depth]);
      size_t end = at;
      while (end < range.end && uint8_t(keys[end].first[range.depth]) == byte) ++end;
      const auto child = uint32_t(nodes_.size());
      if (range.depth == 0) roots_[byte] = child;
      nodes_.emplace_back();
      labels_.push_back(byte);
      ranges.push_back({child, at, end, range.depth + 1});
      at = end;
    }
    if (range.depth > 0) {
      nodes_[range.node].first_child = first_child;
      nodes_[range.node].num_children = uint16_t(nodes_.size() - first_child);
    }
  }
}

}  // namespace lssar

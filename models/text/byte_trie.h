// Keys by prefix: finds every key that a text starts with.
#ifndef LSSAR_MODELS_TEXT_BYTE_TRIE_H_
#define LSSAR_MODELS_TEXT_BYTE_TRIE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lssar {

// Const after construction and safe from any thread.
class ByteTrie {
 public:
  // (key, value) each; no key is empty, no value negative. The first of several with one key
  // counts.
  explicit ByteTrie(std::vector<std::pair<std::string, int32_t>> keys);

  // Calls on_key(num_bytes, value) with each key that `text` starts with, the shortest first.
  template <typename OnKey>
  void ForEachPrefix(std::string_view text, OnKey on_key) const {
    if (text.empty()) return;
    uint32_t node = roots_[uint8_t(text[0])];
    for (size_t num_bytes = 1; node != kNone; ++num_bytes) {
      if (nodes_[node].value >= 0) on_key(num_bytes, nodes_[node].value);
      if (num_bytes == text.size()) return;
      node = FindChild(nodes_[node], uint8_t(text[num_bytes]));
    }
  }

  // The bytes and the value of the longest key that `text` starts with; 0 bytes: there is none.
  std::pair<size_t, int32_t> FindLongest(std::string_view text) const {
    std::pair<size_t, int32_t> longest{0, -1};
    ForEachPrefix(text, [&](size_t num_bytes, int32_t value) { longest = {num_bytes, value}; });
    return longest;
  }

  bool MayBegin(char first) const { return roots_[uint8_t(first)] != kNone; }
  bool IsEmpty() const { return nodes_.empty(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  // The children of a node are adjacent, in the order of their bytes.
  struct Node {
    int32_t value = -1;
    uint32_t first_child = 0;
    uint16_t num_children = 0;
  };

  uint32_t FindChild(const Node& node, uint8_t byte) const {
    const auto begin = labels_.begin() + node.first_child, end = begin + node.num_children;
    const auto found = std::lower_bound(begin, end, byte);
    return found == end || *found != byte ? kNone : uint32_t(found - labels_.begin());
  }

  std::array<uint32_t, 256> roots_;  // by first byte
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // of each node: the byte that leads to it
};

}  // namespace lssar

#endif  // LSSAR_MODELS_TEXT_BYTE_TRIE_H_

#include "models/byte_pair_encoder.h"

#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

namespace lssar {
namespace {

constexpr int32_t kGone = -1;  // in place of an id: merged into the one before

uint64_t KeyOf(int32_t left, int32_t right) {
  return uint64_t{uint32_t(left)} << 32 | uint32_t(right);
}

// A place where a merge may be done, unless one of the two has changed since.
struct Candidate {
  int32_t rank;
  size_t left;

  auto operator<=>(const Candidate&) const = default;
};

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids,
                                 const std::vector<Merge>& merges)
    : byte_ids_(byte_ids) {
  rules_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    rules_.try_emplace(KeyOf(merge.left, merge.right),
                       Rule{.rank = int32_t(rank), .merged = merge.merged});
  }
}

const BytePairEncoder::Rule* BytePairEncoder::Find(int32_t left, int32_t right) const {
  const auto found = rules_.find(KeyOf(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void BytePairEncoder::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  struct Symbol {
    int32_t id;
    size_t previous, next;  // word.size(): none
  };
  const size_t none = word.size();
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t i = 0; i < word.size(); ++i) {
    symbols.push_back({byte_ids_[uint8_t(word[i])], i == 0 ? none : i - 1, i + 1});
  }

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto consider = [&](size_t left) {
    if (left == none || symbols[left].next == none) return;
    const Rule* rule = Find(symbols[left].id, symbols[symbols[left].next].id);
    if (rule != nullptr) candidates.push({rule->rank, left});
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(i);
  while (!candidates.empty()) {
    const Candidate best = candidates.top();
    candidates.pop();
    Symbol& left = symbols[best.left];
    if (left.id == kGone || left.next == none) continue;
    Symbol& right = symbols[left.next];
    const Rule* rule = Find(left.id, right.id);
    if (rule == nullptr || rule->rank != best.rank) continue;
    left.id = rule->merged;
    right.id = kGone;
    left.next = right.next;
    if (left.next != none) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kGone) ids->push_back(symbol.id);
  }
}

}  // namespace lssar

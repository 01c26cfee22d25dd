#include "models/text/bpe.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace lssar {
namespace {

// Up to this many symbols the next merge is found by looking at all pairs; above, by a heap.
constexpr size_t kShortWord = 48;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();
constexpr int32_t kMergedAway = -2;  // in place of an id: merged into the symbol before
constexpr size_t kSymbolsPerPoll = 4096;
constexpr size_t kStopped = std::numeric_limits<size_t>::max();

}  // namespace

BpeEncoder::BpeEncoder(BpeModel model)
    : alphabet_(model.alphabet),
      byte_ids_(model.byte_ids),
      characters_(std::move(model.characters)),
      unknown_id_(model.unknown_id),
      fuse_unknown_(model.fuse_unknown),
      words_(std::move(model.words)) {
  rules_.reserve(model.merges.size());
  for (const BpeMerge& merge : model.merges) {
    const Rule rule{.rank = merge.rank, .merged = merge.merged};
    const auto [entry, is_new] = rules_.try_emplace(KeyOf(merge.left, merge.right), rule);
    if (!is_new && rule.rank < entry->second.rank) entry->second = rule;
  }
  AddWords(model.pieces);
  for (const auto& [word, id] : words_) max_word_bytes_ = std::max(max_word_bytes_, word.size());
}

void BpeEncoder::AddWords(const std::vector<std::string>& pieces) {
  std::vector<int32_t> ids;
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) continue;
    if (alphabet_ == BpeModel::Alphabet::kCharacters && FindInvalidUtf8(pieces[id])) continue;
    ids.clear();
    Encode(
        pieces[id], 0, [] { return false; }, &ids);
    if (ids.size() == 1 && ids[0] == int32_t(id)) words_.try_emplace(pieces[id], int32_t(id));
  }
}

void BpeEncoder::AppendSymbols(std::string_view word, size_t fuse_from,
                               std::vector<int32_t>* symbols) const {
  const auto id_of_byte = [&](char c) { return byte_ids_[uint8_t(c)]; };
  // An unknown symbol waits for the next known one: Hugging Face's order, where the bytes of a
  // character do not end the wait.
  bool is_unknown_waiting = false;
  const auto push_waiting = [&] {
    const bool joins =
        fuse_unknown_ && symbols->size() > fuse_from && symbols->back() == unknown_id_;
    if (is_unknown_waiting && !joins) symbols->push_back(unknown_id_);
    is_unknown_waiting = false;
  };
  const auto push_symbol = [&](int32_t id) {
    if (id != kNoId) {
      push_waiting();
      symbols->push_back(id);
    } else if (unknown_id_ != kNoId) {
      if (!fuse_unknown_) push_waiting();
      is_unknown_waiting = true;
    }
  };
  if (alphabet_ == BpeModel::Alphabet::kBytes) {
    for (const char c : word) push_symbol(id_of_byte(c));
    return push_waiting();
  }
  while (!word.empty()) {
    const std::string_view character = word.substr(0, NextUtf8(word).num_bytes);
    word.remove_prefix(character.size());
    const auto found = characters_.find(character);
    const auto has_piece = [&](char c) { return id_of_byte(c) != kNoId; };
    if (found == characters_.end() && std::ranges::all_of(character, has_piece)) {
      for (const char c : character) symbols->push_back(id_of_byte(c));
    } else {
      push_symbol(found == characters_.end() ? kNoId : found->second);
    }
  }
  push_waiting();
}

bool BpeEncoder::Encode(std::string_view word, size_t fuse_from,
                        absl::FunctionRef<bool()> should_stop, std::vector<int32_t>* ids) const {
  const size_t begin = ids->size();
  AppendSymbols(word, fuse_from, ids);
  const std::span<int32_t> symbols = std::span(*ids).subspan(begin);
  const size_t num_ids =
      symbols.size() <= kShortWord ? MergeShort(symbols) : MergeLong(symbols, should_stop);
  if (num_ids == kStopped) return false;
  ids->resize(begin + num_ids);
  return true;
}

// Merges in place and returns how many symbols are left. No memory is allocated.
size_t BpeEncoder::MergeShort(std::span<int32_t> symbols) const {
  size_t size = symbols.size();
  // rules[i] merges symbols i and i + 1.
  std::array<Rule, kShortWord> rules{};
  const auto look_up = [&](size_t i) {
    const Rule* rule = Find(symbols[i], symbols[i + 1]);
    rules[i] = rule == nullptr ? Rule{.rank = kNoRank, .merged = kNoId} : *rule;
  };
  for (size_t i = 0; i + 1 < size; ++i) look_up(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (rules[i].rank < rules[best].rank) best = i;
    }
    if (rules[best].rank == kNoRank) break;
    symbols[best] = rules[best].merged;
    --size;
    for (size_t i = best + 1; i < size; ++i) {
      symbols[i] = symbols[i + 1];
      rules[i - 1] = rules[i];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < size) look_up(best);
  }
  return size;
}

// The same with a heap of candidates.
size_t BpeEncoder::MergeLong(std::span<int32_t> symbols,
                             absl::FunctionRef<bool()> should_stop) const {
  const size_t size = symbols.size();
  LSSAR_CHECK(size < std::numeric_limits<uint32_t>::max());
  const auto none = uint32_t(size);
  struct Links {
    uint32_t previous, next;
  };
  std::vector<Links> links(size);
  for (uint32_t i = 0; i < none; ++i) links[i] = {i == 0 ? none : i - 1, i + 1};

  // A pair that may be merged, unless one of its symbols has changed since it was queued: its rank
  // and the place of its left symbol, the least on top.
  std::vector<uint64_t> candidates;
  const auto candidate = [&](uint32_t left) -> uint64_t {
    const Rule* rule = Find(symbols[left], symbols[links[left].next]);
    return rule == nullptr ? 0 : (uint64_t(rule->rank) + 1) << 32 | left;  // 0: never merged
  };
  for (uint32_t i = 0; i + 1 < none; ++i) {
    if (i % kSymbolsPerPoll == 0 && should_stop()) return kStopped;
    if (const uint64_t queued = candidate(i); queued != 0) candidates.push_back(queued);
  }
  std::ranges::make_heap(candidates, std::ranges::greater());
  const auto consider = [&](uint32_t left) {
    if (left == none || links[left].next == none) return;
    const uint64_t queued = candidate(left);
    if (queued == 0) return;
    candidates.push_back(queued);
    std::ranges::push_heap(candidates, std::ranges::greater());
  };
  for (size_t num_taken = 0; !candidates.empty(); ++num_taken) {
    if (num_taken % kSymbolsPerPoll == 0 && should_stop()) return kStopped;
    std::ranges::pop_heap(candidates, std::ranges::greater());
    const uint64_t best = candidates.back();
    candidates.pop_back();
    const auto left = uint32_t(best);
    if (symbols[left] == kMergedAway || links[left].next == none) continue;
    const uint32_t right = links[left].next;
    const Rule* rule = Find(symbols[left], symbols[right]);
    if (rule == nullptr || uint64_t(rule->rank) + 1 != best >> 32) continue;
    symbols[left] = rule->merged;
    symbols[right] = kMergedAway;
    links[left].next = links[right].next;
    if (links[left].next != none) links[links[left].next].previous = left;
    consider(links[left].previous);
    consider(left);
  }
  return size_t(std::ranges::remove(symbols, kMergedAway).begin() - symbols.begin());
}

}  // namespace lssar

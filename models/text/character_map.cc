#include "models/text/character_map.h"

#include <algorithm>
#include <optional>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"

namespace lssar {
namespace {

constexpr size_t kMaxRuleBytes = 64;
constexpr size_t kMaxReplacementBytes = 256;

// A unit of a double array.
// Source  darts.h of darts-clone, DoubleArrayUnit
uint32_t LabelOf(uint32_t unit) { return unit & 0x8000'00FF; }
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7FFF'FFFF; }

uint32_t ReadLittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t(uint8_t(bytes[i])) << (8 * i);
  return value;
}

}  // namespace

absl::StatusOr<CharacterMap> CharacterMap::Parse(std::string_view blob) {
  CharacterMap map;
  if (blob.empty()) return map;
  const auto fault = [](std::string_view problem) {
    return absl::InvalidArgumentError(StrCat("precompiled_charsmap: ", problem));
  };
  if (blob.size() < 4) return fault(StrCat("has ", blob.size(), " bytes, must have at least 4"));
  const size_t array_bytes = ReadLittleEndian(blob);
  blob.remove_prefix(4);
  if (array_bytes == 0 || array_bytes % 4 != 0 || array_bytes > blob.size()) {
    return fault(StrCat("its array has ", array_bytes, " bytes, must have a multiple of 4 up to ",
                        blob.size()));
  }
  for (size_t at = 0; at < array_bytes; at += 4) {
    map.units_.push_back(ReadLittleEndian(blob.substr(at, 4)));
  }
  map.replacements_ = blob.substr(array_bytes);
  for (const absl::Status& status : {map.CheckReplacements(), map.CheckArray()}) {
    if (!status.ok()) return fault(StrCat(status.message()));
  }
  return map;
}

absl::Status CharacterMap::CheckReplacements() const {
  if (replacements_.empty() || replacements_.back() != '\0') {
    return absl::InvalidArgumentError("its replacements do not end with NUL");
  }
  if (const std::optional<size_t> at = FindInvalidUtf8(replacements_)) {
    return absl::InvalidArgumentError(StrCat("its replacements are not UTF-8 at byte ", *at));
  }
  for (size_t begin = 0; begin < replacements_.size();) {
    const size_t end = replacements_.find('\0', begin);
    if (end - begin > kMaxReplacementBytes) {
      return absl::InvalidArgumentError(StrCat("a replacement has ", end - begin,
                                               " bytes, must have at most ", kMaxReplacementBytes));
    }
    begin = end + 1;
  }
  return absl::OkStatus();
}

// A state of the walk is a base: the byte c of a text leads to the unit at base ^ c, if that has
// the label c. Walks depth first; the rest of a walk from a base is bounded, so a base on the path
// to itself is refused.
absl::Status CharacterMap::CheckArray() {
  constexpr uint8_t kUnseen = 0, kOnPath = 1, kFirstDone = 2;  // kFirstDone + bytes of its rules
  std::vector<uint8_t> states(units_.size(), kUnseen);
  struct Frame {
    uint32_t base;
    uint32_t next = 0;   // the next byte to try
    uint8_t height = 0;  // bytes of the longest rule from here
  };
  const auto check_base = [&](uint32_t base) {
    if ((base | 0xFF) < units_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        StrCat("unit ", base, " is outside of its array of ", units_.size()));
  };
  const uint32_t root = OffsetOf(units_[0]);
  RETURN_IF_ERROR(check_base(root));
  std::vector<Frame> path{{.base = root}};
  states[root] = kOnPath;
  while (!path.empty()) {
    Frame& frame = path.back();
    if (frame.next == 256) {
      const uint8_t height = frame.height;
      states[frame.base] = uint8_t(kFirstDone + height);
      path.pop_back();
      if (!path.empty()) path.back().height = std::max(path.back().height, uint8_t(height + 1));
      continue;
    }
    const uint32_t label = frame.next++;
    const uint32_t unit = units_[frame.base ^ label];
    if (LabelOf(unit) != label) continue;
    const uint32_t child = frame.base ^ label ^ OffsetOf(unit);
    RETURN_IF_ERROR(check_base(child));
    if (HasValue(unit)) {
      const uint32_t value = ValueOf(units_[child]);
      if (value >= replacements_.size() || (uint8_t(replacements_[value]) & 0xC0) == 0x80) {
        return absl::InvalidArgumentError(StrCat("the replacement at ", value,
                                                 " is not a text in its ", replacements_.size(),
                                                 " bytes of replacements"));
      }
    }
    if (label == ' ' && path.size() > 1) may_cover_space_ = true;
    const uint8_t state = states[child];
    if (state == kOnPath) return absl::InvalidArgumentError("its array has an endless rule");
    const size_t height = state == kUnseen ? 0 : size_t(state - kFirstDone);
    if (path.size() + height > kMaxRuleBytes) {
      return absl::InvalidArgumentError(StrCat("a rule has more than ", kMaxRuleBytes, " bytes"));
    }
    if (state == kUnseen) {
      states[child] = kOnPath;
      path.push_back({.base = child});
    } else {
      frame.height = std::max(frame.height, uint8_t(height + 1));
    }
  }
  // A rule for the space alone, or for a space and what is behind it.
  const std::string_view letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  const auto has_rule = [&](std::string_view text) { return Match(text).num_bytes > 0; };
  may_cover_space_ =
      may_cover_space_ || std::ranges::any_of(letters, [&](char letter) {
        return has_rule(std::string{' ', letter}) ||
               Match(std::string(1, letter)).replacement.find(' ') != std::string_view::npos;
      });
  return absl::OkStatus();
}

CharacterMap::Rule CharacterMap::Match(std::string_view text) const {
  if (units_.empty()) return {};
  Rule rule;
  uint32_t base = OffsetOf(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint32_t label = uint8_t(text[i]);
    const uint32_t unit = units_[base ^ label];
    if (LabelOf(unit) != label) break;
    base ^= label ^ OffsetOf(unit);
    if (HasValue(unit)) {
      rule = {.num_bytes = i + 1, .replacement = &replacements_[ValueOf(units_[base])]};
    }
  }
  return rule;
}

}  // namespace lssar

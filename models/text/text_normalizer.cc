#include "models/text/text_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/tokenizer.h"

namespace lssar {
namespace {

constexpr size_t kBytesPerPoll = 4096;

bool IsAscii(char c) { return uint8_t(c) < 0x80; }

int CombiningClass(utf8proc_int32_t character) {
  return utf8proc_get_property(character)->combining_class;
}

// utf8proc_decompose orders combining marks in quadratic time, so this orders them itself.
class Form {
 public:
  Form(bool is_composed, bool is_compatible)
      : decompose_(utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                     (is_compatible ? UTF8PROC_COMPAT : 0))),
        is_composed_(is_composed) {}

  // Appends the form of `text`. Returns false if should_stop did.
  bool Append(std::string_view text, absl::FunctionRef<bool()> should_stop, std::string* out) {
    characters_.clear();
    size_t polled_at = 0;
    for (size_t at = 0; at < text.size();) {
      if (at >= polled_at) {
        if (should_stop()) return false;
        polled_at = at + kBytesPerPoll;
      }
      utf8proc_int32_t character = 0;
      const auto num_bytes =
          utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                           utf8proc_ssize_t(text.size() - at), &character);
      LSSAR_CHECK(num_bytes > 0);
      at += size_t(num_bytes);
      std::array<utf8proc_int32_t, 64> parts{};  // Unicode's longest decomposition has 18
      const auto num_parts =
          utf8proc_decompose_char(character, parts.data(), parts.size(), decompose_, nullptr);
      LSSAR_CHECK(num_parts >= 0 && size_t(num_parts) <= parts.size());
      characters_.insert(characters_.end(), parts.begin(), parts.begin() + num_parts);
    }
    OrderMarks();
    if (is_composed_) {
      const auto size =
          utf8proc_normalize_utf32(characters_.data(), utf8proc_ssize_t(characters_.size()),
                                   utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
      LSSAR_CHECK(size >= 0);
      characters_.resize(size_t(size));
    }
    for (const utf8proc_int32_t character : characters_) {
      std::array<utf8proc_uint8_t, 4> bytes{};
      const auto size = utf8proc_encode_char(character, bytes.data());
      out->append(reinterpret_cast<const char*>(bytes.data()), size_t(size));
    }
    return true;
  }

 private:
  // Sorts each run of characters with a combining class by that class.
  void OrderMarks() {
    for (auto at = characters_.begin(); at != characters_.end();) {
      if (CombiningClass(*at) == 0) {
        ++at;
        continue;
      }
      const auto end =
          std::find_if(at, characters_.end(), [](auto c) { return CombiningClass(c) == 0; });
      std::stable_sort(at, end,
                       [](auto a, auto b) { return CombiningClass(a) < CombiningClass(b); });
      at = end;
    }
  }

  const utf8proc_option_t decompose_;
  const bool is_composed_;
  std::vector<utf8proc_int32_t> characters_;
};

// No form changes ASCII, and an ASCII character combines with none before it: the form of a text is
// that of its stretches, each an ASCII character and what is not ASCII behind it.
bool ToForm(bool is_composed, bool is_compatible, absl::FunctionRef<bool()> should_stop,
            std::string* text) {
  if (std::ranges::all_of(*text, IsAscii)) return true;
  Form form(is_composed, is_compatible);
  std::string out;
  out.reserve(text->size());
  const std::string_view view = *text;
  for (size_t at = 0; at < view.size();) {
    const size_t other = size_t(std::ranges::find_if_not(view.substr(at), IsAscii) - view.begin());
    const size_t begin = std::max(at, other - std::min<size_t>(other, 1));
    const bool has_other = other < view.size();
    out += view.substr(at, (has_other ? begin : other) - at);
    if (!has_other) break;
    const size_t end = size_t(std::ranges::find_if(view.substr(other), IsAscii) - view.begin());
    if (!form.Append(view.substr(begin, end - begin), should_stop, &out)) return false;
    at = end;
  }
  *text = std::move(out);
  return true;
}

// Ends when the text has more than `max_bytes`. Returns false if should_stop did.
bool ReplaceAll(std::string_view from, std::string_view to, size_t max_bytes,
                absl::FunctionRef<bool()> should_stop, std::string* text) {
  LSSAR_CHECK(!from.empty());
  const std::string_view view = *text;
  std::string out;
  size_t done = 0;  // bytes of `text` that `out` has, replaced
  for (size_t at = 0, polled_at = 0; at < view.size() && out.size() <= max_bytes;) {
    if (at >= polled_at) {
      if (should_stop()) return false;
      polled_at = at + kBytesPerPoll;
    }
    // Those that begin before the next poll.
    const size_t next = view.substr(at, polled_at - at + from.size() - 1).find(from);
    if (next == view.npos) {
      at = polled_at;
      continue;
    }
    out.append(view, done, at + next - done).append(to);
    done = at = at + next + from.size();
  }
  if (done > 0) *text = out.append(view, done);
  return true;
}

}  // namespace

absl::Status TooLongWhenNormalized(size_t num_bytes) {
  return absl::InvalidArgumentError(StrCat("the tokenizer's normalizer makes more than ",
                                           MaxNormalizedBytes(num_bytes), " bytes of a text of ",
                                           num_bytes));
}

absl::Status NormalizeText(const std::vector<NormalizerStep>& steps,
                           absl::FunctionRef<bool()> should_stop, std::string* text) {
  using Kind = NormalizerStep::Kind;
  const size_t num_bytes = text->size();
  for (const NormalizerStep& step : steps) {
    if (should_stop()) return EncodingStopped();
    switch (step.kind) {
      case Kind::kNfc:
      case Kind::kNfd:
      case Kind::kNfkc:
      case Kind::kNfkd:
        if (!ToForm(step.kind == Kind::kNfc || step.kind == Kind::kNfkc,
                    step.kind == Kind::kNfkc || step.kind == Kind::kNfkd, should_stop, text)) {
          return EncodingStopped();
        }
        break;
      case Kind::kPrepend:
        if (!text->empty()) text->insert(0, step.to);
        break;
      case Kind::kReplace:
        if (!ReplaceAll(step.from, step.to, MaxNormalizedBytes(num_bytes), should_stop, text)) {
          return EncodingStopped();
        }
        break;
    }
    if (text->size() > MaxNormalizedBytes(num_bytes)) return TooLongWhenNormalized(num_bytes);
  }
  return absl::OkStatus();
}

}  // namespace lssar

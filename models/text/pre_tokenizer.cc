#include "models/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/utf8.h"
#include "models/text/tokenizer.h"

namespace lssar {
namespace {

using Kind = PreTokenizerStep::Kind;

constexpr std::string_view kDigitRunsPattern = R"(\p{N}+)";
constexpr std::string_view kDigitPattern = R"(\p{N})";

// Unicode's White_Space; PCRE2's \s is not exactly that.
constexpr std::string_view kSpaces =
    R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

constexpr std::array<std::string_view, 37> kCategories{
    "C",  "Cc", "Cf", "Cn", "Co", "Cs", "L",  "Ll", "Lm", "Lo", "Lt", "Lu", "M",
    "Mc", "Me", "Mn", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Pe", "Pf", "Pi",
    "Po", "Ps", "S",  "Sc", "Sk", "Sm", "So", "Z",  "Zl", "Zp", "Zs"};

// Rewrites a tokenizer's pattern for PCRE2. Tokenizers run it on Oniguruma or Rust's regex, which
// agree with PCRE2 on the subset that this accepts.
class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    while (at_ < pattern_.size()) {
      RETURN_IF_ERROR(pattern_[at_] == '\\' ? TranslateEscape()
                      : in_class_           ? TranslateInClass()
                                            : TranslateOutside());
    }
    return std::move(out_);
  }

 private:
  absl::Status RejectPart(std::string_view what) const {
    return absl::InvalidArgumentError(
        StrCat("pattern has ", what, " at byte ", at_, ", which is not supported"));
  }
  char Peek(size_t offset) const {
    return at_ + offset < pattern_.size() ? pattern_[at_ + offset] : '\0';
  }
  void Copy(size_t num_bytes) {
    out_ += pattern_.substr(at_, num_bytes);
    at_ += num_bytes;
  }
  void Put(std::string_view translation, size_t num_bytes) {
    out_ += translation;
    at_ += num_bytes;
  }

  absl::Status TranslateEscape() {
    const char c = Peek(1);
    switch (c) {
      case 's':
        Put(in_class_ ? std::string(kSpaces) : StrCat("[", kSpaces, "]"), 2);
        return absl::OkStatus();
      case 'S':
        if (in_class_) return RejectPart("\\S in a class");
        Put(StrCat("[^", kSpaces, "]"), 2);
        return absl::OkStatus();
      case 'd': Put("\\p{Nd}", 2); return absl::OkStatus();
      case 'r':
      case 'n':
      case 't': Copy(2); return absl::OkStatus();
      case 'p':
      case 'P': {
        const size_t end = pattern_.find('}', at_);
        if (Peek(2) != '{' || end == pattern_.npos)
          return RejectPart(StrCat("\\", std::string(1, c)));
        const std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
        if (std::ranges::find(kCategories, name) == kCategories.end()) {
          return RejectPart(StrCat("the property ", name));
        }
        Copy(end + 1 - at_);
        return absl::OkStatus();
      }
      default: break;
    }
    if (uint8_t(c) <= ' ' || uint8_t(c) >= 0x7F || std::isalnum(uint8_t(c)) != 0) {
      return RejectPart(StrCat("the escape \\", std::string(1, c)));
    }
    Copy(2);
    return absl::OkStatus();
  }

  absl::Status TranslateInClass() {
    const char c = Peek(0);
    RETURN_IF_ERROR(CheckFolding());
    if (c == '[') return RejectPart("a class in a class");
    if (c == '&' && Peek(1) == '&') return RejectPart("&&");
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  // Without case some texts of several characters are one: "ss" and "ß". Oniguruma matches those
  // too, PCRE2 does not.
  absl::Status CheckFolding() const {
    if (folds_.empty() || !folds_.back()) return absl::OkStatus();
    if (uint8_t(Peek(0)) >= 0x80) return RejectPart("a character beyond ASCII in (?i:)");
    if (in_class_) return absl::OkStatus();
    const std::string pair{char(std::tolower(Peek(0))), char(std::tolower(Peek(1)))};
    for (const std::string_view folded : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair == folded) return RejectPart(StrCat(Quote(pattern_.substr(at_, 2)), " in (?i:)"));
    }
    return absl::OkStatus();
  }

  absl::Status TranslateOutside() {
    RETURN_IF_ERROR(CheckFolding());
    switch (Peek(0)) {
      case '.':
      case '^':
      case '$': return RejectPart(StrCat("\"", pattern_.substr(at_, 1), "\""));
      case '[': {
        in_class_ = true;
        const size_t num_bytes = Peek(1) == '^' ? 2 : 1;
        if (Peek(num_bytes) == ']') return RejectPart("an empty class");
        Copy(num_bytes);
        return absl::OkStatus();
      }
      case '(':
        if (Peek(1) == '*') return RejectPart("\"(*\"");
        folds_.push_back((!folds_.empty() && folds_.back()) ||
                         pattern_.substr(at_).starts_with("(?i:"));
        if (Peek(1) != '?') break;
        for (const std::string_view group : {"(?:", "(?i:", "(?!", "(?=", "(?>"}) {
          if (!pattern_.substr(at_).starts_with(group)) continue;
          Copy(group.size());
          return absl::OkStatus();
        }
        return RejectPart(StrCat("the group ", pattern_.substr(at_, 3)));
      case ')':
        if (!folds_.empty()) folds_.pop_back();
        break;
      case '{':
        // Up to n in Oniguruma; in PCRE2 its version decides.
        if (Peek(1) == ',') return RejectPart("\"{,\"");
        break;
      case '}':
        // A repeat of a repeat in Oniguruma, possessive in PCRE2.
        if (Peek(1) == '+') return RejectPart("\"}+\"");
        // n or none in Oniguruma, n in PCRE2. {n,m}? is lazy in both.
        if (Peek(1) == '?' && EndsExactRepeat()) return RejectPart("\"{n}?\"");
        break;
      default: break;
    }
    Copy(1);
    return absl::OkStatus();
  }

  // The brace here closes "{n}".
  bool EndsExactRepeat() const {
    const std::string_view before = pattern_.substr(0, at_);
    const size_t open = before.rfind('{');
    if (open == before.npos || open + 1 == before.size()) return false;
    return std::ranges::all_of(before.substr(open + 1),
                               [](unsigned char c) { return std::isdigit(c) != 0; });
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::vector<bool> folds_;  // of each open group: letters match without case
  std::string out_;
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

// The patterns that end a word between a letter and a space, and whose words do not depend on what
// is on the other side.
bool IsKnownToSplitAtSpaces(std::string_view pattern) {
  return pattern == kGpt2Pattern || pattern == kCl100kPattern || pattern == kQwen2Pattern ||
         pattern == kO200kPattern;
}

// Patterns that split any text in linear time. Their matches are not watched, which takes up to
// twice a split's time.
bool IsKnownToBeFast(std::string_view pattern) {
  return IsKnownToSplitAtSpaces(pattern) || pattern == kDigitRunsPattern ||
         pattern == kDigitPattern;
}

// Ends the matches of a pattern that take too long. PCRE2's own limit does not: it counts anew at
// each place where a match may begin, and not the characters that one item of the pattern reads.
// PCRE2 calls OnItem before each item (PCRE2_AUTO_CALLOUT).
class MatchWatch {
 public:
  // For the matches in one text. The work is a call, and kBytesPerStep that PCRE2 went forth or
  // back between two calls, what an item has read: some 10 ns each.
  MatchWatch(size_t text_bytes, absl::FunctionRef<bool()> should_stop)
      : max_steps_(kMinSteps + kStepsPerByte * text_bytes),
        should_stop_(should_stop),
        context_(pcre2_match_context_create(nullptr)) {
    pcre2_set_callout(context_.get(), OnItem, this);
  }
  MatchWatch(const MatchWatch&) = delete;
  MatchWatch& operator=(const MatchWatch&) = delete;

  pcre2_match_context* Context() const { return context_.get(); }
  // Why pcre2_match returned PCRE2_ERROR_CALLOUT: should_stop returned true, or else the work.
  bool IsStopped() const { return is_stopped_; }

 private:
  static constexpr size_t kStepsPerPoll = 256;
  static constexpr size_t kBytesPerStep = 256;
  // Patterns of tokenizers take 2 to 4 calls a byte.
  static constexpr size_t kStepsPerByte = 1024;
  static constexpr size_t kMinSteps = size_t{1} << 22;

  static int OnItem(pcre2_callout_block* block, void* watch) {
    return static_cast<MatchWatch*>(watch)->Step(block->current_position);
  }

  int Step(size_t at) {
    const size_t distance = at > last_at_ ? at - last_at_ : last_at_ - at;
    last_at_ = at;
    num_steps_ += 1 + distance / kBytesPerStep;
    if (num_steps_ < polled_at_) return 0;
    polled_at_ = num_steps_ + kStepsPerPoll;
    is_stopped_ = should_stop_();
    return is_stopped_ || num_steps_ > max_steps_ ? PCRE2_ERROR_CALLOUT : 0;
  }

  const size_t max_steps_;
  const absl::FunctionRef<bool()> should_stop_;
  const std::unique_ptr<pcre2_match_context, FreeContext> context_;
  size_t last_at_ = 0;
  size_t num_steps_ = 0, polled_at_ = 0;
  bool is_stopped_ = false;
};

absl::StatusOr<Code> Compile(std::string_view pattern) {
  ASSIGN_OR_RETURN(const std::string translated, PatternTranslator(pattern).Translate());
  int error = 0;
  PCRE2_SIZE at = 0;
  Code code(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | (IsKnownToBeFast(pattern) ? 0 : PCRE2_AUTO_CALLOUT),
      &error, &at, nullptr));
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    return absl::InvalidArgumentError(
        StrCat("pattern is not a regular expression: ",
               std::string_view(reinterpret_cast<const char*>(message.data()))));
  }
  uint32_t may_be_empty = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MATCHEMPTY, &may_be_empty);
  if (may_be_empty != 0) return absl::InvalidArgumentError("pattern may match nothing");
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without a JIT the interpreter runs
  return code;
}

// What GPT-2's pattern tells apart. Only ASCII characters have a class here.
enum class CharClass : uint8_t { kLetter, kDigit, kSpace, kOther, kNotAscii };

constexpr std::array<CharClass, 256> MakeClasses() {
  std::array<CharClass, 256> classes{};
  for (int c = 0; c < 256; ++c) {
    CharClass& it = classes[size_t(c)];
    it = CharClass::kOther;
    if (c >= 0x80) it = CharClass::kNotAscii;
    if (c >= '0' && c <= '9') it = CharClass::kDigit;
    if (c == ' ' || (c >= '\t' && c <= '\r')) it = CharClass::kSpace;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) it = CharClass::kLetter;
  }
  return classes;
}
constexpr std::array<CharClass, 256> kClasses = MakeClasses();

CharClass ClassAt(std::string_view text, size_t at) { return kClasses[uint8_t(text[at])]; }

// The end of the run of characters of `wanted` from `at` on.
size_t RunEnd(std::string_view text, size_t at, CharClass wanted) {
  while (at < text.size() && ClassAt(text, at) == wanted) ++at;
  return at;
}

// The end of the match of kGpt2Pattern at `begin`, where ASCII characters decide it; 0: they do
// not.
size_t MatchGpt2InAscii(std::string_view text, size_t begin) {
  const std::string_view rest = text.substr(begin);
  if (rest[0] == '\'' && rest.size() > 1) {
    const char c = rest[1];
    if (c == 's' || c == 't' || c == 'm' || c == 'd') return begin + 2;
    const std::string_view two = rest.substr(1, 2);
    if (two == "re" || two == "ve" || two == "ll") return begin + 3;
  }
  const size_t at = rest[0] == ' ' && rest.size() > 1 ? begin + 1 : begin;
  CharClass wanted = ClassAt(text, at);
  if (wanted == CharClass::kNotAscii) return 0;
  if (wanted != CharClass::kSpace) {
    const size_t end = RunEnd(text, at, wanted);
    return end < text.size() && ClassAt(text, end) == CharClass::kNotAscii ? 0 : end;
  }
  // Spaces: the last one belongs to what follows, unless it is alone or the text ends.
  const size_t end = RunEnd(text, begin, CharClass::kSpace);
  if (end == text.size()) return end;
  if (ClassAt(text, end) == CharClass::kNotAscii) return 0;
  return end - begin > 1 ? end - 1 : end;
}

}  // namespace

// One step, ready to run.
class PreTokenizer::Splitter {
 public:
  static absl::StatusOr<std::unique_ptr<Splitter>> Create(const PreTokenizerStep& step) {
    auto splitter = std::make_unique<Splitter>();
    splitter->kind_ = step.kind;
    std::string_view pattern;
    switch (step.kind) {
      case Kind::kPattern: pattern = step.pattern; break;
      case Kind::kDigitRuns: pattern = kDigitRunsPattern; break;
      case Kind::kSingleDigits: pattern = kDigitPattern; break;
      default: return splitter;
    }
    ASSIGN_OR_RETURN(splitter->code_, Compile(pattern));
    splitter->is_watched_ = !IsKnownToBeFast(pattern);
    splitter->is_gpt2_ = pattern == kGpt2Pattern;
    splitter->splits_at_spaces_ = IsKnownToSplitAtSpaces(pattern);
    return splitter;
  }

  bool SplitsAtSpaces() const {
    return splits_at_spaces_ || kind_ == Kind::kSplitBeforeSpace ||
           kind_ == Kind::kSplitBeforeSpaces;
  }
  bool MayLookAcrossSpaces() const { return kind_ == Kind::kPattern && !splits_at_spaces_; }

  absl::Status Split(std::string_view text, bool begins_text, absl::FunctionRef<bool()> should_stop,
                     absl::FunctionRef<absl::Status(std::string_view)> on_word) const {
    switch (kind_) {
      case Kind::kPattern:
      case Kind::kDigitRuns:
      case Kind::kSingleDigits: return SplitByPattern(text, should_stop, on_word);
      case Kind::kAddSpace: return on_word(text.starts_with(' ') ? text : StrCat(" ", text));
      case Kind::kEscapeSpaces: return on_word(Escape(text));
      case Kind::kPrefixText:
        if (!begins_text) return on_word(text);
        [[fallthrough]];
      case Kind::kPrefixAll:
        return on_word(text.starts_with(kSpaceSymbol) ? text : StrCat(kSpaceSymbol, text));
      case Kind::kSplitBeforeSpace:
      case Kind::kSplitBeforeSpaces: return SplitBeforeSpaces(text, should_stop, on_word);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status SplitByPattern(std::string_view text, absl::FunctionRef<bool()> should_stop,
                              absl::FunctionRef<absl::Status(std::string_view)> on_word) const {
    const std::unique_ptr<pcre2_match_data, FreeMatch> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    std::optional<MatchWatch> watch;
    if (is_watched_) watch.emplace(text.size(), should_stop);
    size_t polled_at = 0;
    for (size_t begin = 0; begin < text.size();) {
      if (begin >= polled_at) {
        if (should_stop()) return EncodingStopped();
        polled_at = begin + Tokenizer::kEncodePollBytes;
      }
      size_t end = is_gpt2_ ? MatchGpt2InAscii(text, begin) : 0;
      if (end == 0) {
        const int found = pcre2_match(code_.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK,
                                      match.get(), watch ? watch->Context() : nullptr);
        if (found == PCRE2_ERROR_NOMATCH) return on_word(text.substr(begin));
        if (watch && watch->IsStopped()) return EncodingStopped();
        if (found < 0) {  // the watch's limit, or PCRE2's of steps or of memory
          return absl::InvalidArgumentError(StrCat(
              "text cannot be split into words at byte ", begin,
              ": the tokenizer's pattern takes too many steps there (PCRE2 error ", found, ")"));
        }
        const PCRE2_SIZE* const span = pcre2_get_ovector_pointer(match.get());
        if (span[0] > begin) RETURN_IF_ERROR(on_word(text.substr(begin, span[0] - begin)));
        begin = span[0];
        end = span[1];
      }
      RETURN_IF_ERROR(on_word(text.substr(begin, end - begin)));
      begin = end;
    }
    return absl::OkStatus();
  }

  static std::string Escape(std::string_view text) {
    std::string escaped;
    escaped.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
      if (c == ' ') {
        escaped += kSpaceSymbol;
      } else {
        escaped += c;
      }
    }
    return escaped;
  }

  absl::Status SplitBeforeSpaces(std::string_view text, absl::FunctionRef<bool()> should_stop,
                                 absl::FunctionRef<absl::Status(std::string_view)> on_word) const {
    size_t polled_at = 0;
    for (size_t begin = 0; begin < text.size();) {
      if (begin >= polled_at) {
        if (should_stop()) return EncodingStopped();
        polled_at = begin + Tokenizer::kEncodePollBytes;
      }
      size_t at = begin;
      if (text.substr(at).starts_with(kSpaceSymbol)) at += kSpaceSymbol.size();
      while (kind_ == Kind::kSplitBeforeSpaces && text.substr(at).starts_with(kSpaceSymbol)) {
        at += kSpaceSymbol.size();
      }
      const size_t end = std::min(text.find(kSpaceSymbol, at), text.size());
      RETURN_IF_ERROR(on_word(text.substr(begin, end - begin)));
      begin = end;
    }
    return absl::OkStatus();
  }

  Kind kind_ = Kind::kPattern;
  Code code_;
  bool is_watched_ = false;
  bool is_gpt2_ = false;
  bool splits_at_spaces_ = false;
};

PreTokenizer::PreTokenizer(std::vector<std::unique_ptr<Splitter>> splitters)
    : splitters_(std::move(splitters)) {}
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

absl::StatusOr<PreTokenizer> PreTokenizer::Create(std::vector<PreTokenizerStep> steps) {
  std::vector<std::unique_ptr<Splitter>> splitters;
  for (const PreTokenizerStep& step : steps) {
    ASSIGN_OR_RETURN(auto splitter, Splitter::Create(step));
    splitters.push_back(std::move(splitter));
  }
  return PreTokenizer(std::move(splitters));
}

absl::Status PreTokenizer::Split(std::string_view text, bool begins_text,
                                 absl::FunctionRef<bool()> should_stop,
                                 absl::FunctionRef<bool(std::string_view)> on_word) const {
  return SplitFrom(0, text, begins_text, should_stop, on_word);
}

absl::Status PreTokenizer::SplitFrom(size_t splitter, std::string_view text, bool begins_text,
                                     absl::FunctionRef<bool()> should_stop,
                                     absl::FunctionRef<bool(std::string_view)> on_word) const {
  if (text.empty()) return absl::OkStatus();
  if (splitter == splitters_.size()) return on_word(text) ? absl::OkStatus() : EncodingStopped();
  bool is_first = begins_text;
  return splitters_[splitter]->Split(text, begins_text, should_stop, [&](std::string_view word) {
    return SplitFrom(splitter + 1, word, std::exchange(is_first, false), should_stop, on_word);
  });
}

bool PreTokenizer::SplitsAtSpaces() const {
  const auto splits = [](const auto& step) { return step->SplitsAtSpaces(); };
  const auto may_look_across = [](const auto& step) { return step->MayLookAcrossSpaces(); };
  return std::ranges::any_of(splitters_, splits) &&
         std::ranges::none_of(splitters_, may_look_across);
}

}  // namespace lssar

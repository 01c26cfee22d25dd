#include "models/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string>

#include "kernels/check.h"
#include "kernels/str_cat.h"

namespace lssar {
namespace {

// Unicode's White_Space, which the library's \s is not quite.
#define LSSAR_SPACES \
  R"(\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"

// Source  GPT-2's encoder.py, whose \s is written out here. Every character is part of some match.
constexpr char kWord[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" LSSAR_SPACES
    R"(]+|[)" LSSAR_SPACES R"(]+(?![^)" LSSAR_SPACES R"(])|[)" LSSAR_SPACES R"(]+)";

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};

}  // namespace

struct PreTokenizer::Pattern {
  Pattern() {
    int error = 0;
    PCRE2_SIZE at = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kWord), PCRE2_ZERO_TERMINATED, PCRE2_UTF,
                         &error, &at, nullptr);
    LSSAR_CHECK(code != nullptr);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is none, the interpreter runs
  }
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  pcre2_code* code = nullptr;
};

PreTokenizer::PreTokenizer() : pattern_(std::make_unique<Pattern>()) {}
PreTokenizer::~PreTokenizer() = default;

absl::Status PreTokenizer::Split(std::string_view text,
                                 absl::FunctionRef<void(std::string_view)> take) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(pattern_->code, nullptr));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  for (size_t begin = 0; begin < text.size();) {
    const int code = pcre2_match(pattern_->code, subject, text.size(), begin,
                                 PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, match.get(), nullptr);
    if (code < 0) {
      return absl::InternalError(
          StrCat("text cannot be cut into words at byte ", begin, ": PCRE2 error ", code));
    }
    const size_t end = pcre2_get_ovector_pointer(match.get())[1];
    take(text.substr(begin, end - begin));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace lssar

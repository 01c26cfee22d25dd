#include "models/text/template_parser.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/white_space.h"

namespace lssar {
namespace {

// "3:14: PROBLEM": line and column of byte `at`, both from 1.
absl::Status TemplateError(std::string_view source, size_t at, std::string_view problem) {
  const std::string_view before = source.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return absl::InvalidArgumentError(StrCat(line, ":", column, ": ", problem));
}

enum class TokenKind : uint8_t {
  kText,        // outside of tags; `text` is printed
  kOpenPrint,   // {{
  kClosePrint,  // }}
  kOpenBlock,   // {%
  kCloseBlock,  // %}
  kName,        // also keywords
  kString,      // `text` is its value
  kSign,        // ( ) [ ] . | + == != =, or any other character
  kEnd,
};

struct TemplateToken {
  TokenKind kind = TokenKind::kEnd;
  std::string text = {};
  size_t at = 0;  // byte offset in the template
};

// Splits a template into text and the tokens of its tags, with the whitespace rules that
// transformers gives Jinja (trim_blocks, lstrip_blocks): the newline after a block tag, the blanks
// before a block tag that is first on its line, and the template's last newline are removed.
class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<TemplateToken>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      LexText(tag);
      if (tag == source_.size()) break;
      at_ = tag;
      RETURN_IF_ERROR(source_[tag + 1] == '#' ? SkipComment() : LexTag());
    }
    tokens_.push_back({.kind = TokenKind::kEnd, .at = source_.size()});
    return std::move(tokens_);
  }

 private:
  size_t FindTag() const {
    for (size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' &&
          (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) {
        return i;
      }
    }
    return source_.size();
  }

  // Emits the text up to the tag at `end`, without the whitespace that the two tags remove.
  void LexText(size_t end) {
    std::string_view text = source_.substr(at_, end - at_);
    const size_t text_at = at_;
    if (end == source_.size()) {
      if (text.ends_with('\n')) text.remove_suffix(1);
    } else if (source_.substr(end + 2).starts_with('-')) {
      text = TrimRight(text);
    } else if (source_[end + 1] != '{' && IsFirstOnLine(end)) {
      text = text.substr(0, text.rfind('\n') + 1);
    }
    if (strip_left_) text = TrimLeft(text);
    if (drop_newline_ && text.starts_with('\n')) text.remove_prefix(1);
    if (!text.empty()) {
      tokens_.push_back({.kind = TokenKind::kText, .text = std::string(text), .at = text_at});
    }
  }

  // White space alone is before the tag on its line, as jinja2's lstrip_blocks has it.
  bool IsFirstOnLine(size_t tag) const {
    const size_t num_bytes = TrimRight(source_.substr(0, tag)).size();
    return num_bytes == 0 || source_.substr(num_bytes, tag - num_bytes).find('\n') != source_.npos;
  }

  // Records what the tag that just ended removes from the text after it.
  void EndTag(bool has_dash, bool is_block) {
    strip_left_ = has_dash;
    drop_newline_ = is_block && !has_dash;
  }

  absl::Status SkipComment() {
    const size_t close = source_.find("#}", at_ + 2);
    if (close == std::string_view::npos) {
      return TemplateError(source_, at_, "comment {# does not end");
    }
    // The dash of "{#-#}" is the beginning's.
    EndTag(source_[close - 1] == '-' && close - 1 > at_ + 2, /*is_block=*/true);
    at_ = close + 2;
    return absl::OkStatus();
  }

  absl::Status LexTag() {
    const size_t open = at_;
    const bool is_block = source_[at_ + 1] == '%';
    const std::string_view close = is_block ? "%}" : "}}";
    tokens_.push_back(
        {.kind = is_block ? TokenKind::kOpenBlock : TokenKind::kOpenPrint, .at = at_});
    at_ += 2;
    if (Rest().starts_with("-")) ++at_;
    while (at_ < source_.size()) {
      const bool has_dash = Rest().starts_with("-");
      if (Rest().substr(has_dash ? 1 : 0).starts_with(close)) {
        tokens_.push_back(
            {.kind = is_block ? TokenKind::kCloseBlock : TokenKind::kClosePrint, .at = at_});
        at_ += close.size() + (has_dash ? 1 : 0);
        EndTag(has_dash, is_block);
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(LexToken());
    }
    return TemplateError(source_, open, StrCat("tag does not end with ", close));
  }

  absl::Status LexToken() {
    const char c = source_[at_];
    if (const size_t blank = Rest().size() - TrimLeft(Rest()).size(); blank > 0) {
      at_ += blank;
      return absl::OkStatus();
    }
    if (c == '\'' || c == '"') return LexString(c);
    TemplateToken token{.kind = TokenKind::kSign, .at = at_};
    size_t length = 1;
    const auto is_name = [](char x) {
      return (x >= 'a' && x <= 'z') || (x >= 'A' && x <= 'Z') || (x >= '0' && x <= '9') || x == '_';
    };
    if (is_name(c)) {
      token.kind = TokenKind::kName;
      while (length < Rest().size() && is_name(Rest()[length])) ++length;
    } else if (Rest().starts_with("==") || Rest().starts_with("!=")) {
      length = 2;
    }
    token.text = std::string(Rest().substr(0, length));
    at_ += length;
    tokens_.push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status LexString(char quote) {
    TemplateToken token{.kind = TokenKind::kString, .at = at_};
    for (++at_; at_ < source_.size(); ++at_) {
      const char c = source_[at_];
      if (c == quote) {
        ++at_;
        tokens_.push_back(std::move(token));
        return absl::OkStatus();
      }
      if (c != '\\') {
        token.text += c;
        continue;
      }
      if (++at_ == source_.size()) break;
      constexpr std::string_view kEscapes = "nrt\\'\"", kMeaning = "\n\r\t\\'\"";
      const size_t escape = kEscapes.find(source_[at_]);
      if (escape == std::string_view::npos) {
        return TemplateError(source_, at_ - 1,
                             StrCat("found \\", source_.substr(at_, 1),
                                    "; the escapes in strings are \\n \\r \\t \\\\ \\' \\\""));
      }
      token.text += kMeaning[escape];
    }
    return TemplateError(source_, token.at, "string does not end");
  }

  std::string_view Rest() const { return source_.substr(at_); }

  std::string_view source_;
  size_t at_ = 0;
  bool strip_left_ = false;
  bool drop_newline_ = false;
  std::vector<TemplateToken> tokens_;
};

constexpr std::string_view NameOf(TemplateType type) {
  return type == TemplateType::kText ? "text" : "a boolean";
}

// Recursive descent. The first error is kept and moves the cursor to the end, so that every loop
// ends; results after it are not used.
class Parser {
 public:
  Parser(std::string_view source, std::vector<TemplateToken> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

  absl::StatusOr<std::vector<TemplateNode>> Run() {
    std::vector<TemplateNode> nodes = ParseNodes();
    if (Peek().kind != TokenKind::kEnd) FailHere("found a block that closes nothing");
    RETURN_IF_ERROR(status_);
    return nodes;
  }

 private:
  // Parses up to the end, or up to a block tag that belongs to the enclosing block.
  std::vector<TemplateNode> ParseNodes() {
    std::vector<TemplateNode> nodes;
    const Depth depth(*this);
    while (Peek().kind != TokenKind::kEnd) {
      if (Peek().kind == TokenKind::kText) {
        nodes.push_back({.printed = {.text = Next().text}});
      } else if (Peek().kind == TokenKind::kOpenPrint) {
        Next();
        TemplateExpr printed = ParseExpr();
        if (printed.type != TemplateType::kText) FailHere("a boolean cannot be printed");
        Expect(TokenKind::kClosePrint, "}}");
        nodes.push_back({.printed = std::move(printed)});
      } else if (PeekBlock() == "for") {
        nodes.push_back(ParseFor());
      } else if (PeekBlock() == "if") {
        nodes.push_back(ParseIf());
      } else if (PeekBlock() == "elif" || PeekBlock() == "else" || PeekBlock() == "endif" ||
                 PeekBlock() == "endfor") {
        break;
      } else {
        Next();
        FailHere("found ", "; blocks are for, if, elif, else, endif, endfor");
      }
    }
    return nodes;
  }

  TemplateNode ParseFor() {
    OpenBlock("for");
    if (!loop_name_.empty()) FailHere("found a for inside of a for");
    loop_name_ = ExpectName();
    ExpectWord("in");
    ExpectWord("messages");
    Expect(TokenKind::kCloseBlock, "%}");
    TemplateNode node{.kind = TemplateNode::Kind::kForMessages};
    node.branches.push_back({.body = ParseNodes()});
    CloseBlock("endfor");
    loop_name_.clear();
    return node;
  }

  TemplateNode ParseIf() {
    TemplateNode node{.kind = TemplateNode::Kind::kIf};
    OpenBlock("if");
    node.branches.push_back(ParseBranch());
    while (PeekBlock() == "elif") {
      OpenBlock("elif");
      node.branches.push_back(ParseBranch());
    }
    if (PeekBlock() == "else") {
      CloseBlock("else");
      node.branches.push_back(
          {.condition = {.op = TemplateOp::kBool, .type = TemplateType::kBool, .flag = true},
           .body = ParseNodes()});
    }
    CloseBlock("endif");
    return node;
  }

  TemplateBranch ParseBranch() {
    TemplateBranch branch;
    branch.condition = ParseExpr();
    Expect(TokenKind::kCloseBlock, "%}");
    branch.body = ParseNodes();
    return branch;
  }

  // a if b else c
  TemplateExpr ParseExpr() {
    const Depth depth(*this);
    TemplateExpr value = ParseOr();
    if (!TakeWord("if")) return value;
    TemplateExpr condition = ParseOr();
    ExpectWord("else");
    TemplateExpr otherwise = ParseExpr();
    RequireSame(value, otherwise, "if-else");
    const TemplateType type = value.type;
    return Make(TemplateOp::kChoose, type, std::move(condition), std::move(value),
                std::move(otherwise));
  }

  TemplateExpr ParseOr() {
    TemplateExpr left = ParseAnd();
    while (TakeWord("or")) Join(TemplateOp::kOr, &left, ParseAnd());
    return left;
  }

  TemplateExpr ParseAnd() {
    TemplateExpr left = ParseNot();
    while (TakeWord("and")) Join(TemplateOp::kAnd, &left, ParseNot());
    return left;
  }

  TemplateExpr ParseNot() {
    const Depth depth(*this);
    if (TakeWord("not")) return Make(TemplateOp::kNot, TemplateType::kBool, ParseNot());
    return ParseCompare();
  }

  TemplateExpr ParseCompare() {
    TemplateExpr left = ParseConcat();
    const bool is_equal = PeekSign("=="), is_unlike = PeekSign("!=");
    if (!is_equal && !is_unlike) return left;
    Next();
    TemplateExpr right = ParseConcat();
    RequireSame(left, right, "comparison");
    TemplateExpr equal =
        Make(TemplateOp::kEqual, TemplateType::kBool, std::move(left), std::move(right));
    if (is_equal) return equal;
    return Make(TemplateOp::kNot, TemplateType::kBool, std::move(equal));
  }

  TemplateExpr ParseConcat() {
    TemplateExpr left = ParseFiltered();
    while (TakeSign("+")) {
      TemplateExpr right = ParseFiltered();
      if (left.type != TemplateType::kText || right.type != TemplateType::kText) {
        FailHere("+ joins texts, found a boolean");
      }
      Append(TemplateOp::kConcat, &left, std::move(right));
    }
    return left;
  }

  TemplateExpr ParseFiltered() {
    TemplateExpr value = ParsePrimary();
    while (TakeSign("|")) {
      if (!TakeWord("trim")) FailHere("found ", "; the only filter is trim");
      if (value.type != TemplateType::kText) FailHere("trim takes text, found a boolean");
      // A text that is trimmed already stays the same.
      if (value.op != TemplateOp::kTrim) {
        value = Make(TemplateOp::kTrim, TemplateType::kText, std::move(value));
      }
    }
    return value;
  }

  TemplateExpr ParsePrimary() {
    if (Peek().kind == TokenKind::kString) return {.text = Next().text};
    if (TakeSign("(")) {
      TemplateExpr inner = ParseExpr();
      ExpectSign(")");
      return inner;
    }
    if (Peek().kind != TokenKind::kName) {
      FailHere("found ", " where a value is expected");
      return {};
    }
    return ParseName();
  }

  TemplateExpr ParseName() {
    if (TakeWord("messages")) {
      ExpectSign("[");
      if (!TakeWord("0")) FailHere("found ", "; of single messages only messages[0] is read");
      ExpectSign("]");
      TemplateExpr member = ParseMember();
      member.flag = true;
      return member;
    }
    if (!loop_name_.empty() && TakeWord(loop_name_)) return ParseMember();
    if (!loop_name_.empty() && TakeWord("loop")) {
      ExpectSign(".");
      if (TakeWord("first")) return Make(TemplateOp::kLoopFirst, TemplateType::kBool);
      if (TakeWord("last")) return Make(TemplateOp::kLoopLast, TemplateType::kBool);
      FailHere("found ", "; loop has first and last");
      return {};
    }
    if (TakeWord("bos_token")) return Make(TemplateOp::kBosToken, TemplateType::kText);
    if (TakeWord("eos_token")) return Make(TemplateOp::kEosToken, TemplateType::kText);
    if (TakeWord("add_generation_prompt")) {
      return Make(TemplateOp::kAddGenerationPrompt, TemplateType::kBool);
    }
    if (PeekWord("true") || PeekWord("True") || PeekWord("false") || PeekWord("False")) {
      const std::string word = Next().text;
      return {.op = TemplateOp::kBool,
              .type = TemplateType::kBool,
              .flag = word == "true" || word == "True"};
    }
    if (TakeWord("raise_exception")) {
      ExpectSign("(");
      TemplateExpr message = ParseExpr();
      ExpectSign(")");
      if (message.type != TemplateType::kText) FailHere("raise_exception takes text");
      return Make(TemplateOp::kRaise, TemplateType::kText, std::move(message));
    }
    FailHere("found ",
             "; names are the loop's variable, loop, messages[0], bos_token, eos_token, "
             "add_generation_prompt, "
             "raise_exception, true, false");
    return {};
  }

  // m['role'] or m.role, after m.
  TemplateExpr ParseMember() {
    const bool in_brackets = TakeSign("[");
    if (!in_brackets) ExpectSign(".");
    const TokenKind wanted = in_brackets ? TokenKind::kString : TokenKind::kName;
    const bool is_role = Peek().kind == wanted && Peek().text == "role";
    const bool is_content = Peek().kind == wanted && Peek().text == "content";
    if (!is_role && !is_content) FailHere("found ", "; a message has role and content");
    Next();
    if (in_brackets) ExpectSign("]");
    return Make(is_role ? TemplateOp::kRole : TemplateOp::kContent, TemplateType::kText);
  }

  // Moves `args`: an initializer list would copy each tree.
  template <typename... Args>
  static TemplateExpr Make(TemplateOp op, TemplateType type, Args... args) {
    TemplateExpr made{.op = op, .type = type};
    made.args.reserve(sizeof...(args));
    (made.args.push_back(std::move(args)), ...);
    return made;
  }

  // Adds `right` to the chain `left`, or starts one. The chain in parentheses, (a or b) or c, gives
  // the same value as a or b or c.
  static void Append(TemplateOp op, TemplateExpr* left, TemplateExpr right) {
    if (left->op != op) *left = Make(op, left->type, std::move(*left));
    left->args.push_back(std::move(right));
  }

  // and, or: two texts give a text, as in Jinja.
  void Join(TemplateOp op, TemplateExpr* left, TemplateExpr right) {
    RequireSame(*left, right, op == TemplateOp::kAnd ? "and" : "or");
    Append(op, left, std::move(right));
  }

  void RequireSame(const TemplateExpr& a, const TemplateExpr& b, std::string_view where) {
    if (a.type == b.type) return;
    FailHere(StrCat(where, " of ", NameOf(a.type), " and ", NameOf(b.type)));
  }

  // Bounds the nesting, because the parser and the renderer recurse.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxTemplateDepth) {
        parser_.FailHere(StrCat("nested more than ", kMaxTemplateDepth, " deep"));
      }
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Parser& parser_;
  };

  const TemplateToken& Peek() const { return tokens_[at_]; }
  const TemplateToken& Next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool PeekWord(std::string_view word) const {
    return Peek().kind == TokenKind::kName && Peek().text == word;
  }
  bool PeekSign(std::string_view sign) const {
    return Peek().kind == TokenKind::kSign && Peek().text == sign;
  }
  bool TakeWord(std::string_view word) { return PeekWord(word) && (Next(), true); }
  bool TakeSign(std::string_view sign) { return PeekSign(sign) && (Next(), true); }

  // The word after {% if that is the next token, else "".
  std::string_view PeekBlock() const {
    if (Peek().kind != TokenKind::kOpenBlock) return "";
    return tokens_[at_ + 1].text;
  }

  void OpenBlock(std::string_view word) {
    Expect(TokenKind::kOpenBlock, "{%");
    ExpectWord(word);
  }
  void CloseBlock(std::string_view word) {
    if (PeekBlock() != word) FailHere(StrCat("expected {% ", word, " %}, found "), "");
    OpenBlock(word);
    Expect(TokenKind::kCloseBlock, "%}");
  }

  void Expect(TokenKind kind, std::string_view sign) {
    if (Peek().kind == kind) {
      Next();
    } else {
      FailHere(StrCat("expected ", sign, ", found "), "");
    }
  }
  void ExpectSign(std::string_view sign) {
    if (!TakeSign(sign)) FailHere(StrCat("expected ", sign, ", found "), "");
  }
  void ExpectWord(std::string_view word) {
    if (!TakeWord(word)) FailHere(StrCat("expected ", word, ", found "), "");
  }
  std::string ExpectName() {
    if (Peek().kind == TokenKind::kName) return Next().text;
    FailHere("expected a name, found ", "");
    return "";
  }

  std::string Show(const TemplateToken& token) const {
    switch (token.kind) {
      case TokenKind::kText: return "text";
      case TokenKind::kOpenPrint: return "{{";
      case TokenKind::kClosePrint: return "}}";
      case TokenKind::kOpenBlock: return StrCat("{% ", PeekBlock());
      case TokenKind::kCloseBlock: return "%}";
      case TokenKind::kEnd: return "the end of the template";
      case TokenKind::kName:
      case TokenKind::kString:
      case TokenKind::kSign: return StrCat("\"", token.text, "\"");
    }
    return "";
  }

  void FailHere(std::string_view before, std::string_view after) {
    FailHere(StrCat(before, Show(Peek()), after));
  }
  void FailHere(std::string_view sentence) {
    if (status_.ok()) status_ = TemplateError(source_, Peek().at, sentence);
    at_ = tokens_.size() - 1;
  }

  std::string_view source_;
  std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  std::string loop_name_;  // of the enclosing for; empty: none
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateNode>> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        StrCat("has ", source.size(), " bytes, must have at most ", kMaxTemplateBytes));
  }
  // Jinja reads CRLF and CR as LF before anything else.
  std::string lines;
  if (source.find('\r') != source.npos) {
    lines.reserve(source.size());
    for (size_t i = 0; i < source.size(); ++i) {
      if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
      lines += source[i] == '\r' ? '\n' : source[i];
    }
    source = lines;
  }
  ASSIGN_OR_RETURN(std::vector<TemplateToken> tokens, Lexer(source).Run());
  return Parser(source, std::move(tokens)).Run();
}

}  // namespace lssar

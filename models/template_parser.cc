#include "models/template_parser.h"

#include <string>
#include <utility>

#include "kernels/str_cat.h"
#include "models/template_lexer.h"

namespace lssar {
namespace {

constexpr int kMaxDepth = 64;  // of blocks and parentheses

constexpr std::string_view NameOf(TemplateType type) {
  return type == TemplateType::kText ? "text" : "a boolean";
}

// Recursive descent. The first error sticks and moves the cursor to the end, so that every loop
// ends; what is returned after it is never used.
class Parser {
 public:
  Parser(std::string_view source, std::vector<TemplateToken> tokens)
      : source_(source), tokens_(std::move(tokens)) {}

  absl::StatusOr<std::vector<TemplateNode>> Run() {
    std::vector<TemplateNode> nodes = ParseNodes();
    if (Peek().kind != TokenKind::kEnd) FailHere("found a block that closes nothing");
    if (!status_.ok()) return status_;
    return nodes;
  }

 private:
  // Nodes up to the end, or up to a block that belongs to the one around (its {% stays ahead).
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
    TemplateBranch branch{.condition = ParseExpr()};
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
    return Make(TemplateOp::kChoose, type,
                {std::move(condition), std::move(value), std::move(otherwise)});
  }

  TemplateExpr ParseOr() {
    TemplateExpr left = ParseAnd();
    while (TakeWord("or")) left = Join(TemplateOp::kOr, std::move(left), ParseAnd());
    return left;
  }

  TemplateExpr ParseAnd() {
    TemplateExpr left = ParseNot();
    while (TakeWord("and")) left = Join(TemplateOp::kAnd, std::move(left), ParseNot());
    return left;
  }

  TemplateExpr ParseNot() {
    const Depth depth(*this);
    if (TakeWord("not")) return Make(TemplateOp::kNot, TemplateType::kBool, {ParseNot()});
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
        Make(TemplateOp::kEqual, TemplateType::kBool, {std::move(left), std::move(right)});
    if (is_equal) return equal;
    return Make(TemplateOp::kNot, TemplateType::kBool, {std::move(equal)});
  }

  TemplateExpr ParseConcat() {
    TemplateExpr left = ParseFiltered();
    while (TakeSign("+")) {
      TemplateExpr right = ParseFiltered();
      if (left.type != TemplateType::kText || right.type != TemplateType::kText) {
        FailHere("+ joins texts, found a boolean");
      }
      left = Make(TemplateOp::kConcat, TemplateType::kText, {std::move(left), std::move(right)});
    }
    return left;
  }

  TemplateExpr ParseFiltered() {
    TemplateExpr value = ParsePrimary();
    while (TakeSign("|")) {
      if (!TakeWord("trim")) FailHere("found ", "; the only filter is trim");
      if (value.type != TemplateType::kText) FailHere("trim takes text, found a boolean");
      value = Make(TemplateOp::kTrim, TemplateType::kText, {std::move(value)});
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
      FailHere("found ", " where a value must stand");
      return {};
    }
    return ParseName();
  }

  TemplateExpr ParseName() {
    if (!loop_name_.empty() && TakeWord(loop_name_)) return ParseMember();
    if (!loop_name_.empty() && TakeWord("loop")) {
      ExpectSign(".");
      if (TakeWord("first")) return Make(TemplateOp::kLoopFirst, TemplateType::kBool, {});
      if (TakeWord("last")) return Make(TemplateOp::kLoopLast, TemplateType::kBool, {});
      FailHere("found ", "; loop knows first and last");
      return {};
    }
    if (TakeWord("bos_token")) return Make(TemplateOp::kBosToken, TemplateType::kText, {});
    if (TakeWord("eos_token")) return Make(TemplateOp::kEosToken, TemplateType::kText, {});
    if (TakeWord("add_generation_prompt")) {
      return Make(TemplateOp::kAddGenerationPrompt, TemplateType::kBool, {});
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
      return Make(TemplateOp::kRaise, TemplateType::kText, {std::move(message)});
    }
    FailHere("found ",
             "; names are the loop's variable, loop, bos_token, eos_token, add_generation_prompt, "
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
    return Make(is_role ? TemplateOp::kRole : TemplateOp::kContent, TemplateType::kText, {});
  }

  static TemplateExpr Make(TemplateOp op, TemplateType type, std::vector<TemplateExpr> args) {
    return {.op = op, .type = type, .args = std::move(args)};
  }

  // and, or: of two texts a text, as in Jinja.
  TemplateExpr Join(TemplateOp op, TemplateExpr left, TemplateExpr right) {
    RequireSame(left, right, op == TemplateOp::kAnd ? "and" : "or");
    const TemplateType type = left.type;
    return Make(op, type, {std::move(left), std::move(right)});
  }

  void RequireSame(const TemplateExpr& a, const TemplateExpr& b, std::string_view where) {
    if (a.type == b.type) return;
    FailHere(StrCat(where, " of ", NameOf(a.type), " and ", NameOf(b.type)));
  }

  // Keeps nesting bounded: the parser and the renderer recurse.
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxDepth) {
        parser_.FailHere(StrCat("nested more than ", kMaxDepth, " deep"));
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

  // The word after a {% that is ahead, else "".
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
  std::string loop_name_;  // of the for around; empty: none
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<TemplateNode>> ParseTemplate(std::string_view source) {
  absl::StatusOr<std::vector<TemplateToken>> tokens = LexTemplate(source);
  if (!tokens.ok()) return tokens.status();
  return Parser(source, *std::move(tokens)).Run();
}

}  // namespace lssar

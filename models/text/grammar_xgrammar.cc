// Grammars by xgrammar, which deploy/xgrammar.sh builds.
#include <dlpack/dlpack.h>
#include <pthread.h>
#include <xgrammar/work_limit.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/check.h"
#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/grammar.h"
#include "models/text/json_schema.h"

namespace {

// Where the warnings of the thread's calls go; null: nowhere.
thread_local std::string* first_warning = nullptr;

}  // namespace

// What xgrammar calls in place of its own output (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string& file, int line, const std::string& message);
void LogMessageImpl(const std::string& file, int line, int level, const std::string& message);

void LogFatalImpl(const std::string& /*file*/, int /*line*/, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string& /*file*/, int /*line*/, int level,
                    const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && first_warning != nullptr && first_warning->empty()) {
    *first_warning = message;
  }
}

}  // namespace xgrammar

namespace lssar {

namespace {

using xgrammar::work_limit;

// xgrammar recurses over the rules of a grammar, as many as a source can name.
constexpr size_t kCompileStackBytes = size_t{256} << 20;
constexpr int64_t kRuleCacheBytes = int64_t{64} << 20;
// Within JSON, so that a text cannot consist of it alone.
constexpr int kMaxWhitespace = 32;
constexpr size_t kMaxReasonBytes = 200;
constexpr char kWhiteSpace[] = R"(root ::= [ \t\r\n]*)";
constexpr char kTextWithoutJson[] = R"(root ::= [ \t\r\n]* ([^{ \t\r\n] [\u0000-\U0010FFFF]*)?)";

absl::Status TooMuchWork() {
  return absl::ResourceExhaustedError(
      "the constraint is too ambiguous: this token takes too much work");
}

// Bounds the work of the calls in its scope.
class ScopedLimit {
 public:
  explicit ScopedLimit(const xgrammar::WorkLimit& limit) { work_limit = limit; }
  ~ScopedLimit() { work_limit = {}; }
  ScopedLimit(const ScopedLimit&) = delete;
  ScopedLimit& operator=(const ScopedLimit&) = delete;
};

// Runs `work` on a thread with a stack of `num_bytes`, and waits for it.
void RunWithStack(size_t num_bytes, absl::FunctionRef<void()> work) {
  pthread_attr_t attributes;
  LSSAR_CHECK(pthread_attr_init(&attributes) == 0);
  LSSAR_CHECK(pthread_attr_setstacksize(&attributes, num_bytes) == 0);
  pthread_t thread;
  const auto run = [](void* ref) -> void* {
    (*static_cast<absl::FunctionRef<void()>*>(ref))();
    return nullptr;
  };
  const bool is_started = pthread_create(&thread, &attributes, run, &work) == 0;
  pthread_attr_destroy(&attributes);
  if (is_started) {
    pthread_join(thread, nullptr);
  } else {
    work();
  }
}

class Matcher final : public GrammarMatcher {
 public:
  Matcher(const xgrammar::CompiledGrammar& grammar, int num_ids)
      : matcher_(grammar), num_ids_(num_ids) {}

  absl::Status FillMask(std::span<uint32_t> mask) override {
    LSSAR_CHECK(int(mask.size()) == xgrammar::GetBitmaskSize(num_ids_));
    int64_t shape[1] = {int64_t(mask.size())};
    DLTensor tensor{};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = shape;
    const ScopedLimit limit({.num_steps = MaxMatcherSteps(num_ids_)});
    try {
      matcher_.FillNextTokenBitmask(&tensor);
    } catch (const std::exception&) {
      return TooMuchWork();
    }
    if (num_ids_ % 32 != 0) mask.back() &= (uint32_t{1} << (num_ids_ % 32)) - 1;
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Accept(int32_t id) override {
    const ScopedLimit limit({.num_steps = MaxMatcherSteps(num_ids_)});
    try {
      return matcher_.AcceptToken(id);
    } catch (const std::exception&) {
      return TooMuchWork();
    }
  }

  void Rollback(int num_tokens) override { matcher_.Rollback(num_tokens); }
  bool IsComplete() const override { return matcher_.IsCompleted(); }

 private:
  xgrammar::GrammarMatcher matcher_;
  const int num_ids_;
};

class CompiledGrammar final : public Grammar {
 public:
  CompiledGrammar(xgrammar::CompiledGrammar grammar, int num_ids)
      : grammar_(std::move(grammar)),
        num_ids_(num_ids),
        num_bytes_(int64_t(grammar_.MemorySizeBytes())) {}

  std::unique_ptr<GrammarMatcher> NewMatcher() const override {
    return std::make_unique<Matcher>(grammar_, num_ids_);
  }
  int64_t NumBytes() const override { return num_bytes_; }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const int num_ids_;
  const int64_t num_bytes_;
};

// Special tokens have no text: the empty string is what xgrammar never samples.
xgrammar::TokenizerInfo Vocabulary(const Tokenizer& tokenizer, int num_ids,
                                   std::span<const int32_t> ending_ids) {
  LSSAR_CHECK(num_ids <= tokenizer.VocabSize());
  std::vector<std::string> pieces(static_cast<size_t>(num_ids));
  for (int32_t id = 0; id < num_ids; ++id) {
    const std::string_view bytes = tokenizer.PieceBytes(id);
    if (!bytes.empty() && tokenizer.FindSpecialToken(bytes) == id) continue;
    pieces[size_t(id)] = bytes;
  }
  for (const int32_t id : ending_ids) {
    if (id >= 0 && id < num_ids) pieces[size_t(id)].clear();
  }
  // No id stops: the runtime knows which end the text of a request.
  return xgrammar::TokenizerInfo(pieces, xgrammar::VocabType::RAW, num_ids, std::vector<int32_t>());
}

}  // namespace

struct GrammarCompiler::State {
  State(const Tokenizer& tokenizer, int count, std::span<const int32_t> ending_ids)
      : num_ids(count),
        compiler(Vocabulary(tokenizer, count, ending_ids), /*max_threads=*/1,
                 /*cache_enabled=*/true, kRuleCacheBytes) {}

  // Errors  throws xgrammar's
  xgrammar::CompiledGrammar Compile(const GrammarSource& source) {
    switch (source.kind) {
      case GrammarSource::Kind::kJsonSchema:
        return compiler.CompileJSONSchema(source.text, /*any_whitespace=*/true, std::nullopt,
                                          std::nullopt, /*strict_mode=*/true, kMaxWhitespace);
      case GrammarSource::Kind::kJsonSchemaOrText: {
        using xgrammar::Grammar;
        const Grammar json = Grammar::FromJSONSchema(source.text, /*any_whitespace=*/true,
                                                     std::nullopt, std::nullopt,
                                                     /*strict_mode=*/true, kMaxWhitespace);
        return compiler.CompileGrammar(
            Grammar::Union({Grammar::Concat({Grammar::FromEBNF(kWhiteSpace), json}),
                            Grammar::FromEBNF(kTextWithoutJson)}));
      }
      case GrammarSource::Kind::kRegex: return compiler.CompileRegex(source.text);
      case GrammarSource::Kind::kEbnf: break;
    }
    return compiler.CompileGrammar(source.text, "root");
  }

  const int num_ids;
  xgrammar::GrammarCompiler compiler;
};

bool GrammarCompiler::IsAvailable() { return true; }

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, int num_ids,
                                 std::span<const int32_t> ending_ids)
    : state_(std::make_unique<State>(tokenizer, num_ids, ending_ids)) {}

GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarCompiler::Compile(
    const GrammarSource& source, const std::function<bool()>& should_stop) const {
  RETURN_IF_ERROR(CheckGrammarSource(source));
  GrammarSource prepared = source;
  if (source.IsJsonSchema()) {
    ASSIGN_OR_RETURN(prepared.text, PrepareJsonSchema(source.text));
  } else if (source.kind == GrammarSource::Kind::kRegex) {
    prepared.text = PrepareRegex(source.text);
  } else {
    prepared.text = WithoutHexEscapes(source.text);
  }
  std::shared_ptr<const Grammar> grammar;
  std::string warning;
  absl::Status status;
  RunWithStack(kCompileStackBytes, [&] {
    const ScopedLimit limit({.deadline = std::chrono::steady_clock::now() + kMaxGrammarCompileTime,
                             .should_stop = &should_stop});
    first_warning = &warning;
    try {
      grammar = std::make_shared<CompiledGrammar>(state_->Compile(prepared), state_->num_ids);
    } catch (const xgrammar::WorkLimitExceeded&) {
      status = absl::DeadlineExceededError(StrCat("is too complex: it was not compiled within ",
                                                  kMaxGrammarCompileTime.count(), " s"));
    } catch (const xgrammar::WorkStopped&) {
      status = absl::CancelledError("its compilation was stopped");
    } catch (const std::exception& error) {
      status = absl::InvalidArgumentError(
          StrCat("is refused: ", Shorten(error.what(), kMaxReasonBytes)));
    }
    first_warning = nullptr;
  });
  RETURN_IF_ERROR(status);
  // xgrammar goes on without what it does not support.
  if (!warning.empty()) {
    return absl::InvalidArgumentError(
        StrCat("is not enforced as a whole: ", Shorten(warning, kMaxReasonBytes)));
  }
  std::vector<uint32_t> mask(size_t(xgrammar::GetBitmaskSize(state_->num_ids)));
  const auto matcher = grammar->NewMatcher();
  if (!matcher->FillMask(mask).ok()) {
    return absl::InvalidArgumentError(
        "is too ambiguous: its first token alone takes too much work");
  }
  const bool is_empty = std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
  if (is_empty && !matcher->IsComplete()) {
    return absl::InvalidArgumentError(
        "is fitted by no text: none of the vocabulary's tokens may come first");
  }
  return grammar;
}

}  // namespace lssar

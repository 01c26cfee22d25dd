// `lssar score`: log-probability of continuations, or loss by row length over a token file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/evaluation.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/score_file.h"
#include "clients/cli/score_stream.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "kernels/status_macros.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTextColumns = 48;
constexpr int kMaxLength = 1 << 20;

std::string Describe(const v1::TextOrTokens& text) {
  if (text.has_tokens()) return StrCat("[", text.tokens().ids_size(), " ids]");
  return OneLine(text.text(), kTextColumns);
}

std::string RenderItem(const v1::ScoreItem& item, const std::vector<ScoredContinuation>& scored) {
  using enum Table::Align;
  Table table({{"logprob", kRight},
               {"per token", kRight},
               {"per byte", kRight},
               {"tokens", kRight},
               {"greedy"},
               {"continuation"}});
  for (size_t i = 0; i < scored.size(); ++i) {
    const v1::ContinuationScore& score = scored[i].score;
    table.AddRow({absl::StrFormat("%.4f", score.logprob()),
                  absl::StrFormat("%.4f", score.logprob() / std::max(1, score.num_tokens())),
                  absl::StrFormat("%.4f", score.logprob() / std::max(1, score.num_bytes())),
                  StrCat(score.num_tokens()), score.is_greedy() ? "yes" : "no",
                  Describe(item.continuations(int(i)))});
  }
  return table.Render();
}

std::string RenderTokens(const std::vector<v1::Token>& tokens) {
  using enum Table::Align;
  Table table({{"id", kRight}, {"logprob", kRight}, {"piece"}, {"most probable"}});
  for (const v1::Token& token : tokens) {
    const bool is_best = token.top().empty() || token.top(0).id() == token.token().id();
    table.AddRow({StrCat(token.token().id()), absl::StrFormat("%.4f", token.token().logprob()),
                  StrCat("'", OneLine(token.token().piece(), kTextColumns), "'"),
                  is_best
                      ? ""
                      : absl::StrFormat("'%s' (%.4f)", OneLine(token.top(0).piece(), kTextColumns),
                                        token.top(0).logprob())});
  }
  return table.Render();
}

Json ToJson(const std::vector<ScoredContinuation>& scored, bool has_tokens,
            const std::string& kv_cache_dtype) {
  Json continuations = Json::array();
  for (const ScoredContinuation& each : scored) {
    Json json = {{"logprob", each.score.logprob()},
                 {"num_tokens", each.score.num_tokens()},
                 {"num_bytes", each.score.num_bytes()},
                 {"is_greedy", each.score.is_greedy()}};
    if (has_tokens) json["tokens"] = TokensToJson(each.tokens);
    continuations.push_back(std::move(json));
  }
  return {{"continuations", std::move(continuations)}, {"kv_cache_dtype", kv_cache_dtype}};
}

void PrintLossTable(const std::vector<LossAtLength>& results) {
  using enum Table::Align;
  Table table({{"length", kRight},
               {"rows", kRight},
               {"tokens", kRight},
               {"nats per token", kRight},
               {"perplexity", kRight}});
  bool is_any_left_out = false;
  for (const LossAtLength& at : results) {
    is_any_left_out = is_any_left_out || at.is_last_left_out;
    table.AddRow({FormatCount(at.length), StrCat(at.num_rows), StrCat(at.num_tokens),
                  absl::StrFormat("%.4f%s", at.loss, at.is_last_left_out ? "*" : ""),
                  absl::StrFormat("%.2f", std::exp(at.loss))});
  }
  std::printf("Loss by length\n%s", table.Render().c_str());
  if (is_any_left_out) {
    std::printf("* without the last token of each row, which does not fit in the served context\n");
  }
}

void PrintLossJson(const std::vector<LossAtLength>& results, const std::string& kv_cache_dtype) {
  Json lengths = Json::array();
  for (const LossAtLength& at : results) {
    lengths.push_back({{"length", at.length},
                       {"num_rows", at.num_rows},
                       {"num_tokens", at.num_tokens},
                       {"loss", at.loss},
                       {"perplexity", std::exp(at.loss)},
                       {"is_last_left_out", at.is_last_left_out}});
  }
  PrintJson({{"lengths", std::move(lengths)}, {"kv_cache_dtype", kv_cache_dtype}});
}

class ScoreCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    AddTextFlags(app);
    app->add_option("--ids", ids_,
                    "token ids, of which rows are taken at equal steps: a file of uint16")
        ->option_text("FILE")
        ->group("Loss by length");
    app->add_option("--lengths", lengths_, "tokens per row [2K is 2048; default 1K,2K,4K,8K,16K]")
        ->option_text("LIST")
        ->group("Loss by length");
    app->add_option("--rows", num_rows_,
                    "rows of each length [1 to 1024; default 8, or what 32K tokens hold]")
        ->option_text("N")
        ->group("Loss by length")
        ->check(CLI::Range(1, 1024));
    app->add_flag("--json", json_, "one JSON object per line: an item, or all lengths")
        ->group("Output");
    AddSchedulingFlags(app, &scheduling_);
    AddConnectionFlags(app, &connection_);
    app->footer(
        "Examples:\n"
        "  lssar score --context 'The capital of France is' --continuation ' Paris' "
        "--continuation ' Rome'\n"
        "  lssar score --model models/zoo/lssar-6m --ids val.bin --lengths 1K,2K,4K");
  }

  absl::Status Run() override {
    if (ids_.has_value()) {
      if (!continuations_.empty() || context_.has_value() || file_.has_value()) {
        return absl::InvalidArgumentError("--ids excludes --context, --continuation and --file");
      }
      return RunLossByLength();
    }
    return ScoreItems();
  }

 private:
  void AddTextFlags(CLI::App* app) {
    constexpr char kGroup[] = "What to score";
    app->add_option("--context", context_,
                    "text before the continuations [default: none, then BOS alone]")
        ->option_text("TEXT")
        ->group(kGroup);
    app->add_option("--continuation", continuations_, "text to score; repeatable [1 to 1024]")
        ->option_text("TEXT")
        ->group(kGroup)
        ->allow_extra_args(false);
    app->add_option(
           "--file", file_,
           "JSON lines {\"context\": C, \"continuations\": [C, ...]}, each C a text or a list of "
           "ids, any number of lines; - is standard input")
        ->option_text("FILE")
        ->group(kGroup);
    app->add_option("--max-concurrency", max_concurrency_,
                    "calls of 64 items in flight, with --file [1 to 64; default 2]")
        ->option_text("N")
        ->group(kGroup)
        ->check(CLI::Range(1, 64));
    app->add_flag("--tokens", tokens_,
                  "show each token's logprob [nats] and the most probable token")
        ->group("Output");
  }

  absl::Status ScoreItems() {
    const bool has_text = context_.has_value() || !continuations_.empty();
    if (has_text == file_.has_value() || (has_text && continuations_.empty())) {
      return absl::InvalidArgumentError(
          "give --context TEXT and one or more --continuation TEXT, or --file FILE, or --ids FILE");
    }
    std::optional<int64_t> num_items = 1;
    if (file_.has_value()) {
      ASSIGN_OR_RETURN(num_items, CountScoreItems(*file_));
      ASSIGN_OR_RETURN(ScoreFileReader reader, ScoreFileReader::Open(*file_));
      return RunItems(num_items, [&reader] { return reader.Next(); });
    }
    ScoreLine line;
    line.item.mutable_context()->set_text(context_.value_or(""));
    for (const std::string& text : continuations_) line.item.add_continuations()->set_text(text);
    std::optional<ScoreLine> only = std::move(line);
    return RunItems(num_items, [&only]() -> absl::StatusOr<std::optional<ScoreLine>> {
      return std::exchange(only, std::nullopt);
    });
  }

  // `num_items`: nullopt if it is not known before the end.
  absl::Status RunItems(std::optional<int64_t> num_items, const NextScoreLine& next) {
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    RETURN_IF_ERROR(ReadPrecision(connection->Stub()));
    Interrupt interrupt;
    ProgressBar progress("scoring", num_items.value_or(ProgressBar::kUnknownTotal));
    int64_t num_done = 0;
    const auto on_scored = [&](const v1::ScoreItem& item,
                               const std::vector<ScoredContinuation>& scored) {
      ++num_done;
      progress.Advance(1,
                       num_items ? StrCat(num_done, "/", *num_items) : StrCat(num_done, " items"));
      if (StdoutTerminal().is_tty) progress.Hide();
      PrintItem(item, scored);
    };
    const ScoreStreamOptions options{
        .max_concurrency = max_concurrency_, .per_token = tokens_, .scheduling = scheduling_};
    return RunScoreStream(connection->Stub(), options, &interrupt, next, on_scored);
  }

  // The K/V cache's type goes into the JSON, or a note about it to stderr.
  absl::Status ReadPrecision(v1::Inference::StubInterface* stub) {
    ASSIGN_OR_RETURN(served_, DescribeServer(stub));
    const std::string note = KvCachePrecisionNote(served_);
    if (!json_ && !note.empty()) {
      std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), note).c_str());
    }
    return absl::OkStatus();
  }

  void PrintItem(const v1::ScoreItem& item, const std::vector<ScoredContinuation>& scored) const {
    if (json_) return PrintJson(ToJson(scored, tokens_, served_.kv_cache_dtype()));
    if (file_.has_value()) std::printf("context: %s\n", Describe(item.context()).c_str());
    std::printf("%s", RenderItem(item, scored).c_str());
    for (size_t i = 0; tokens_ && i < scored.size(); ++i) {
      std::printf("\n%s\n%s", Describe(item.continuations(int(i))).c_str(),
                  RenderTokens(scored[i].tokens).c_str());
    }
    if (file_.has_value()) std::printf("\n");
  }

  absl::Status RunLossByLength() {
    ASSIGN_OR_RETURN(auto lengths, ParseCounts("--lengths", lengths_, 1, kMaxLength));
    ASSIGN_OR_RETURN(const auto ids, ReadTokenIds(*ids_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Interrupt interrupt;
    RETURN_IF_ERROR(ReadPrecision(connection->Stub()));
    const LossOptions options{
        .lengths = std::move(lengths), .num_rows = num_rows_, .scheduling = scheduling_};
    ASSIGN_OR_RETURN(const auto results,
                     MeasureLossByLength(connection->Stub(), served_, ids, options, &interrupt));
    if (json_) {
      PrintLossJson(results, served_.kv_cache_dtype());
    } else {
      PrintLossTable(results);
    }
    return absl::OkStatus();
  }

  std::optional<std::string> context_;
  std::vector<std::string> continuations_;
  std::optional<std::string> file_;
  int max_concurrency_ = ScoreStreamOptions().max_concurrency;
  bool tokens_ = false;
  std::optional<std::string> ids_;
  std::string lengths_ = "1K,2K,4K,8K,16K";
  std::optional<int> num_rows_;
  bool json_ = false;
  SchedulingFlags scheduling_;
  ConnectionFlags connection_;
  v1::GetInfoReply served_;
};

}  // namespace

std::unique_ptr<Command> MakeScoreCommand() { return std::make_unique<ScoreCommand>(); }

}  // namespace lssar::cli

// `lssar score`: log-probability of continuations, or loss by row length over a token file.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/evaluation.h"
#include "clients/cli/figure.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/resumable_output.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/score_file.h"
#include "clients/cli/score_stream.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kTextColumns = 48;

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
                  Describe(item.continuations(int(i)), kTextColumns)});
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

// A line of --output.
Json RowToJson(int64_t line_number, const ItemScores& row, bool has_tokens,
               const std::string& kv_cache_dtype) {
  Json json = {{"line", line_number}};
  if (row.ok()) {
    json.update(ToJson(*row, has_tokens, kv_cache_dtype));
  } else {
    json["error"] = {{"code", absl::StatusCodeToString(row.status().code())},
                     {"message", std::string(row.status().message())}};
  }
  return json;
}

void PrintLossTable(const std::vector<LossAtLength>& results) {
  using enum Table::Align;
  Table table({{"length", kRight},
               {"rows", kRight},
               {"tokens", kRight},
               {"nats per token", kRight},
               {"std. error", kRight},
               {"perplexity", kRight}});
  bool is_any_left_out = false;
  for (const LossAtLength& at : results) {
    is_any_left_out = is_any_left_out || at.is_last_left_out;
    table.AddRow({FormatCount(at.length), StrCat(at.num_rows), StrCat(at.num_tokens),
                  absl::StrFormat("%.4f%s", at.loss, at.is_last_left_out ? "*" : ""),
                  at.standard_error ? absl::StrFormat("%.4f", *at.standard_error) : "",
                  absl::StrFormat("%.2f", std::exp(at.loss))});
  }
  std::printf("Loss by length\n%s", table.Render().c_str());
  if (is_any_left_out) {
    std::printf("* without the last token of each row, which does not fit in the served context\n");
  }
}

Json ToJson(const std::vector<LossAtLength>& results, const std::string& kv_cache_dtype) {
  return {{"lengths", cli::ToJson(results)}, {"kv_cache_dtype", kv_cache_dtype}};
}

class ScoreCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    AddTextFlags(parser);
    parser
        ->Add("--ids", ids_, "token ids, of which rows are taken at equal steps: a file of uint16")
        .ValueName("FILE")
        .Group("Loss by length");
    parser->Add("--text", text_, "the same of a text; - is standard input")
        .ValueName("FILE")
        .Group("Loss by length");
    of_loss_ = {
        parser->Add("--lengths", lengths_, "tokens per row [2K is 2048; default 1K,2K,4K,8K,16K]")
            .ValueName("LIST")
            .Group("Loss by length"),
        parser
            ->Add(
                "--rows", num_rows_,
                "rows of each length [1 to 1024; default 8, or what 32K tokens and the file hold]")
            .ValueName("N")
            .Group("Loss by length")
            .Range(1, 1024)};
    parser->AddSwitch("--json", json_, "one JSON object per line: an item, or all lengths")
        .Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddSchedulingFlags(parser, &scheduling_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar score --context 'The capital of France is' --continuation ' Paris' "
        "--continuation ' Rome'\n"
        "  lssar score --input rows.jsonl --output scores.jsonl --resume");
  }

  absl::Status Run() override {
    if (ids_.has_value() && text_.has_value()) {
      return absl::InvalidArgumentError("--ids and --text exclude each other: give one");
    }
    if (ids_.has_value() || text_.has_value()) {
      if (!continuations_.empty() || context_.has_value() || file_.has_value() ||
          input_.has_value()) {
        return absl::InvalidArgumentError(
            "--ids and --text exclude --context, --continuation, --file and --input");
      }
      RETURN_IF_ERROR(CheckNoneIsGiven(of_items_, "--continuation, --file and --input"));
      RETURN_IF_ERROR(CheckNoneIsGiven(of_files_, "--file and --input"));
      return RunLossByLength();
    }
    RETURN_IF_ERROR(CheckNoneIsGiven(of_loss_, "--ids and --text"));
    if (!file_.has_value() && !input_.has_value()) {
      RETURN_IF_ERROR(CheckNoneIsGiven(of_files_, "--file and --input"));
    }
    if (!figure_path_.empty()) {
      return absl::InvalidArgumentError(
          "--figure draws loss by length; it needs --ids FILE or --text FILE");
    }
    if (input_.has_value() != output_.has_value() || (resume_ && !input_.has_value())) {
      return absl::InvalidArgumentError(
          "--input FILE and --output FILE go together; --resume needs them");
    }
    if (input_.has_value()) {
      if (!continuations_.empty() || context_.has_value() || file_.has_value()) {
        return absl::InvalidArgumentError("--input excludes --context, --continuation and --file");
      }
      return ScoreRows();
    }
    return ScoreItems();
  }

 private:
  static absl::Status CheckNoneIsGiven(const std::vector<Argument>& arguments, const char* others) {
    for (const Argument& argument : arguments) {
      if (!argument.IsGiven()) continue;
      return absl::InvalidArgumentError(StrCat(argument.Name(), " applies with ", others, " only"));
    }
    return absl::OkStatus();
  }

  void AddTextFlags(ArgumentParser* parser) {
    constexpr char kGroup[] = "What to score";
    parser
        ->Add("--context", context_,
              "text before the continuations [default: none, then BOS alone]")
        .ValueName("TEXT")
        .Group(kGroup);
    parser->Add("--continuation", continuations_, "text to score; repeatable [1 to 1024]")
        .ValueName("TEXT")
        .Group(kGroup)
        .OneValueEach();
    parser
        ->Add(
            "--file", file_,
            "JSON lines {\"context\": C, \"continuations\": [C, ...]}, each C a text or a list of "
            "ids, any number of lines; - is standard input")
        .ValueName("FILE")
        .Group(kGroup);
    of_files_ = {
        parser
            ->Add("--max-concurrency", max_concurrency_,
                  "calls of 64 items in flight, with --file and --input [1 to 64; default 2]")
            .ValueName("N")
            .Group(kGroup)
            .Range(1, 64)};
    parser
        ->Add("--input", input_,
              "JSON lines as of --file, of which an invalid one has its error in its place "
              "of --output; - is standard input")
        .ValueName("FILE")
        .Group(kGroup);
    parser
        ->Add("--output", output_,
              "with --input: one JSON object per line, in order, as they are known")
        .ValueName("FILE")
        .Group("Output");
    parser->AddSwitch("--resume", resume_, "go on after the last complete line of --output")
        .Group("Output");
    of_items_ = {parser
                     ->AddSwitch("--tokens", tokens_,
                                 "show each token's logprob [nats] and the most probable token")
                     .Group("Output")};
  }

  absl::Status ScoreItems() {
    const bool has_text = context_.has_value() || !continuations_.empty();
    if (has_text == file_.has_value() || (has_text && continuations_.empty())) {
      return absl::InvalidArgumentError(
          "give --context TEXT and one or more --continuation TEXT, or --file FILE, or --ids FILE, "
          "or "
          "--text FILE");
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
    const auto on_line = [&](int64_t /*line_number*/, const v1::ScoreItem& item,
                             const ItemScores& scores) {
      if (!scores.ok()) return scores.status();
      ++num_done;
      progress.Advance(1,
                       num_items ? StrCat(num_done, "/", *num_items) : StrCat(num_done, " items"));
      if (StdoutTerminal().is_tty) progress.Hide();
      PrintItem(item, *scores);
      return absl::OkStatus();
    };
    const ScoreStreamOptions options{
        .max_concurrency = max_concurrency_, .per_token = tokens_, .scheduling = scheduling_};
    return RunScoreStream(connection->Stub(), options, &interrupt, next, on_line);
  }

  absl::Status ScoreRows() {
    ASSIGN_OR_RETURN(const std::optional<int64_t> num_rows, CountLines(*input_));
    ASSIGN_OR_RETURN(ScoreFileReader reader, ScoreFileReader::Open(*input_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    RETURN_IF_ERROR(ReadPrecision(connection->Stub()));
    int64_t first = 0;
    int64_t num_before = 0;
    int64_t num_invalid = 0;  // those before too
    ASSIGN_OR_RETURN(ResumableOutput output,
                     ResumableOutput::Open(*output_, resume_, "line", served_, scheduling_,
                                           [&](const Json& line) {
                                             first = line.at("line").get<int64_t>();
                                             ++num_before;
                                             num_invalid += line.contains("error") ? 1 : 0;
                                             return absl::OkStatus();
                                           }));
    RETURN_IF_ERROR(reader.SkipTo(first));
    Interrupt interrupt;
    ProgressBar progress("scoring", num_rows.value_or(ProgressBar::kUnknownTotal));
    progress.Advance(first, "");
    int64_t num_done = 0;
    const auto on_line = [&](int64_t line_number, const v1::ScoreItem&, const ItemScores& row) {
      ++num_done;
      num_invalid += row.ok() ? 0 : 1;
      progress.Advance(1, StrCat(num_done, " rows"));
      return output.Append(RowToJson(line_number, row, tokens_, served_.kv_cache_dtype()));
    };
    const ScoreStreamOptions options{
        .max_concurrency = max_concurrency_, .per_token = tokens_, .scheduling = scheduling_};
    RETURN_IF_ERROR(RunScoreStream(
        connection->Stub(), options, &interrupt, [&reader] { return reader.NextRow(); }, on_line));
    progress.Hide();
    std::fprintf(stderr, "%s\n",
                 Dim(StderrTerminal(), StrCat(num_done, " rows scored into ", *output_)).c_str());
    if (num_invalid == 0) return absl::OkStatus();
    return absl::FailedPreconditionError(StrCat(num_invalid, " of ", num_before + num_done,
                                                " rows are invalid; each has its error in ",
                                                *output_, ", and the others have their scores"));
  }

  // The K/V cache's type goes into the JSON, or a note about it to stderr.
  absl::Status ReadPrecision(Service* stub) {
    ASSIGN_OR_RETURN(served_, DescribeServer(stub));
    const std::string note = KvCachePrecisionNote(served_);
    if (!json_ && !note.empty()) {
      std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), note).c_str());
    }
    return absl::OkStatus();
  }

  void PrintItem(const v1::ScoreItem& item, const std::vector<ScoredContinuation>& scored) const {
    if (json_) return PrintJson(ToJson(scored, tokens_, served_.kv_cache_dtype()));
    if (file_.has_value()) {
      std::printf("context: %s\n", Describe(item.context(), kTextColumns).c_str());
    }
    std::printf("%s", RenderItem(item, scored).c_str());
    for (size_t i = 0; tokens_ && i < scored.size(); ++i) {
      std::printf("\n%s\n%s", Describe(item.continuations(int(i)), kTextColumns).c_str(),
                  RenderTokens(scored[i].tokens).c_str());
    }
    if (file_.has_value()) std::printf("\n");
  }

  absl::Status RunLossByLength() {
    ASSIGN_OR_RETURN(auto lengths, ParseCounts("--lengths", lengths_, 1, kMaxLength));
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("loss", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Interrupt interrupt;
    ASSIGN_OR_RETURN(const auto ids,
                     ReadEvaluationIds(connection->Stub(), ids_, text_, &interrupt));
    RETURN_IF_ERROR(ReadPrecision(connection->Stub()));
    const LossOptions options{
        .lengths = std::move(lengths), .num_rows = num_rows_, .scheduling = scheduling_};
    std::optional<ProgressBar> progress(std::in_place, "scoring",
                                        NumLossTokens(options, std::ssize(ids)));
    ASSIGN_OR_RETURN(const LossByLength loss,
                     MeasureLossByLength(connection->Stub(), served_, ids, options, /*label=*/"",
                                         &*progress, &interrupt));
    progress.reset();
    const Json json = ToJson(loss.lengths, served_.kv_cache_dtype());
    json_ ? PrintJson(json) : PrintLossTable(loss.lengths);
    return figure.Draw([&] { return json; });
  }

  // Arguments of one of the three uses.
  std::vector<Argument> of_loss_, of_files_, of_items_;
  std::optional<std::string> context_;
  std::vector<std::string> continuations_;
  std::optional<std::string> file_;
  std::optional<std::string> input_;
  std::optional<std::string> output_;
  bool resume_ = false;
  int max_concurrency_ = ScoreStreamOptions().max_concurrency;
  bool tokens_ = false;
  std::optional<std::string> ids_;
  std::optional<std::string> text_;
  std::string lengths_ = "1K,2K,4K,8K,16K";
  std::optional<int> num_rows_;
  bool json_ = false;
  std::string figure_path_;
  SchedulingFlags scheduling_;
  ConnectionFlags connection_;
  v1::GetInfoReply served_;
};

}  // namespace

std::unique_ptr<Command> MakeScoreCommand() { return std::make_unique<ScoreCommand>(); }

}  // namespace lssar::cli

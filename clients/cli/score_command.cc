// `lssar score`: log-probability of continuations, or loss by length over a token file.
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
#include "clients/cli/json_output.h"
#include "clients/cli/loss_by_length.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/read_text.h"
#include "clients/cli/score_call.h"
#include "clients/cli/score_file.h"
#include "clients/cli/sharing_flags.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

// Items of one call: enough to keep the engine's batch full, and results come as the file goes.
constexpr size_t kItemsPerCall = 64;
constexpr int kTextColumns = 48;
constexpr int kMostLength = 1 << 20;

std::string Describe(const v1::ScoreText& text) {
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
                  Describe(item.continuations(static_cast<int>(i)))});
  }
  return table.Render();
}

std::string RenderTokens(const std::vector<v1::Token>& tokens) {
  using enum Table::Align;
  Table table({{"id", kRight}, {"logprob", kRight}, {"piece"}, {"best instead"}});
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

Json ToJson(const std::vector<ScoredContinuation>& scored, bool has_tokens) {
  Json continuations = Json::array();
  for (const ScoredContinuation& each : scored) {
    Json json = {{"logprob", each.score.logprob()},
                 {"num_tokens", each.score.num_tokens()},
                 {"num_bytes", each.score.num_bytes()},
                 {"is_greedy", each.score.is_greedy()}};
    if (has_tokens) json["tokens"] = TokensToJson(each.tokens);
    continuations.push_back(std::move(json));
  }
  return {{"continuations", std::move(continuations)}};
}

void PrintLossTable(const std::vector<LossAtLength>& results) {
  using enum Table::Align;
  Table table({{"length", kRight},
               {"rows", kRight},
               {"tokens", kRight},
               {"nats a token", kRight},
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
    std::printf("* without each row's last token: it would be one over the served context\n");
  }
}

void PrintLossJson(const std::vector<LossAtLength>& results) {
  Json lengths = Json::array();
  for (const LossAtLength& at : results) {
    lengths.push_back({{"length", at.length},
                       {"num_rows", at.num_rows},
                       {"num_tokens", at.num_tokens},
                       {"loss", at.loss},
                       {"perplexity", std::exp(at.loss)},
                       {"is_last_left_out", at.is_last_left_out}});
  }
  PrintJson({{"lengths", std::move(lengths)}});
}

class ScoreCommand : public Command {
 public:
  void AddFlags(CLI::App* app) override {
    AddTextFlags(app);
    app->add_option("--ids", ids_path_, "uint16 token ids, cut into rows at equal steps")
        ->option_text("FILE")
        ->group("Loss by length");
    app->add_option("--lengths", lengths_, "tokens a row [2K is 2048; default 1K,2K,4K,8K,16K]")
        ->option_text("LIST")
        ->group("Loss by length");
    app->add_option("--rows", num_rows_,
                    "rows of each length [1 to 1024; default 8, at most 32K tokens]")
        ->option_text("N")
        ->group("Loss by length")
        ->check(CLI::Range(1, 1024));
    app->add_flag("--json", json_, "one JSON object a line: an item, or all lengths")
        ->group("Output");
    AddSharingFlags(app, &sharing_);
    AddConnectionFlags(app, &connection_);
    app->footer(
        "Examples:\n"
        "  lssar score --context 'The capital of France is' --continuation ' Paris' "
        "--continuation ' Rome'\n"
        "  lssar score --model models/zoo/lssar-6m --ids val.bin --lengths 1K,2K,4K");
  }

  absl::Status Run() override {
    if (ids_path_.has_value()) {
      if (!continuations_.empty() || context_.has_value() || file_.has_value()) {
        return absl::InvalidArgumentError("--ids stands alone: leave out texts and --file");
      }
      return RunLossByLength();
    }
    absl::StatusOr<std::vector<v1::ScoreItem>> items = ReadItems();
    if (!items.ok()) return items.status();
    return ScoreItems(*items);
  }

 private:
  void AddTextFlags(CLI::App* app) {
    constexpr char kGroup[] = "What to score";
    app->add_option("--context", context_, "text before the continuations [default: none]")
        ->option_text("TEXT")
        ->group(kGroup);
    app->add_option("--continuation", continuations_, "text to score; repeatable [1 to 1024]")
        ->option_text("TEXT")
        ->group(kGroup)
        ->allow_extra_args(false);
    app->add_option("--file", file_,
                    "JSON lines {\"context\": C, \"continuations\": [C, ...]}; - is stdin")
        ->option_text("FILE")
        ->group(kGroup);
    app->add_flag("--tokens", tokens_, "each token's logprob [nats] and what was likelier")
        ->group("Output");
  }

  absl::StatusOr<std::vector<v1::ScoreItem>> ReadItems() const {
    const bool has_text = context_.has_value() || !continuations_.empty();
    if (has_text == file_.has_value() || (has_text && continuations_.empty())) {
      return absl::InvalidArgumentError(
          "give --context TEXT and one or more --continuation TEXT, or --file FILE, or --ids FILE");
    }
    if (file_.has_value()) {
      const absl::StatusOr<std::string> lines = ReadText(*file_);
      if (!lines.ok()) return lines.status();
      return ParseScoreLines(*lines);
    }
    v1::ScoreItem item;
    item.mutable_context()->set_text(context_.value_or(""));
    for (const std::string& text : continuations_) item.add_continuations()->set_text(text);
    return std::vector<v1::ScoreItem>{item};
  }

  absl::Status ScoreItems(const std::vector<v1::ScoreItem>& items) {
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    Interrupt interrupt;
    ProgressBar progress("scoring", static_cast<int64_t>(items.size()));
    for (size_t first = 0; first < items.size(); first += kItemsPerCall) {
      const size_t end = std::min(items.size(), first + kItemsPerCall);
      v1::ScoreRequest request;
      FillSharing(sharing_, &request);
      request.set_per_token(tokens_);
      if (tokens_) request.set_top_logprobs(1);
      for (size_t i = first; i < end; ++i) *request.add_items() = items[i];
      const auto scored =
          RunScore((*connection)->Stub(), request, &interrupt, [](const v1::ContinuationScore&) {});
      if (!scored.ok()) return scored.status();
      progress.Advance(static_cast<int64_t>(end - first), StrCat(end, "/", items.size()));
      if (StdoutTerminal().is_tty) progress.Hide();
      for (size_t i = first; i < end; ++i) PrintItem(items[i], (*scored)[i - first]);
    }
    return absl::OkStatus();
  }

  void PrintItem(const v1::ScoreItem& item, const std::vector<ScoredContinuation>& scored) const {
    if (json_) return PrintJson(ToJson(scored, tokens_));
    if (file_.has_value()) std::printf("context: %s\n", Describe(item.context()).c_str());
    std::printf("%s", RenderItem(item, scored).c_str());
    for (size_t i = 0; tokens_ && i < scored.size(); ++i) {
      std::printf("\n%s\n%s", Describe(item.continuations(static_cast<int>(i))).c_str(),
                  RenderTokens(scored[i].tokens).c_str());
    }
    if (file_.has_value()) std::printf("\n");
  }

  absl::Status RunLossByLength() {
    auto lengths = ParseCounts("--lengths", lengths_, 1, kMostLength);
    if (!lengths.ok()) return lengths.status();
    const auto ids = ReadIds(*ids_path_);
    if (!ids.ok()) return ids.status();
    const auto connection = Connection::Open(connection_);
    if (!connection.ok()) return connection.status();
    Interrupt interrupt;
    const LossOptions options{
        .lengths = *std::move(lengths), .num_rows = num_rows_, .sharing = sharing_};
    const auto results = MeasureLossByLength((*connection)->Stub(), *ids, options, &interrupt);
    if (!results.ok()) return results.status();
    json_ ? PrintLossJson(*results) : PrintLossTable(*results);
    return absl::OkStatus();
  }

  std::optional<std::string> context_;
  std::vector<std::string> continuations_;
  std::optional<std::string> file_;
  bool tokens_ = false;
  std::optional<std::string> ids_path_;
  std::string lengths_ = "1K,2K,4K,8K,16K";
  std::optional<int> num_rows_;
  bool json_ = false;
  SharingFlags sharing_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeScoreCommand() { return std::make_unique<ScoreCommand>(); }

}  // namespace lssar::cli

// `lssar sweep`: loss by length for several powers p of the re-weighting, from one loaded model.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
#include "clients/cli/evaluation.h"
#include "clients/cli/figure.h"
#include "clients/cli/input.h"
#include "clients/cli/json_output.h"
#include "clients/cli/progress_bar.h"
#include "clients/cli/request_flags.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/table.h"
#include "clients/cli/terminal.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxLength = 1 << 20;
constexpr size_t kMaxValues = 256;
constexpr double kMaxP = 1000;  // of v1::AttentionOverride
// Tokens of the rows of one length. All p score the same rows, so their differences need fewer
// rows than a loss itself.
constexpr int kSweepTokens = kEvaluationTokens / 4;

struct SweepValue {
  double p = 0;
  LossByLength loss = {};
  double seconds = 0;
};

absl::StatusOr<std::vector<double>> ParsePowers(const std::string& list) {
  std::vector<double> powers;
  for (const absl::string_view entry : absl::StrSplit(list, ',')) {
    double p = 0;
    // NaN is in no range.
    if (!absl::SimpleAtod(entry, &p) || !(p > 0 && p <= kMaxP)) {
      return absl::InvalidArgumentError(StrCat("--p: '", entry, "' is not a number in (0, ", kMaxP,
                                               "]; give a list such as 1,3,15"));
    }
    powers.push_back(p);
  }
  if (powers.size() > kMaxValues) {
    return absl::InvalidArgumentError(
        StrCat("--p: ", powers.size(), " values; at most ", kMaxValues));
  }
  return powers;
}

// A row for each p; the smallest loss of a length is marked.
void PrintTable(const std::vector<SweepValue>& values, const v1::GetInfoReply& served) {
  using enum Table::Align;
  const std::vector<LossAtLength>& lengths = values.front().loss.lengths;
  std::vector<Table::Column> columns = {{"p", kRight}};
  std::vector<double> best;
  bool is_any_left_out = false;
  for (size_t i = 0; i < lengths.size(); ++i) {
    columns.push_back({FormatCount(lengths[i].length), kRight});
    best.push_back(std::numeric_limits<double>::infinity());
    for (const SweepValue& value : values) {
      best.back() = std::min(best.back(), value.loss.lengths[i].loss);
    }
    is_any_left_out = is_any_left_out || lengths[i].is_last_left_out;
  }
  columns.push_back({"attention"});
  Table table(std::move(columns));
  for (const SweepValue& value : values) {
    std::vector<std::string> cells = {StrCat(value.p)};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const double loss = value.loss.lengths[i].loss;
      cells.push_back(absl::StrFormat("%.4f%s", loss, loss == best[i] ? " <" : "  "));
    }
    const std::string& attention = value.loss.receipt.attention();
    const bool is_own = value.p == served.attention_p();
    cells.push_back(is_own ? StrCat(attention, ", the checkpoint's p") : attention);
    table.AddRow(std::move(cells));
  }
  std::printf("Loss by length for each p, nats per token; < is the smallest of its length\n%s",
              table.Render().c_str());
  if (is_any_left_out) {
    std::printf("Rows of %s tokens lack their last token, which does not fit in the context\n",
                FormatCount(served.max_model_len()).c_str());
  }
}

Json ToJson(const std::vector<SweepValue>& values, const v1::GetInfoReply& served) {
  Json json = {{"values", Json::array()}};
  for (const SweepValue& value : values) {
    json["values"].push_back({{"p", value.p},
                              {"attention", value.loss.receipt.attention()},
                              {"seconds", value.seconds},
                              {"lengths", cli::ToJson(value.loss.lengths)}});
  }
  json["checkpoint_hash"] = served.checkpoint_hash();
  json["attention_p"] = served.attention_p();
  json["kv_cache_dtype"] = served.kv_cache_dtype();
  return json;
}

class SweepCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    static constexpr char kGroup[] = "What to measure";
    const auto add = [parser](const char* name, auto& value, const char* text, const char* about) {
      return parser->Add(name, value, about).ValueName(text).Group(kGroup);
    };
    add("--p", powers_, "LIST",
        "powers of the re-weighting [each over 0 to 1000; default 1,3,5,10,15,30,100]");
    add("--kind", kind_, "KIND",
        "kind of attention that re-weights, such as softmax_r [default: the checkpoint's]");
    add("--ids", ids_, "FILE", "token ids, of which rows are taken at equal steps: uint16");
    add("--text", text_, "FILE", "the same of a text; - is standard input");
    add("--lengths", lengths_, "LIST", "tokens per row [2K is 2048; default 256,1K,4K]");
    add("--rows", num_rows_, "N",
        "rows of each length [1 to 1024; default 8, or what 8K tokens hold]")
        .Range(1, 1024);
    parser->AddSwitch("--json", json_, "print one JSON object").Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddQueueFlags(parser, &scheduling_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "A server has to run with --allow-attention-override. The model was trained with one p: "
        "this\nshows what it does with others, without training.\n\n"
        "Examples:\n"
        "  lssar sweep --model models/zoo/lssar-6m --ids models/zoo/lssar-6m/held_out.bin\n"
        "  lssar sweep --server 127.0.0.1:50051 --text book.txt --p 1,15 --lengths 1K,2K --json");
  }

  absl::Status Run() override {
    if (ids_.has_value() == text_.has_value()) {
      return absl::InvalidArgumentError("give --ids FILE or --text FILE");
    }
    ASSIGN_OR_RETURN(const std::vector<double> powers, ParsePowers(powers_));
    LossOptions options{.lengths = {},
                        .num_rows = num_rows_,
                        .num_tokens = kSweepTokens,
                        .scheduling = scheduling_};
    ASSIGN_OR_RETURN(options.lengths, ParseCounts("--lengths", lengths_, 1, kMaxLength));
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("sweep", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* const stub = connection->Stub();
    ASSIGN_OR_RETURN(const v1::GetInfoReply served, DescribeServer(stub));
    Interrupt interrupt;
    ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                     ReadEvaluationIds(stub, ids_, text_, &interrupt));

    std::optional<ProgressBar> progress(std::in_place, "sweeping",
                                        NumLossTokens(options) * std::ssize(powers));
    std::vector<SweepValue> values;
    for (const double p : powers) {
      options.scheduling.attention = {.p = p, .kind = kind_, .phi = {}};
      const auto start = std::chrono::steady_clock::now();
      SweepValue value{.p = p};
      ASSIGN_OR_RETURN(value.loss,
                       MeasureLossByLength(stub, served, ids, options, StrCat("p ", p, ", "),
                                           &*progress, &interrupt));
      value.seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      values.push_back(std::move(value));
    }
    progress.reset();
    if (json_) {
      PrintJson(ToJson(values, served));
    } else {
      PrintTable(values, served);
    }
    return figure.Draw([&] { return ToJson(values, served); });
  }

 private:
  std::string powers_ = "1,3,5,10,15,30,100";
  std::string kind_;
  std::optional<std::string> ids_;
  std::optional<std::string> text_;
  std::string lengths_ = "256,1K,4K";
  std::optional<int> num_rows_;
  bool json_ = false;
  std::string figure_path_;
  SchedulingFlags scheduling_;
  ConnectionFlags connection_;
};

}  // namespace

std::unique_ptr<Command> MakeSweepCommand() { return std::make_unique<SweepCommand>(); }

}  // namespace lssar::cli

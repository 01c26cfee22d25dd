// `lssar attention`: the final attention weights of query tokens of a prompt.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/attention_view.h"
#include "clients/cli/command.h"
#include "clients/cli/connection.h"
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

constexpr int kDefaultKeys = 8;  // shown for a row
constexpr int kMapRows = 40;
constexpr int kStatisticsRows = 64;

// Columns of mass by distance: up to 2^i - 1, and beyond the last.
struct DistanceColumn {
  const char* title;
  int end;  // of the buckets of HeadStatistics.distance_mass
};
constexpr DistanceColumn kDistances[] = {{"self", 1},    {"1-7", 4},       {"8-63", 7},
                                         {"64-511", 10}, {"512-4095", 13}, {"4096-", 32}};

void PrintStatistics(const CapturedAttention& captured) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {{"layer", kRight},          {"head", kRight},
                                        {"zero", kRight},           {"negligible", kRight},
                                        {"effective keys", kRight}, {"first token", kRight}};
  const int num_tokens = int(captured.prompt.size());
  size_t num_distances = 0;
  for (const DistanceColumn& column : kDistances) {
    // The column's first distance; no row has a larger one than num_tokens - 1.
    const int first = num_distances == 0 ? 0 : 1 << (kDistances[num_distances - 1].end - 1);
    if (first > num_tokens - 1) break;
    columns.push_back({column.title, kRight});
    ++num_distances;
  }
  Table table(std::move(columns));
  const auto percent = [](double share) { return absl::StrFormat("%.1f%%", 100 * share); };
  for (const v1::HeadStatistics& head : captured.statistics) {
    const HeadMeans means(head);
    std::vector<std::string> cells = {StrCat(head.layer()),
                                      StrCat(head.head()),
                                      percent(means.zero),
                                      percent(means.negligible),
                                      absl::StrFormat("%.1f", means.effective_keys),
                                      percent(means.first_token_mass)};
    int first = 0;
    for (size_t i = 0; i < num_distances; ++i) {
      double mass = 0;
      const int end = std::min(kDistances[i].end, int(means.distance_mass.size()));
      for (; first < end; ++first) mass += means.distance_mass[size_t(first)];
      cells.push_back(percent(mass));
    }
    table.AddRow(std::move(cells));
  }
  const int64_t num_rows = captured.statistics.empty() ? 0 : captured.statistics[0].num_rows();
  std::printf("Attention (%s) of %d rows of %d tokens: means over the rows; mass by distance\n%s",
              captured.started.attention().c_str(), int(num_rows), num_tokens,
              table.Render().c_str());
}
// As lssar.figures draws them.
constexpr int kFigureRows = 256;
constexpr int kFigureKeys = 256;

Json ToJson(const CapturedAttention& captured) {
  Json json = {{"request_id", captured.started.request_id()},
               {"checkpoint_hash", captured.started.checkpoint_hash()},
               {"num_prompt_tokens", captured.started.num_prompt_tokens()},
               {"attention", captured.started.attention()},
               {"tokens", Json::array()},
               {"rows", Json::array()}};
  for (const v1::TokenLogprob& token : captured.prompt) {
    json["tokens"].push_back({{"id", token.id()}, {"piece", PieceText(token.piece())}});
  }
  for (const v1::RowWeights& row : captured.rows) {
    json["rows"].push_back(
        {{"layer", row.layer()},
         {"head", row.head()},
         {"row", row.row()},
         {"num_nonzero", row.num_nonzero()},
         {"num_zero", row.num_zero()},
         {"entropy", row.entropy()},
         {"dropped_mass", row.dropped_mass()},
         {"keys", std::vector<int>(row.keys().begin(), row.keys().end())},
         {"weights", std::vector<float>(row.weights().begin(), row.weights().end())}});
  }
  for (const v1::HeadStatistics& head : captured.statistics) {
    json["statistics"].push_back(HeadStatisticsToJson(head));
  }
  if (captured.finished.has_value()) {
    json["usage"] = UsageToJson(captured.finished->usage());
    json["timings"] = TimingsToJson(captured.finished->timings());
  }
  return json;
}

void PrintMaps(const CapturedAttention& captured) {
  std::map<std::pair<int, int>, std::vector<const v1::RowWeights*>> maps;  // by layer and head
  for (const v1::RowWeights& row : captured.rows) {
    maps[{row.layer(), row.head()}].push_back(&row);
  }
  const Terminal& terminal = StdoutTerminal();
  for (const auto& [head, rows] : maps) {
    std::printf("%s\n", RenderMap(captured, rows, terminal).c_str());
  }
  std::printf("%s\n", Dim(terminal, MapLegend(terminal)).c_str());
}

void PrintRows(const CapturedAttention& captured) {
  const char* separator = "";
  for (const v1::RowWeights& row : captured.rows) {
    std::printf("%s%s", std::exchange(separator, "\n"),
                RenderRow(captured, row, StdoutTerminal()).c_str());
  }
}

// All rows, or `max_rows` of them at equal steps with the last one.
std::vector<int> SpreadRows(int num_tokens, int max_rows) {
  std::vector<int> rows;
  const int num_rows = std::min(num_tokens, max_rows);
  for (int64_t i = 1; i <= num_rows; ++i) {
    rows.push_back(int(i * num_tokens / num_rows) - 1);
  }
  return rows;
}

class AttentionCommand : public Command {
 public:
  void AddFlags(ArgumentParser* parser) override {
    AddPromptFlags(parser, &prompt_);
    static constexpr char kGroup[] = "What to show";
    const auto add = [parser](const char* name, auto& value, const char* about) {
      parser->Add(name, value, about).ValueName("LIST").Group(kGroup);
    };
    add("--layers", layers_,
        "indices: 0,2..4,-1 is the first, three more and the last [default: all]");
    add("--heads", heads_, "indices of heads of each layer [default: all]");
    add("--rows", rows_,
        "query tokens: positions in the prompt, -1 is the last [default: -1; at equal steps, "
        "--map: 40, --statistics: 64, --figure: 256]");
    parser
        ->Add(
            "--top-k", top_k_,
            "the largest weights of each row [0 is all; default 8, with --map and --json all, with "
            "--figure 256]")
        .ValueName("N")
        .Group(kGroup);
    parser->AddSwitch("--map", map_, "draw a map of rows and keys for each head").Group("Output");
    parser
        ->AddSwitch(
            "--statistics", statistics_,
            "means of each head over the rows: share of keys whose weight is exactly zero, share "
            "of "
            "negligible keys (weights below 2^-32 of the row's largest, zero or not), effective "
            "keys (exp of the entropy), mass of the first token and by distance")
        .Group("Output");
    parser
        ->AddSwitch("--json", json_,
                    "print one JSON object: tokens, and keys and weights of each row")
        .Group("Output");
    AddFigureFlag(parser, &figure_path_);
    AddSchedulingFlags(parser, &scheduling_);
    AddSteeringFlags(parser, &steering_);
    AddConnectionFlags(parser, &connection_);
    parser->Footer(
        "Examples:\n"
        "  lssar attention --model models/zoo/lssar-6m 'The cat sat on the mat' --layers -1 --map\n"
        "  lssar attention --model models/zoo/lssar-6m --ids models/zoo/lssar-6m/held_out.bin "
        "--length 500 --layers 2 --figure heads.svg");
  }

  absl::Status Run() override {
    if (map_ && json_) return absl::InvalidArgumentError("--map and --json exclude each other");
    if (statistics_ && (map_ || top_k_.has_value() || !figure_path_.empty())) {
      return absl::InvalidArgumentError("--statistics excludes --map, --figure and --top-k");
    }
    ASSIGN_OR_RETURN(Figure figure, Figure::Start("attention", figure_path_));
    ASSIGN_OR_RETURN(const auto connection, Connection::Open(connection_));
    Service* const stub = connection->Stub();
    ASSIGN_OR_RETURN(const v1::CaptureAttentionRequest request, MakeRequest(stub));

    Interrupt interrupt;
    std::optional<ProgressBar> progress(std::in_place, "capturing", num_rows_);
    int num_done = 0;
    const auto captured = RunCapture(stub, request, &interrupt, [&](int num_rows) {
      num_done += num_rows;
      progress->Advance(num_rows, StrCat(num_done, "/", num_rows_));
    });
    progress.reset();
    if (!captured.ok()) return captured.status();
    if (json_) {
      PrintJson(ToJson(*captured));
    } else if (statistics_) {
      PrintStatistics(*captured);
    } else if (map_) {
      PrintMaps(*captured);
    } else if (figure_path_.empty()) {
      PrintRows(*captured);
    }
    return figure.Draw([&] { return ToJson(*captured); });
  }

 private:
  // Always ids: the number of tokens is needed to count rows from the end and to resolve "all".
  absl::StatusOr<std::vector<int32_t>> ReadPromptIds(Service* stub) const {
    ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(prompt_));
    if (prompt.ids.has_value()) return *std::move(prompt.ids);
    Interrupt interrupt;
    return Tokenize(stub, *prompt.text, /*add_bos=*/std::nullopt, &interrupt);
  }

  absl::StatusOr<v1::CaptureAttentionRequest> MakeRequest(Service* stub) {
    ASSIGN_OR_RETURN(const auto ids, ReadPromptIds(stub));
    ASSIGN_OR_RETURN(const auto served, DescribeServer(stub));
    v1::CaptureAttentionRequest request;
    FillScheduling(scheduling_, &request);
    RETURN_IF_ERROR(FillSteering(steering_, &request));
    *request.mutable_tokens()->mutable_ids() = {ids.begin(), ids.end()};
    const int num_tokens = int(ids.size());
    for (const auto& [flag, list, count, indices] :
         {std::tuple("--layers", &layers_, served.num_hidden_layers(), request.mutable_layers()),
          std::tuple("--heads", &heads_, served.num_attention_heads(), request.mutable_heads()),
          std::tuple("--rows", &rows_, num_tokens, request.mutable_rows())}) {
      if (!list->has_value()) continue;
      ASSIGN_OR_RETURN(const auto parsed, ParseIndices(flag, **list, count));
      *indices = {parsed.begin(), parsed.end()};
    }
    const bool is_drawn = !figure_path_.empty();
    if ((map_ || statistics_ || is_drawn) && !rows_.has_value()) {
      const int max_rows = is_drawn ? kFigureRows : statistics_ ? kStatisticsRows : kMapRows;
      const std::vector<int> rows = SpreadRows(num_tokens, max_rows);
      *request.mutable_rows() = {rows.begin(), rows.end()};
    }
    request.set_statistics(statistics_);
    if (top_k_.has_value() || is_drawn || !(map_ || json_ || statistics_)) {
      request.set_top_k(top_k_.value_or(is_drawn ? kFigureKeys : kDefaultKeys));
    }
    const auto chosen = [](const auto& indices, int all) {
      return int64_t{indices.empty() ? all : indices.size()};
    };
    num_rows_ = chosen(request.layers(), served.num_hidden_layers()) *
                chosen(request.heads(), served.num_attention_heads()) * chosen(request.rows(), 1);
    return request;
  }

  PromptFlags prompt_;
  std::optional<std::string> layers_, heads_, rows_;
  std::optional<int> top_k_;
  bool map_ = false;
  bool statistics_ = false;
  bool json_ = false;
  std::string figure_path_;
  SchedulingFlags scheduling_;
  SteeringFlags steering_;
  ConnectionFlags connection_;
  int64_t num_rows_ = 0;  // in all heads and layers
};

}  // namespace

std::unique_ptr<Command> MakeAttentionCommand() { return std::make_unique<AttentionCommand>(); }

}  // namespace lssar::cli
